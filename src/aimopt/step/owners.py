"""Matrix geometries on shards: each matrix is gathered on one rank, its owner, and mapped there.

    OnOwners(Spectral(), places).apply(shards, None)      the shards of the polar factors

A matrix geometry needs whole matrices. To gather every matrix on every rank would repeat the work on all of them. Here
every matrix has an owner, so that the ranks share the work evenly, and two collectives serve all matrices of a list:

    gather     every rank sends its shards to their owners
    apply      an owner maps its matrices, those of one shape together
    scatter    the owners send the shards of the results back

Who owns a matrix follows from the shapes alone (`owners`), so that no rank has to ask another one. Any geometry with
`matrices_only` and without state is run like this, also a user's own.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch import distributed as dist

from aimopt.parts.component import Geometry
from aimopt.parts.tensor_list import TensorList
from aimopt.step.shards import Block, Place, group_of, is_distributed, local_part, place_of


class OnOwners:
    """A matrix geometry, for lists of which some tensors are shards. Its places are those of the list's tensors."""

    def __init__(self, geometry: Geometry, places: Sequence[Place | None]):
        self.geometry, self.places = geometry, places
        self.linear = geometry.linear

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        """P(x), of shards or of distributed tensors."""
        assert metric is None, "a geometry with state is refused"
        items = x.items if isinstance(x, TensorList) else [x]
        places = [place_of(item) or place for item, place in zip(items, self.places, strict=True)]
        results: dict[int, Tensor] = {}
        for mesh in dict.fromkeys(place.mesh if place else None for place in places):
            indices = [i for i, place in enumerate(places) if (place.mesh if place else None) == mesh]
            chosen = [items[i] for i in indices]
            mapped = self._map(chosen) if mesh is None else self._map_shards(chosen, [places[i] for i in indices])
            results |= zip(indices, mapped, strict=True)
        ordered = [results[i] for i in range(len(items))]
        return cast(Tensor, TensorList(ordered)) if isinstance(x, TensorList) else ordered[0]

    def _map(self, matrices: list[Tensor]) -> list[Tensor]:
        if not matrices:
            return []
        return cast(TensorList, self.geometry.apply(cast(Tensor, TensorList(matrices)), None)).items

    def _map_shards(self, items: list[Tensor], places: Sequence[Place | None]) -> list[Tensor]:
        shards = [local_part(item).contiguous() for item in items]
        known = [place for place in places if place is not None]
        if known[0].mesh.get_coordinate() is not None:  # else: not a rank of this mesh, and all shards are empty
            exchange = Exchange(known)
            shards = exchange.scatter(self._map(exchange.gather(shards)), shards)
        return [_distributed_like(item, shard) for item, shard in zip(items, shards, strict=True)]


def _distributed_like(x: Any, local: Tensor) -> Tensor:
    """A local part as the kind of tensor that x is."""
    if not is_distributed(x):
        return local
    kind: Any = type(x)
    whole: Tensor = kind.from_local(
        local, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride()
    )
    return whole


class Piece(NamedTuple):
    """The part of one matrix that one rank sends to another one."""

    matrix: int
    block: Block

    @property
    def shape(self) -> list[int]:
        """The shape of the part."""
        return [size for _, size in self.block]

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where the part is in the whole matrix."""
        return tuple(slice(first, first + size) for first, size in self.block)


class Exchange:
    """The exchange of matrices that are distributed over one mesh, between their shards and their owners."""

    def __init__(self, places: Sequence[Place]):
        mesh = places[0].mesh
        self.group = group_of(mesh)
        self.places = places
        coordinates = _coordinates(mesh)
        self.ranks = [coordinates[rank] for rank in dist.get_process_group_ranks(self.group)]
        self.me = dist.get_rank(self.group)
        self.owners = owners(tuple(place.shape for place in places), len(self.ranks))
        self.owned: list[list[int]] = [[] for _ in self.ranks]
        for k, owner in enumerate(self.owners):
            self.owned[owner].append(k)
        self.mine = self.owned[self.me]

    def gather(self, shards: list[Tensor]) -> list[Tensor]:
        """The whole matrices that this rank owns, from the shards of all ranks."""
        sent = [[shards[piece.matrix] for piece in self._gathered(self.me, to)] for to in self._all()]
        expected = [list(self._gathered(rank, self.me)) for rank in self._all()]
        whole = {k: shards[k].new_empty(self.places[k].shape) for k in self.mine}
        for piece, received in self._send(sent, expected, shards[0]):
            whole[piece.matrix][piece.slices] = received
        return list(whole.values())

    def scatter(self, results: list[Tensor], shards: list[Tensor]) -> list[Tensor]:
        """The shards of the results, from the owners."""
        of = dict(zip(self.mine, results, strict=True))
        sent = [[of[piece.matrix][piece.slices] for piece in self._scattered(self.me, to)] for to in self._all()]
        expected = [list(self._scattered(rank, self.me)) for rank in self._all()]
        received = {piece.matrix: x for piece, x in self._send(sent, expected, shards[0])}
        return [received[k] for k in range(len(self.places))]

    def _all(self) -> range:
        return range(len(self.ranks))

    def _gathered(self, sender: int, owner: int) -> Iterator[Piece]:
        """What a rank sends to an owner. Of several replicas, the one with the owner's coordinates sends."""
        for k in self.owned[owner]:
            replicated = [d for d, placement in enumerate(self.places[k].placements) if placement.is_replicate()]
            if all(self.ranks[sender][d] == self.ranks[owner][d] for d in replicated):
                yield self._piece(k, sender)

    def _scattered(self, owner: int, receiver: int) -> Iterator[Piece]:
        """What an owner sends to a rank."""
        return (self._piece(k, receiver) for k in self.owned[owner])

    def _piece(self, k: int, rank: int) -> Piece:
        block = self.places[k].block_at(self.ranks[rank])
        if block is None:
            raise RuntimeError(
                f"a matrix of shape {self.places[k].shape} is distributed as {self.places[k].placements}, so that a "
                "rank holds no block of it; distribute matrices by Shard and Replicate, or use another geometry"
            )
        return Piece(k, block)

    def _send(
        self, sent: list[list[Tensor]], expected: list[list[Piece]], like: Tensor
    ) -> Iterator[tuple[Piece, Tensor]]:
        """Exchange flat lists of tensors with all ranks, in one collective; return what came, piece by piece."""
        if len(sent) == 1:
            yield from zip(expected[0], sent[0], strict=True)
            return
        flat = torch.cat([like.new_empty(0), *(x.reshape(-1) for to in sent for x in to)])
        sizes = [[prod(piece.shape) for piece in pieces] for pieces in expected]
        received = like.new_empty(sum(map(sum, sizes)))
        dist.all_to_all_single(
            received, flat, [*map(sum, sizes)], [sum(x.numel() for x in to) for to in sent], group=self.group
        )
        pieces = [piece for pieces in expected for piece in pieces]
        for piece, part in zip(pieces, received.split([n for row in sizes for n in row]), strict=True):
            yield piece, part.view(piece.shape)


def _coordinates(mesh: Any) -> dict[int, tuple[int, ...]]:
    """The coordinate of each rank in a mesh."""
    ranks = mesh.mesh
    return {int(ranks[index]): index for index in _indices(tuple(ranks.shape))}


def _indices(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [tuple(index) for index in torch.cartesian_prod(*map(torch.arange, shape)).view(-1, len(shape)).tolist()]


@lru_cache(maxsize=256)
def owners(shapes: tuple[tuple[int, ...], ...], ranks: int) -> tuple[int, ...]:
    """The owner of each matrix: the most costly one first, each to the rank with the least work so far."""
    costs = [_cost(shape) for shape in shapes]
    work, result = [0] * ranks, [0] * len(shapes)
    for k in sorted(range(len(shapes)), key=lambda k: (-costs[k], k)):
        result[k] = min(range(ranks), key=lambda rank: (work[rank], rank))
        work[result[k]] += costs[k]
    return tuple(result)


def _cost(shape: tuple[int, ...]) -> int:
    """The multiplications of a product of the matrix with itself; a kernel is flattened to rows × all else."""
    rows, columns = shape[0], prod(shape[1:])
    return rows * columns * min(rows, columns)
