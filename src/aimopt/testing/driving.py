"""Drive optimizers over fixed streams of gradients, and compare where they end.

params = parameters(SHAPES)
with count_paths() as paths:
    end = drive(lambda p: RADAR(p), params, 20)       paths == {"fused": 80}
assert_same(end, other_end)
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from aimopt.aim import AIM
from aimopt.kernels import FusedGroup
from aimopt.parts.composition import Parts
from aimopt.step.move import Bucket, Move

Factory = Callable[[Any], torch.optim.Optimizer]
SHAPES = ((5, 4), (7,), (3, 2, 2), ())
MATRICES = ((5, 4), (4, 9), (3, 2, 2, 2))


def parameters(
    shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float64, seed: int = 0
) -> list[Tensor]:
    """Random parameters."""
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


def closure_for(params: Sequence[Tensor], step: int) -> Callable[[], Tensor]:
    """A closure with the gradients of `push`: those of a quadratic."""

    def closure() -> Tensor:
        push(params, step)
        return flat(params).square().sum()

    return closure


def drive(factory: Factory, params: list[Tensor], steps: int = 20, first: int = 0) -> Tensor:
    """Run a new optimizer on `params` and return where they end, flattened."""
    optimizer = factory(params)
    advance(optimizer, params, steps, first)
    return flat(params)


def advance(optimizer: torch.optim.Optimizer, params: Sequence[Tensor], steps: int, first: int = 0) -> None:
    """Make steps, from the gradients of step `first` on."""
    for step in range(first, first + steps):
        push(params, step)
        optimizer.step()


def compose(params: Any, parts: Parts, lr: float | Tensor = 0.01, **options: Any) -> AIM:
    """The optimizer of these parts."""
    return AIM(params, lr, **parts._asdict(), **options)


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


@contextmanager
def float64_scalars() -> Iterator[None]:
    """Step counts and the like in float64: as in torch, they are of the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def flat(params: Sequence[Tensor]) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in params])


def assert_same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-12) -> None:
    """Refuse tensors that differ by more than this, relative or absolute."""
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
