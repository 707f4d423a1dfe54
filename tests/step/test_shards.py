"""Where shards are in the whole tensor, who owns a matrix, and steps that torch's distributed tools ask for.

`tests/test_sharded_training.py` has the tests on several ranks.
"""

import random
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import aimopt
from aimopt import AIM
from aimopt.parts.component import Correction
from aimopt.parts.composition import Parts
from aimopt.step.owners import owners
from aimopt.step.precision import _positions
from aimopt.step.shards import Place
from optimizer_driver import ALL, shapes_for


@dataclass(frozen=True)
class Mesh:
    """A mesh, seen from one coordinate."""

    shape: tuple[int, ...]
    coordinate: tuple[int, ...]

    def get_coordinate(self) -> list[int]:
        return list(self.coordinate)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def place(shape: tuple[int, ...], placements: tuple[Any, ...], mesh: Mesh) -> Place:
    return Place(mesh, placements, shape, contiguous_strides(shape))


def shard(whole: torch.Tensor, placements: tuple[Any, ...], mesh: Mesh) -> torch.Tensor:
    """What torch's placements leave of a tensor on one rank."""
    for placement, ranks, position in zip(placements, mesh.shape, mesh.coordinate, strict=True):
        if isinstance(placement, (Shard, _StridedShard)):
            pieces, _ = placement._split_tensor(whole, ranks, with_padding=False, contiguous=True)
            whole = pieces[position]
    return whole.contiguous()


@pytest.mark.parametrize("seed", range(60))
def test_positions_of_shards_are_those_in_the_whole(seed: int) -> None:
    """Against torch's own splitting; as a span too, if there is one."""
    generator = random.Random(seed)
    shape = tuple(generator.randint(1, 7) for _ in range(generator.randint(1, 4)))
    mesh_shape = tuple(generator.randint(1, 3) for _ in range(generator.randint(1, 2)))
    placements = tuple(generator.choice([Replicate(), *map(Shard, range(len(shape)))]) for _ in mesh_shape)
    for coordinate in product(*map(range, mesh_shape)):
        mesh = Mesh(mesh_shape, coordinate)
        expected = shard(torch.arange(prod(shape)).view(shape), placements, mesh)
        ours = place(shape, placements, mesh)
        assert ours.block is not None
        assert [size for _, size in ours.block] == list(expected.shape)
        assert torch.equal(_positions(expected, ours.origin), expected)
        span = ours.span(expected)
        split = {p.dim for p in placements if isinstance(p, Shard)}
        assert span is not None or len(split) == 2
        if span is not None:
            e = torch.arange(expected.numel())
            assert torch.equal(span.offset + e + e // span.run * span.gap, expected.flatten())


def test_shards_of_shards() -> None:
    """FSDP2 on tensor parallel parameters shards a dimension twice, the outer mesh last."""
    placements = _StridedShard(0, split_factor=2), Shard(0)
    blocks = [place((8, 3), placements, Mesh((2, 2), c)).block for c in product(range(2), range(2))]
    assert blocks == [((0, 2), (0, 3)), ((4, 2), (0, 3)), ((2, 2), (0, 3)), ((6, 2), (0, 3))]
    assert place((8, 3), (Partial(),), Mesh((2,), (0,))).block is None


def test_the_costs_of_owners_are_balanced() -> None:
    shapes = tuple([(64, 64)] * 5 + [(64, 256)] * 4 + [(8, 8)] * 7)
    chosen = owners(shapes, 4)
    assert chosen == owners(shapes, 4)
    work = [0] * 4
    for (rows, columns), owner in zip(shapes, chosen, strict=True):
        work[owner] += rows * columns * min(rows, columns)
    assert max(work) - min(work) <= 64**3
    assert set(owners(((4, 4),) * 8, 4)) == {0, 1, 2, 3}
    assert [owners(((4, 4), (2, 2)), 4, first) for first in (0, 3, 6)] == [(0, 1), (3, 0), (2, 3)]


@pytest.mark.parametrize(
    "correction", [aimopt.FixedPoint(iterations=3), aimopt.ExactQuadratic(ell_ratio=0.5)], ids=repr
)
def test_the_state_of_a_new_optimizer_that_needs_a_closure(correction: Correction) -> None:
    """torch.distributed.checkpoint makes it by a step without a closure, at learning rate 0 with zero gradients."""
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()
    optimizer = AIM(model.parameters(), 0.1, filter=aimopt.EMA(), geometry=aimopt.Adaptive(), correction=correction)
    state = get_optimizer_state_dict(model, optimizer)["state"]
    assert set(state) == {"weight", "bias"}
    assert torch.equal(model.weight, before)
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(ValueError, match=r"call step\(closure\)"):
        optimizer.step()


@pytest.mark.parametrize("Optimizer", ALL, ids=lambda o: o.__name__)
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"skip_nonfinite": True}], ids=str)
def test_steps_of_fake_tensors(Optimizer: Any, options: dict[str, Any]) -> None:
    """FakeTensorMode estimates the memory of a training; it has shapes and no values."""
    with FakeTensorMode():
        params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes_for(Optimizer)]
        optimizer = Optimizer(params, lr=0.01, **options)
        for _ in range(2):
            for p in params:
                p.grad = torch.randn_like(p)
            optimizer.step()
    buffers = Parts.from_group(optimizer.param_groups[0]).buffers()
    for p in params:
        for name, initial in buffers.items():
            assert optimizer.state[p][name].shape == (() if initial.scalar else initial.shape_for(p))


def test_one_side_of_a_hybrid_may_be_empty() -> None:
    model = torch.nn.Linear(3, 2)  # its only matrix is the output layer
    split = aimopt.groups.split(model)
    optimizer = aimopt.groups.combine(aimopt.Muon(split.matrices), aimopt.RADAR(split.rest(weight_decay=0.1)))
    assert [group["geometry"] for group in optimizer.param_groups] == ["Relativistic"] * 2
    before = model.weight.detach().clone()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)
    alone = aimopt.Muon([])
    alone.step()
    aimopt.Muon([]).load_state_dict(alone.state_dict())
    with pytest.raises(ValueError, match="empty parameter list"):
        aimopt.Muon(iter(()))


def test_flattened_matrices_are_refused() -> None:
    """As DeepSpeed and FSDP1 leave them, before or after the optimizer was made."""
    flat = torch.nn.Parameter(torch.zeros(16))
    flat.grad = torch.ones(16)
    with pytest.raises(ValueError, match=r"DeepSpeed and FSDP1 flatten"):
        aimopt.Muon([flat])
    optimizer = aimopt.Muon([torch.nn.Parameter(torch.zeros(4, 4))])
    optimizer.param_groups[0]["params"] = [flat]
    with pytest.raises(RuntimeError, match=r"it has shape \(16,\), and Spectral takes matrices; DeepSpeed and FSDP1"):
        optimizer.step()
