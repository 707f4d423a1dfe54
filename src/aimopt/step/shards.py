"""Shards: the local parts of distributed tensors, and their places in the whole tensor.

    place_of(p)                  the `Place` of a distributed tensor (torch's DTensor); None of a plain tensor
    place.block                  which elements this rank holds: (first, size) per dimension
    local_part(x)                those elements, as a plain tensor

A step that is element-wise needs no other rank: it runs on the local parts. Two things need the whole tensor.
Stochastic rounding hashes an element's position in the whole, so that a run does not depend on how it was sharded; and
a matrix geometry needs whole matrices (`owners.py`). For example of a parameter of shape (6, 4) on two ranks,

    Shard(0), rank 1             rows 3 to 5: the positions 12, 13, …, 23
    Shard(1), rank 1             columns 2 and 3: the positions 2, 3, 6, 7, …, 22, 23

Distributed tensors are recognized by their attributes, because importing their module would make every import slower.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

Block = tuple[tuple[int, int], ...]  # (first, size) per dimension
Origin = tuple[int, tuple[int, ...]]  # where a local part begins in the memory of the whole, and the whole's strides


class Span(NamedTuple):
    """Where the elements of a local part are in the whole: element e is at offset + e + (e // run)·gap."""

    offset: int
    run: int
    gap: int


@dataclass(frozen=True)
class Place:
    """How a tensor is distributed: over which mesh of ranks, and how along each dimension of the mesh."""

    mesh: Any
    placements: tuple[Any, ...]
    shape: tuple[int, ...]  # of the whole
    strides: tuple[int, ...]  # of the whole

    @cached_property
    def block(self) -> Block | None:
        """The elements that this rank holds; None if they are no block, or if it is not a rank of the mesh."""
        coordinate = self.mesh.get_coordinate()
        return None if coordinate is None else self.block_at(tuple(coordinate))

    def block_at(self, coordinate: tuple[int, ...]) -> Block | None:
        """The elements of the rank with this coordinate in the mesh; None if they are no block."""
        return _block(self.shape, tuple(self.mesh.shape), self.placements, coordinate)

    @property
    def is_contiguous(self) -> bool:
        """Whether the whole has neither gaps nor another order of dimensions in memory."""
        return _is_contiguous(self.shape, self.strides)

    @property
    def replicas(self) -> int:
        """How many ranks hold each element."""
        pairs = zip(self.placements, self.mesh.shape, strict=True)
        return prod(ranks for placement, ranks in pairs if placement.is_replicate())

    @property
    def origin(self) -> Origin | None:
        """The position of the first local element in the whole, and the strides; None if it holds no block."""
        if self.block is None:
            return None
        return sum(first * stride for (first, _), stride in zip(self.block, self.strides, strict=True)), self.strides

    def span(self, local: Tensor) -> Span | None:
        """The positions of the local elements, in their order in memory; None if a `Span` cannot say it."""
        if self.block is None or self.origin is None:
            return None
        if not local.is_contiguous() or not self.is_contiguous:
            return None
        if local.numel() == 0:
            return Span(0, 1, 0)
        split = [d for d, (_, size) in enumerate(self.block) if size != self.shape[d]] or [0]
        first = next((d for d, (_, size) in enumerate(self.block) if size != 1), 0)
        if any(first < d < split[-1] for d in split):
            return None  # the gaps between the runs differ
        if not self.shape:
            return Span(0, 1, 0)
        size, stride = self.block[split[-1]][1], self.strides[split[-1]]
        return Span(self.origin[0], size * stride, (self.shape[split[-1]] - size) * stride)


@lru_cache(maxsize=4096)
def _block(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], placements: tuple[Any, ...], coordinate: tuple[int, ...]
) -> Block | None:
    """What torch's placements leave of a tensor, one dimension of the mesh after the other."""
    indices: list[Sequence[int]] = [range(size) for size in shape]
    for placement, ranks, position in zip(placements, mesh_shape, coordinate, strict=True):
        if placement.is_partial():
            return None
        if not hasattr(placement, "dim"):
            continue  # a replica
        whole = indices[placement.dim]
        pieces = _chunks(whole, getattr(placement, "split_factor", 1))  # more than one: sharded by another mesh before
        parts = [_chunks(piece, ranks)[position] for piece in pieces]
        indices[placement.dim] = parts[0] if len(parts) == 1 else [i for part in parts for i in part]
    block = tuple((index[0] if len(index) else 0, len(index)) for index in indices)
    consecutive = all(len(x) == 0 or x[-1] - x[0] == len(x) - 1 for x in indices)
    return block if consecutive else None


def _chunks(sequence: Sequence[int], count: int) -> list[Sequence[int]]:
    """`count` pieces as torch.chunk makes them; the last ones may be empty."""
    size = -(-len(sequence) // count)
    return [sequence[k * size : (k + 1) * size] for k in range(count)]


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def is_distributed(x: Any) -> bool:
    """Whether this is a distributed tensor."""
    return hasattr(type(x), "to_local") and hasattr(type(x), "placements")


def any_distributed(tensors: Iterable[Tensor]) -> bool:
    """Whether any of these is a distributed tensor; quick, because every step calls it."""
    return any(hasattr(kind, "to_local") for kind in {*map(type, tensors)})


def place_of(x: Any) -> Place | None:
    """The place of a distributed tensor; None of a plain one."""
    if not is_distributed(x):
        return None
    return Place(x.device_mesh, tuple(x.placements), tuple(x.shape), tuple(x.stride()))


def origin_of(x: Any) -> Origin | None:
    """The origin of the local part of a distributed tensor; None of a plain one."""
    place = place_of(x)
    return None if place is None else place.origin


def local_part(x: Any) -> Tensor:
    """The elements of a tensor that this rank holds; all of a plain tensor."""
    return x.to_local() if is_distributed(x) else x


def local_row(row: Sequence[Tensor], shaped: Container[int] = ()) -> tuple[Sequence[Tensor], Place | None]:
    """The local parts of a parameter, its gradient and its state, and their place; unchanged if these have several.

    Those at the positions `shaped` have shapes and places of their own.
    """
    distributed: list[Any] = [x for i, x in enumerate(row) if is_distributed(x) and i not in shaped]
    if not is_distributed(row[0]) or len({(x.device_mesh, tuple(x.placements)) for x in distributed}) != 1:
        return row, None
    if any(placement.is_partial() for placement in distributed[0].placements):
        return row, None
    return [local_part(x) for x in row], place_of(row[0])


def distributed_like(x: Any, local: Tensor) -> Tensor:
    """A local part as the kind of tensor that x is."""
    if not is_distributed(x):
        return local
    place = place_of(x)
    assert place is not None
    return from_local(type(x), local, place)


def from_local(kind: Any, local: Tensor, place: Place) -> Tensor:
    """A local part as a distributed tensor of this kind."""
    shape = torch.Size(place.shape)
    whole: Tensor = kind.from_local(
        local, place.mesh, place.placements, run_check=False, shape=shape, stride=place.strides
    )
    return whole


def whole_tensor(x: Any) -> Tensor:
    """All elements of a tensor; of a distributed one they are gathered on every rank."""
    return x.full_tensor() if is_distributed(x) else x


def distributed_buffer(x: Tensor, p: Any) -> Tensor:
    """A state buffer with a shape of its own, of which every rank has the whole, distributed as its parameter is.

    Where the parameter is sharded, it is sharded along its first dimension: so the ranks share its memory.
    """
    if not is_distributed(p):
        return x
    from torch.distributed.tensor import Shard  # not at the top: it is slow, and only needed where it is loaded already

    place = replicated(p.device_mesh, x)
    if x.ndim:
        shards = [
            new if old.is_replicate() else Shard(0) for old, new in zip(p.placements, place.placements, strict=True)
        ]
        place = replace(place, placements=tuple(shards))
    local = (
        x.new_empty(0) if place.block is None else x[tuple(slice(first, first + size) for first, size in place.block)]
    )
    return from_local(type(p), local.contiguous(), place)


def replicated(mesh: Any, x: Tensor) -> Place:
    """The place of a tensor that all ranks of a mesh have as a whole."""
    from torch.distributed.tensor import Replicate

    return Place(mesh, (Replicate(),) * mesh.ndim, tuple(x.shape), tuple(x.stride()))


def with_placement_of(p: Any, grad: Any) -> Tensor:
    """A gradient in the placement of its parameter: a sum that is still pending, for example, is made."""
    if not (is_distributed(p) and is_distributed(grad)) or tuple(p.placements) == tuple(grad.placements):
        return grad
    return grad.redistribute(p.device_mesh, p.placements)


def group_of(mesh: Any) -> Any:
    """The process group of all ranks of a mesh."""
    if mesh.ndim == 1:
        return mesh.get_group()
    ranks = tuple(mesh.mesh.flatten().tolist())
    return dist.group.WORLD if len(ranks) == dist.get_world_size() else _subgroup(dist.group.WORLD, ranks)


@lru_cache(maxsize=64)
def _subgroup(world: Any, ranks: tuple[int, ...]) -> Any:
    """A process group of these ranks. All of them get here together, and the others do not."""
    return dist.new_group(list(ranks), use_local_synchronization=True)


def trains_together() -> bool:
    """Whether this process is one of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def any_rank(local: Sequence[bool], group: Any = None) -> list[bool]:
    """For each of these: whether it is true on any rank of a process group (None: of all). One collective."""
    flags = torch.tensor(local, dtype=torch.float32, device=_device_of(group))
    dist.all_reduce(flags, dist.ReduceOp.MAX, group=group)
    return [bool(flag) for flag in flags.tolist()]


def agree_on_gradients(distributed: Iterable[Any]) -> None:
    """Give a distributed parameter zeros as its gradient, if this rank has none and another one has one.

    A step that exchanges matrices or adds up norms needs all ranks: one that left a parameter out would make the others
    wait. One collective per mesh.
    """
    meshes: dict[Any, list[Any]] = {}
    for p in distributed:
        meshes.setdefault(p.device_mesh, []).append(p)
    for mesh, params in meshes.items():
        if mesh.size() > 1 and mesh.get_coordinate() is not None:
            somewhere = any_rank([p.grad is not None for p in params], group_of(mesh))
            for p, has_gradient in zip(params, somewhere, strict=True):
                if has_gradient and p.grad is None:
                    p.grad = torch.zeros_like(p)


def _device_of(group: Any) -> torch.device:
    """A device whose tensors a process group can send: the CPU if that is one."""
    types = [pair.partition(":")[0] for pair in dist.get_backend_config(group).split(",")]
    if "cpu" in types:
        return torch.device("cpu")
    return torch.device(types[0], torch.get_device_module(types[0]).current_device())
