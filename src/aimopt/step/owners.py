"""Matrix geometries on shards: each matrix is gathered on one rank, its owner, and mapped there.

    owned = OnOwners(Spectral(), places)
    metric = owned.update(state, gradients, t, pole)      nothing is sent yet
    owned.apply(shards, metric)                           the shards of the polar factors

A matrix geometry needs whole matrices. To gather every matrix on every rank would repeat the work on all of them. Here
every matrix has an owner, so that the ranks share the work evenly, and two collectives serve all matrices of a list:

    gather     every rank sends its shards to their owners: those of the matrices, of the state and of the gradients
    apply      an owner updates the state of its matrices and maps them, those of one shape together
    scatter    the owners send the shards of the results and of the state back

Between the steps state is sharded (`shards.distributed_buffer`): every rank stores a part of it, and a distributed
checkpoint can be loaded by any number of ranks. A geometry without state, such as `Spectral`, sends its matrices alone.

Who owns a matrix follows from shapes and positions (`owners`), so that no rank has to ask another one. Any geometry
with `matrices_only` is run like this, also a user's own.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from math import prod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch import distributed as dist

from aimopt.parts.component import Geometry, State, StepCount
from aimopt.parts.tensor_list import TensorList
from aimopt.step.shards import Block, Place, distributed_like, group_of, local_part, place_of, replicated


class OnOwners:
    """A matrix geometry, for lists of which some tensors are shards.

    Its places are those of the list's tensors; `buffer_places` has by name those of buffers with shapes of their own.
    Owners are counted from `first_owner`, so that the ranks also share the work of many short lists.
    """

    def __init__(
        self,
        geometry: Geometry,
        places: Sequence[Place | None],
        buffer_places: Sequence[Mapping[str, Place]] = (),
        first_owner: int = 0,
    ):
        self.geometry, self.places, self.buffer_places = geometry, places, buffer_places
        self.first_owner = first_owner
        self.linear = geometry.linear

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> "list[Share]":
        """The matrices of each mesh. Their state is updated when they are first mapped, with the same collectives."""
        gradients = _items(g)
        places = [place_of(x) or place for x, place in zip(gradients, self.places, strict=True)]
        meshes = [place.mesh if place else None for place in places]
        shares = []
        for mesh in dict.fromkeys(meshes):
            chosen = [i for i, other in enumerate(meshes) if other == mesh]
            columns = {
                name: Column(
                    [_items(state[name])[i] for i in chosen],
                    [self._place(name, _items(state[name])[i], i, places[i]) for i in chosen],
                )
                for name in (*self.geometry.buffers(), *self.geometry.reads)
            }
            gradients_here = Column([gradients[i] for i in chosen], [places[i] for i in chosen])
            t_here = _select(t, chosen)
            shares.append(Share(self.geometry, chosen, gradients_here, columns, t_here, pole, self.first_owner))
        return shares

    def _place(self, name: str, buffer: Tensor, i: int, place: Place | None) -> Place | None:
        """Where a state buffer of the i-th matrix is. A number is the same on all ranks."""
        if place is None or (own := place_of(buffer)) is not None:
            return None if place is None else own
        if buffer.ndim == 0:
            return replicated(place.mesh, buffer)
        return self.buffer_places[i].get(name, place) if self.buffer_places else place

    def apply(self, x: Tensor, metric: "list[Share]") -> Tensor:
        """P(x), of shards or of distributed tensors."""
        items = _items(x)
        results: dict[int, Tensor] = {}
        for share in metric:
            results |= zip(share.chosen, share.apply([items[i] for i in share.chosen]), strict=True)
        ordered = [results[i] for i in range(len(items))]
        return _as_list(ordered) if isinstance(x, TensorList) else ordered[0]


def _items(x: Any) -> list[Tensor]:
    return x.items if isinstance(x, TensorList) else [x]


def _as_list(items: Sequence[Tensor]) -> Tensor:
    return cast(Tensor, TensorList(items))


def _select(t: StepCount, chosen: Sequence[int]) -> StepCount:
    return _as_list([t.items[i] for i in chosen]) if isinstance(t, TensorList) else t


class Column(NamedTuple):
    """One tensor per matrix, or its local part, and its place; no places if the matrices are not distributed."""

    items: list[Tensor]
    places: Sequence[Place | None]


class Share:
    """The matrices of one mesh, or those that are not distributed, in one step."""

    def __init__(
        self,
        geometry: Geometry,
        chosen: list[int],
        gradients: Column,
        buffers: dict[str, Column],
        t: StepCount,
        pole: float,
        first_owner: int,
    ):
        self.geometry, self.chosen, self.gradients, self.buffers = geometry, chosen, gradients, buffers
        self._t, self._pole, self._first_owner = t, pole, first_owner
        self._places = [place for place in gradients.places if place is not None]
        self._state: State = {}  # of the matrices that this rank maps
        self._metric: Any = None
        # Without state, an update that gives no metric has done nothing: then nothing but matrices is sent.
        self._must_update = bool(buffers) or self._update({}, gradients.items, t) is not None

    def _update(self, state: State, gradients: list[Tensor], t: StepCount) -> Any:
        return self.geometry.update(state, _as_list(gradients), t, self._pole) if gradients else None

    def apply(self, items: list[Tensor]) -> list[Tensor]:
        """P of these matrices, or of their shards; the first call updates the state."""
        inputs = [Column(items, self.gradients.places)]
        if self._must_update:
            inputs += [*self.buffers.values(), self.gradients]
        if not self._places:
            results = self._map([column.items for column in inputs], range(len(items)))
            self._store({name: _items(x) for name, x in self._state.items()})
            return results
        if self._places[0].mesh.get_coordinate() is None:  # not a rank of this mesh: all shards are empty
            return items
        return self._map_shards(inputs)

    def _map(self, whole: list[list[Tensor]], chosen: Sequence[int]) -> list[Tensor]:
        """P of whole matrices, which are the first column; the others are inputs of the update."""
        matrices, *inputs = whole
        if self._must_update and matrices:
            *columns, gradients = inputs
            self._state = {name: _as_list(x) for name, x in zip(self.buffers, columns, strict=True)}
            self._metric = self._update(self._state, gradients, _select(self._t, chosen))
        self._must_update = False
        return _items(self.geometry.apply(_as_list(matrices), self._metric)) if matrices else []

    def _map_shards(self, inputs: list[Column]) -> list[Tensor]:
        shapes, ranks = tuple(place.shape for place in self._places), self._places[0].mesh.size()
        owner_of = owners(shapes, ranks, self._first_owner % ranks)
        exchange = Exchange(inputs, owner_of)
        results = self._map(exchange.gather(), exchange.mine)
        names = [*self.geometry.buffers()]
        matrices, *state = Exchange([inputs[0], *(self.buffers[name] for name in names)], owner_of).scatter(
            [results, *(_items(self._state[name]) if exchange.mine else [] for name in names)]
        )
        self._store(dict(zip(names, state, strict=True)))
        return [distributed_like(item, shard) for item, shard in zip(inputs[0].items, matrices, strict=True)]

    def _store(self, state: Mapping[str, list[Tensor]]) -> None:
        """Write results to the state buffers of this rank, if they are not there already."""
        for name in self.geometry.buffers():
            for buffer, x in zip(self.buffers[name].items, state.get(name, ()), strict=True):
                if x is not buffer:
                    local_part(buffer).copy_(x)


class Piece(NamedTuple):
    """The part of one tensor that one rank sends to another one."""

    tensor: int
    block: Block

    @property
    def shape(self) -> list[int]:
        """The shape of the part."""
        return [size for _, size in self.block]

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where the part is in the whole tensor."""
        return tuple(slice(first, first + size) for first, size in self.block)


class Exchange:
    """The exchange of tensors of matrices that one mesh distributes, between their shards and the matrices' owners.

    The columns are the local parts; `owner_of` has the owner of each matrix, and so of the tensors of its row.
    """

    def __init__(self, columns: Sequence[Column], owner_of: Sequence[int]):
        self.shards = [local_part(x).contiguous() for column in columns for x in column.items]
        self.places = [place for column in columns for place in column.places if place is not None]
        mesh, self.rows = self.places[0].mesh, len(owner_of)
        self.group = group_of(mesh)
        coordinates = _coordinates(mesh)
        self.ranks = [coordinates[rank] for rank in dist.get_process_group_ranks(self.group)]
        self.me = dist.get_rank(self.group)
        self.mine = [row for row, owner in enumerate(owner_of) if owner == self.me]
        self.owned = [[k for k in range(len(self.shards)) if owner_of[k % self.rows] == rank] for rank in self._all()]

    def gather(self) -> list[list[Tensor]]:
        """The whole tensors of the matrices that this rank owns, column by column."""
        sent = [[self.shards[piece.tensor] for piece in self._gathered(self.me, to)] for to in self._all()]
        expected = [list(self._gathered(rank, self.me)) for rank in self._all()]
        whole = {k: self.shards[k].new_empty(self.places[k].shape) for k in self.owned[self.me]}
        for piece, received in self._send(sent, expected):
            whole[piece.tensor][piece.slices] = received
        tensors, count = list(whole.values()), len(self.mine)
        return [tensors[k * count : (k + 1) * count] for k in range(len(self.shards) // self.rows)]

    def scatter(self, columns: list[list[Tensor]]) -> list[list[Tensor]]:
        """The shards of results, column by column, from the owners."""
        of = dict(zip(self.owned[self.me], [x for column in columns for x in column], strict=True))
        sent = [[of[piece.tensor][piece.slices] for piece in self._scattered(self.me, to)] for to in self._all()]
        expected = [list(self._scattered(rank, self.me)) for rank in self._all()]
        received = {piece.tensor: x for piece, x in self._send(sent, expected)}
        shards = [received[k].to(shard.dtype) for k, shard in enumerate(self.shards)]
        return [shards[i : i + self.rows] for i in range(0, len(shards), self.rows)]

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
                f"a tensor of shape {self.places[k].shape} is distributed as {self.places[k].placements}, so that a "
                "rank holds no block of it; distribute matrices by Shard and Replicate, or use another geometry"
            )
        return Piece(k, block)

    def _send(self, sent: list[list[Tensor]], expected: list[list[Piece]]) -> Iterator[tuple[Piece, Tensor]]:
        """Exchange flat lists of tensors with all ranks, in one collective; return what came, piece by piece."""
        if len(sent) == 1:
            yield from zip(expected[0], sent[0], strict=True)
            return
        dtype = reduce(torch.promote_types, (shard.dtype for shard in self.shards))
        like = self.shards[0].new_empty(0, dtype=dtype)
        flat = torch.cat([like, *(x.reshape(-1).to(like) for to in sent for x in to)])
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
def owners(shapes: tuple[tuple[int, ...], ...], ranks: int, first: int = 0) -> tuple[int, ...]:
    """The owner of each matrix: the most costly one first, each to the rank with the least work so far.

    Of ranks with equal work the next one is taken, counted from `first`.
    """
    costs = [_cost(shape) for shape in shapes]
    work, result = [0] * ranks, [0] * len(shapes)
    for k in sorted(range(len(shapes)), key=lambda k: (-costs[k], k)):
        result[k] = min(range(ranks), key=lambda rank: (work[rank], (rank - first) % ranks))
        work[result[k]] += costs[k]
    return tuple(result)


def _cost(shape: tuple[int, ...]) -> int:
    """The multiplications of a product of the matrix with itself; a kernel is flattened to rows × all else."""
    rows, columns = shape[0], prod(shape[1:])
    return rows * columns * min(rows, columns)
