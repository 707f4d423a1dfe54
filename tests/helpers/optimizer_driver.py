"""Drive optimizers over fixed streams of gradients, and compare where they end."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from aimopt import AIM
from aimopt.kernels import FusedGroup
from aimopt.optimizers import NAMED
from aimopt.step.move import Bucket, Move

Factory = Callable[[Any], torch.optim.Optimizer]
SHAPES = ((5, 4), (7,), (3, 2, 2), ())
MATRICES = ((5, 4), (4, 9), (3, 2, 2, 2))
NEEDS_MATRICES = ("Muon", "AcceleratedMuon", "NorMuon", "SOAP")
NOT_FUSED = (*NEEDS_MATRICES, "LAMB")


def parameters(
    shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float64, seed: int = 0
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [_noise(shape, dtype, generator).requires_grad_() for shape in shapes]


def _noise(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    if dtype.is_complex:
        return torch.complex(
            torch.randn(shape, generator=generator, dtype=torch.float64),
            torch.randn(shape, generator=generator, dtype=torch.float64),
        ).to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def push(params: Sequence[Tensor], step: int) -> None:
    """Give each parameter a gradient: a pull to zero and noise that depends on the step alone."""
    generator = torch.Generator().manual_seed(1000 + step)
    for p in params:
        p.grad = 0.3 * p.detach() + _noise(tuple(p.shape), p.dtype, generator)


def drive(factory: Factory, params: list[Tensor], steps: int = 20, first: int = 0) -> Tensor:
    """Run a new optimizer on `params` and return where they end, flattened."""
    optimizer = factory(params)
    advance(optimizer, params, steps, first)
    return flat(params)


def advance(optimizer: torch.optim.Optimizer, params: Sequence[Tensor], steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        push(params, step)
        optimizer.step()


@contextmanager
def count_paths() -> Iterator[Counter[str]]:
    """Count how many tensors are stepped on each path, fused, foreach or plain, while the real code runs."""
    counts: Counter[str] = Counter()
    run, move = FusedGroup.run, Bucket.move

    def counted_run(group: FusedGroup, *args: Any) -> int | None:
        located = group._located
        if located is not None:
            counts["fused"] += sum(len(table.members) for table in located.coverage.tables)
        return run(group, *args)

    def counted_move(bucket: Bucket) -> Move:
        counts["foreach" if bucket.as_list else "plain"] += len(bucket.params)
        return move(bucket)

    with patch.object(FusedGroup, "run", counted_run), patch.object(Bucket, "move", counted_move):
        yield counts
    for path in [path for path, count in counts.items() if count == 0]:
        del counts[path]


def flat(params: Sequence[Tensor]) -> Tensor:
    return torch.cat([p.detach().flatten() for p in params])


def assert_same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def shapes_for(optimizer: type[AIM]) -> tuple[tuple[int, ...], ...]:
    return MATRICES if optimizer.__name__ in NEEDS_MATRICES else SHAPES


ALL = list(NAMED)
EXCEPT_MATRICES = [optimizer for optimizer in NAMED if optimizer.__name__ not in NEEDS_MATRICES]
FUSED = [optimizer for optimizer in NAMED if optimizer.__name__ not in NOT_FUSED]
