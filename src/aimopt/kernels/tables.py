"""Tables: where the tensors of a group lie in memory, a row each, for a kernel that takes them all at once.

    Surveyor(program, names, "cpu").find(params, ranks, state)

looks which parameters a kernel can reach, and puts those whose streams are of the same types in one `Table`. What it
finds out is kept, and holds as long as the tensors are where they were: in a training run only gradients move.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aimopt.kernels.program import Program

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
    rows: "array[int]"  # numbers in memory, rank, addresses of the scalars, of the streams; the gradient's is the last

    def of(self, tensors: list[Tensor]) -> list[Tensor]:
        """Those of a list with one for each parameter that belong to this table."""
        return tensors if len(tensors) == len(self.members) else [tensors[i] for i in self.members]


class Survey(NamedTuple):
    """What was found out about the tensors of a group; it holds as long as they are where they were."""

    own: list[Tensor]  # parameters and state: kept, so that their memory stays theirs
    at: list[int]
    numels: list[int]
    dtypes: list[torch.dtype]  # of the gradients
    contiguous: list[bool]
    strided: list[int]  # the parameters that are dense, but not contiguous
    tables: list[Table]
    rest: list[int]  # what no kernel can reach

    def holds(self, own: list[Tensor], grads: list[Tensor]) -> bool:
        """Whether nothing has changed that matters; list against list, because this runs at every step."""
        return (
            not self.rest
            and list(map(Tensor.data_ptr, own)) == self.at
            and list(map(Tensor.numel, grads)) == self.numels
            and list(map(_dtype, grads)) == self.dtypes
        )


class Found(NamedTuple):
    """The tensors of a step: this process's parts of them, gradients in the order of the parameters in memory."""

    survey: Survey
    params: list[Tensor]
    grads: list[Tensor]
    state: list[Tensor]


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

    def find(self, params: list[Tensor], ranks: list[int], state: list[Tensor]) -> Found:
        """Where everything is."""
        grads: list[Any] = [p.grad for p in params]
        if not all(map(_has_storage, {*map(type, params), *map(type, grads)})):
            params, grads, state = _localize(params, grads, state)
        own = params + state
        survey = self._survey
        if survey is None or not survey.holds(own, grads):
            survey = self._survey = self._look(params, grads, ranks, state)
        return Found(survey, params, _laid_out_like(params, grads, survey), state)

    def _look(self, params: list[Tensor], grads: list[Tensor], ranks: list[int], state: list[Tensor]) -> Survey:
        tables: dict[Any, Table] = {}
        rest = []
        for i, (p, g, rank) in enumerate(zip(params, grads, ranks, strict=True)):
            scalars, buffers = ([state[i * self.width + k] for k in some] for some in (self.scalars, self.buffers))
            if p.device.type != self._device_type or not (_are_scalars(p, scalars) and _are_alike(p, g, buffers)):
                rest.append(i)
                continue
            types = tuple(TYPES[x.dtype][0] for x in (p, *buffers, g))
            scalar_types = tuple(TYPES[x.dtype][0] for x in scalars)
            key = (types, scalar_types, p.device, scalars[0].device)
            table = tables.setdefault(key, Table(*key, [], array("q")))
            table.members.append(i)
            addresses = [x.data_ptr() for x in (*scalars, p, *buffers)]
            table.rows.extend([p.numel() * TYPES[p.dtype][1], rank, *addresses, 0])
        contiguous = [p.is_contiguous() for p in params]
        own = params + state
        return Survey(
            own,
            [] if rest else [x.data_ptr() for x in own],
            [p.numel() for p in params],
            [g.dtype for g in grads],
            contiguous,
            [i for i, so in enumerate(contiguous) if not so],
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
    if any(x.is_conj() or x.is_neg() or (x.data_ptr() == 0 and x.numel() > 0) for x in streams):
        return False
    types = {TYPES[x.dtype] for x in streams}
    if len({lanes for _, lanes in types}) > 1 or ((FLOAT64 in dict(types)) and len(types) > 1):
        return False
    if p.is_contiguous():
        return all(x.is_contiguous() for x in buffers)
    return _is_dense(p) and all(x.stride() == p.stride() for x in buffers)


def _laid_out_like(params: list[Tensor], grads: list[Tensor], survey: Survey) -> list[Tensor]:
    """The gradients, copied where their elements lie in another order than the parameter's."""
    contiguous = list(map(Tensor.is_contiguous, grads))
    if contiguous == survey.contiguous and not survey.strided:
        return grads
    other = [i for i, (p, g) in enumerate(zip(survey.contiguous, contiguous, strict=True)) if p and not g]
    other += [i for i in survey.strided if grads[i].stride() != params[i].stride()]
    grads = list(grads)
    for i in {*other} - {*survey.rest}:
        grads[i] = torch.empty_like(params[i], dtype=grads[i].dtype).copy_(grads[i])
    return grads


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
