"""Tables: where the tensors of a group lie in memory, a row each, for a kernel that takes them all at once.

    Surveyor(program, names, "cpu").find(params, ranks, state)

looks which parameters a kernel can reach, and puts those whose streams are of the same types in one `Table`. What it
finds out is kept, and holds as long as the tensors are where they were: in a training run only gradients move.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from aimopt.kernels.program import Program

T = TypeVar("T")
FLOAT32, FLOAT64, BFLOAT16, FLOAT16 = range(4)
# The type of a stream, and how many of them an element is: complex numbers are pairs of reals.
TYPES = {
    torch.float32: (FLOAT32, 1),
    torch.float64: (FLOAT64, 1),
    torch.bfloat16: (BFLOAT16, 1),
    torch.float16: (FLOAT16, 1),
    torch.complex64: (FLOAT32, 2),
    torch.complex128: (FLOAT64, 2),
}


def math_of(types: tuple[int, ...]) -> int:
    """The type that the arithmetic on streams of these types runs in."""
    return FLOAT64 if types[0] == FLOAT64 else FLOAT32


class Table(NamedTuple):
    """Parameters whose streams are of the same types and on the same device."""

    types: tuple[int, ...]  # of the streams
    scalar_types: tuple[int, ...]
    device: torch.device
    scalars_on: torch.device
    members: list[int]
    scalars: list[list[Tensor]]  # of each member, in the order of the program: the step count first
    rows: "array[int]"  # numbers in memory, rank, addresses of the scalars, of the streams; the gradient's is the last

    def of(self, column: "list[T]") -> "list[T]":
        """Of a list with one entry for each parameter, those of this table."""
        return column if len(column) == len(self.members) else [column[i] for i in self.members]


class Survey(NamedTuple):
    """What was found out about the tensors of a group; it holds as long as they are where they were."""

    own: list[Tensor]  # parameters and state: kept, so that no other tensor takes their places in memory
    at: list[int]
    places: frozenset[int]  # the same, apart from the 0 of empty tensors
    contiguous: list[bool]  # the parameters; those that are not are dense all the same
    strides: dict[int, tuple[int, ...]]  # of these
    numels: list[int]  # of the gradients, as of the parameters
    dtypes: list[torch.dtype]  # of the gradients
    has_complex: bool
    tables: list[Table]
    rest: list[int]  # what no kernel can reach

    def holds(self, own: list[Tensor], grads: list[Tensor], contiguous: list[bool]) -> bool:
        """Whether nothing has changed that matters; list against list, because this runs at every step."""
        return (
            not self.rest
            and list(map(Tensor.data_ptr, own)) == self.at
            and list(map(Tensor.numel, grads)) == self.numels
            and list(map(_dtype, grads)) == self.dtypes
            # Autograd lays a gradient out like its parameter: one that lies otherwise is a reason to look closer.
            and ((contiguous == self.contiguous and not self.strides) or self._lie_as_before(own))
        )

    def _lie_as_before(self, params: list[Tensor]) -> bool:
        return all(params[i].is_contiguous() == before for i, before in enumerate(self.contiguous)) and all(
            params[i].stride() == before for i, before in self.strides.items()
        )


class Found(NamedTuple):
    """The tensors of a step: this process's parts of them, gradients in the order of the parameters in memory."""

    survey: Survey
    params: list[Tensor]
    grads: list[Tensor]
    grads_at: list[int]


class Surveyor:
    """Finds the tensors of a group again from step to step."""

    def __init__(self, program: Program, names: Sequence[str], device_type: str):
        """`names` is the order in which `find` gets the state of a parameter, its step count first."""
        self.width = len(names)
        self.scalars = [names.index(name) for name in program.scalars]
        self.buffers = [names.index(name) for name in program.streams[1:-1]]
        self._device_type = device_type
        self._survey: Survey | None = None

    def __eq__(self, other: object) -> bool:
        """Whether another one looks for the same in the same places."""
        sought = ("width", "scalars", "buffers", "_device_type")
        return isinstance(other, Surveyor) and all(getattr(self, x) == getattr(other, x) for x in sought)

    def find(self, params: list[Tensor], grads: list[Tensor], ranks: list[int], state: list[Tensor]) -> Found:
        """Where everything is."""
        if not all(map(_has_storage, {*map(type, grads)})):
            params, grads, state = _localize(params, grads, state)
        contiguous = list(map(Tensor.is_contiguous, grads))
        survey = self._survey
        if survey is None or not survey.holds(params + state, grads, contiguous):
            survey = self._survey = self._look(params, grads, ranks, state)
        grads, grads_at = _laid_out(params, grads, contiguous, survey)
        return Found(survey, params, grads, grads_at)

    def _look(self, params: list[Tensor], grads: list[Tensor], ranks: list[int], state: list[Tensor]) -> Survey:
        rows = [state[i : i + self.width] for i in range(0, len(state), self.width)]
        scalars, buffers = ([[row[k] for k in some] for row in rows] for some in (self.scalars, self.buffers))
        reachable = _apart(
            [
                (i, (p, *buffers[i]))
                for i, (p, g) in enumerate(zip(params, grads, strict=True))
                if p.device.type == self._device_type and _are_scalars(p, scalars[i]) and _are_alike(p, g, buffers[i])
            ]
        )
        tables: dict[Any, Table] = {}
        for i in reachable:
            p = params[i]
            types = tuple(TYPES[x.dtype][0] for x in (p, *buffers[i], grads[i]))
            key = (types, tuple(TYPES[x.dtype][0] for x in scalars[i]), p.device, scalars[i][0].device)
            table = tables.setdefault(key, Table(*key, [], [], array("q")))
            table.members.append(i)
            table.scalars.append(scalars[i])
            addresses = [x.data_ptr() for x in (*scalars[i], p, *buffers[i])]
            table.rows.extend([p.numel() * TYPES[p.dtype][1], ranks[i], *addresses, 0])
        rest = sorted({*range(len(params))} - {*reachable})
        at = [] if rest else [x.data_ptr() for x in params + state]
        contiguous = [p.is_contiguous() for p in params]
        return Survey(
            params + state,
            at,
            frozenset(at) - {0},
            contiguous,
            {i: p.stride() for i, p in enumerate(params) if not contiguous[i]},
            [g.numel() for g in grads],
            [g.dtype for g in grads],
            any(g.is_complex() for g in grads),
            list(tables.values()),
            rest,
        )


_dtype = attrgetter("dtype")


def _are_scalars(p: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether these are numbers, all beside the parameter or all on the host."""
    together = len({x.device for x in tensors}) == 1 and (tensors[0].is_cpu or tensors[0].device == p.device)
    return together and all(x.numel() == 1 and x.dtype in (torch.float32, torch.float64) for x in tensors)


def _are_alike(p: Tensor, g: Tensor, buffers: Sequence[Tensor]) -> bool:
    """Whether the streams of a parameter can be walked through side by side."""
    streams = (p, *buffers, g)
    if not all(_has_storage(type(x)) and x.device == p.device and x.layout == torch.strided for x in streams):
        return False
    if not all(x.dtype in TYPES and x.numel() == p.numel() for x in streams):
        return False
    if any(x.is_conj() or x.is_neg() or (x.data_ptr() == 0 and x.numel() > 0) for x in streams[:-1]):
        return False
    types = {TYPES[x.dtype] for x in streams}
    if len({lanes for _, lanes in types}) > 1 or ((FLOAT64 in dict(types)) and len(types) > 1):
        return False
    if p.is_contiguous():
        return all(x.is_contiguous() for x in buffers)
    return _is_dense(p) and all(x.stride() == p.stride() for x in buffers)


def _apart(candidates: list[tuple[int, tuple[Tensor, ...]]]) -> list[int]:
    """Those whose memory is nobody else's: a kernel steps them all at once."""
    spans = sorted((x.data_ptr(), x.data_ptr() + x.nbytes, i) for i, own in candidates for x in own if x.numel())
    shared, end, last = set(), 0, -1
    for begin, stop, i in spans:
        if begin < end:
            shared |= {i, last}
        if stop > end:
            end, last = stop, i
    return [i for i, _ in candidates if i not in shared]


def _laid_out(
    params: list[Tensor], grads: list[Tensor], contiguous: list[bool], survey: Survey
) -> tuple[list[Tensor], list[int]]:
    """The gradients and where they are: copied, if their elements are not what or where the parameter's order asks."""
    at = [] if survey.rest else list(map(Tensor.data_ptr, grads))
    usual = at and contiguous == survey.contiguous and not survey.strides
    lazy = any(map(Tensor.is_neg, grads)) or (survey.has_complex and any(map(Tensor.is_conj, grads)))
    if usual and not lazy and 0 not in at and survey.places.isdisjoint(at):
        return grads, at
    laid_out, at = list(grads), [0] * len(grads)
    for i in {*range(len(grads))} - {*survey.rest}:
        p, g = params[i], grads[i]
        in_order = contiguous[i] if survey.contiguous[i] else g.stride() == p.stride()
        own = g.data_ptr() != 0 and g.data_ptr() not in survey.places
        if not in_order or g.is_neg() or g.is_conj() or (g.numel() and not own):
            laid_out[i] = torch.empty_like(p, dtype=g.dtype).copy_(g)
        at[i] = laid_out[i].data_ptr()
    return laid_out, at


def _is_dense(x: Tensor) -> bool:
    """Whether a tensor fills its memory without gaps or overlaps, in some order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


@lru_cache(maxsize=256)
def _has_storage(kind: type) -> bool:
    """Whether tensors of this type are what their memory says: those that redefine torch's operations may not be."""
    return kind.__torch_dispatch__ is Tensor.__torch_dispatch__  # type: ignore[attr-defined]


def _localize(
    params: list[Tensor], grads: list[Tensor], state: list[Tensor]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """This process's part of tensors that are spread over several; what is no such tensor stays as it is."""
    width = len(state) // len(params)
    rows = [
        _local((p, g, *state[i * width : (i + 1) * width])) for i, (p, g) in enumerate(zip(params, grads, strict=True))
    ]
    return [row[0] for row in rows], [row[1] for row in rows], [x for row in rows for x in row[2:]]


def _local(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    spread: list[Any] = [x for x in tensors if hasattr(x, "to_local") and hasattr(x, "placements")]
    alike = len({(x.device_mesh, x.placements) for x in spread}) == 1
    if not alike or any(placement.is_partial() for placement in spread[0].placements):
        return tensors
    return tuple(x.to_local() if hasattr(x, "to_local") else x for x in tensors)
