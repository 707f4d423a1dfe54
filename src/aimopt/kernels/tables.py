"""Tables: where the tensors of a group lie in memory, one row per parameter, for a kernel that takes them all at once.

    Locator(program, names, "cpu").locate(checked)

decides which parameters a kernel can step, and puts those whose streams are of the same types in one `Table`. The
tables are kept as long as `memory.py` sees the same layout: in a training run only gradients move.
"""

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from aimopt.kernels.memory import Checked, Layout
from aimopt.kernels.program import Program
from aimopt.storage import extent

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


class Reach(NamedTuple):
    """Which parameters a kernel can step, and where they are, for one layout of memory."""

    tables: list[Table]
    unreachable: list[int]  # parameters that take the plain path, by their place in what was gathered
    copied: list[int]  # members whose gradient lies in memory in another order than the parameter


class Located(NamedTuple):
    """The tensors of one step; of the members of the layout, in their order."""

    reach: Reach
    layout: Layout
    params: list[Tensor]
    state: list[Tensor]
    grads: list[Tensor]
    grad_addresses: list[int]

    def laid_out(self) -> "Located":
        """With copies of the gradients that lie in another order than their parameters."""
        if not self.reach.copied:
            return self
        grads, addresses = list(self.grads), list(self.grad_addresses)
        for i in self.reach.copied:
            grads[i] = torch.empty_like(self.params[i], dtype=grads[i].dtype).copy_(grads[i])
            addresses[i] = grads[i].data_ptr()
        return self._replace(grads=grads, grad_addresses=addresses)


class Locator:
    """Finds the tensors of a group, step after step."""

    def __init__(self, program: Program, names: Sequence[str], device_type: str):
        """`names` is the order of a parameter's state, its step count first."""
        self.width = len(names)
        self.scalars = [names.index(name) for name in program.scalars]
        self.buffers = [names.index(name) for name in program.streams[1:-1]]
        self._device_type = device_type
        self._reaches: WeakKeyDictionary[Layout, Reach] = WeakKeyDictionary()

    def __eq__(self, other: object) -> bool:
        """Whether another one locates the same tensors."""
        compared = ("width", "scalars", "buffers", "_device_type")
        return isinstance(other, Locator) and all(getattr(self, x) == getattr(other, x) for x in compared)

    def locate(self, checked: Checked) -> Located:
        """The tensors of a step that was just checked."""
        reach = self._reaches.get(checked.layout)
        if reach is None:
            reach = self._reaches[checked.layout] = self._look(checked)
        members = checked.members
        return Located(reach, checked.layout, members.params, members.state, members.grads, checked.grad_addresses)

    def _look(self, checked: Checked) -> Reach:
        params, grads, ranks = checked.members.params, checked.members.grads, checked.members.ranks
        states = [row[2:] for row in checked.members.rows()]
        scalars, buffers = ([[state[k] for k in places] for state in states] for places in (self.scalars, self.buffers))
        shared = _sharing([(p, *state) for p, state in zip(params, states, strict=True)])
        reachable = [
            i
            for i, (p, grad) in enumerate(zip(params, grads, strict=True))
            if i not in shared
            and p.device.type == self._device_type
            and _are_scalars(p, scalars[i])
            and _are_alike(p, grad, buffers[i])
        ]
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
        reached = {checked.layout.members[i] for i in reachable}
        return Reach(
            list(tables.values()),
            [i for i in range(len(checked.gathered.params)) if i not in reached],
            [i for i in reachable if not _is_in_order(params[i], grads[i])],
        )


def _are_scalars(p: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether these are numbers, all beside the parameter or all on the host."""
    together = len({x.device for x in tensors}) == 1 and (tensors[0].is_cpu or tensors[0].device == p.device)
    return together and all(x.numel() == 1 and x.dtype in (torch.float32, torch.float64) for x in tensors)


def _are_alike(p: Tensor, g: Tensor, buffers: Sequence[Tensor]) -> bool:
    """Whether the streams of a parameter can be walked through side by side."""
    streams = (p, *buffers, g)
    if not all(x.dtype in TYPES for x in streams):
        return False
    types = {TYPES[x.dtype] for x in streams}
    if len({lanes for _, lanes in types}) > 1 or ((FLOAT64 in dict(types)) and len(types) > 1):
        return False
    if p.is_contiguous():
        return all(x.is_contiguous() for x in buffers)
    return _is_dense(p) and all(x.stride() == p.stride() for x in buffers)


def _sharing(written: Sequence[tuple[Tensor, ...]]) -> set[int]:
    """The parameters that share memory with another, or whose own tensors do: a kernel steps all at once."""
    spans = sorted(
        (x.data_ptr(), x.data_ptr() + extent(x), i) for i, own in enumerate(written) for x in own if x.numel()
    )
    shared, end, last = set(), 0, -1
    for begin, stop, i in spans:
        if begin < end:
            shared |= {i, last}
        if stop > end:
            end, last = stop, i
    return shared


def _is_in_order(p: Tensor, grad: Tensor) -> bool:
    """Whether a kernel can walk through a gradient as through its parameter."""
    if grad.is_neg() or grad.is_conj():
        return False
    return grad.is_contiguous() if p.is_contiguous() else grad.stride() == p.stride()


def _is_dense(x: Tensor) -> bool:
    """Whether a tensor fills its memory without gaps or overlaps, in some order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
