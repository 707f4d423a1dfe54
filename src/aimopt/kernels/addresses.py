"""Address tables: the memory addresses of a group's tensors, one row per parameter, for a kernel that steps them all.

    Locator(program, names, "cpu").locate(checked)

decides which parameters a kernel can step. Those with streams of the same types share one `AddressTable`. The tables
are reused as long as `memory.py` finds the tensors unchanged: in a training run only gradients move. If other
parameters have gradients than before, tables are put together from the rows of those that do.
"""

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from aimopt.kernels.layout import COMPLEX_TYPES, FLOAT64, TYPES, RowLayout, scale_indices
from aimopt.kernels.memory import CheckedGroup, MemoryRow, MemorySnapshot
from aimopt.kernels.program import Program
from aimopt.parts.tensor_list import LOW_PRECISION
from aimopt.step.gather import Gathered
from aimopt.step.quantization import BLOCK, CODE_OF_DTYPE, scale_name, scale_shape
from aimopt.step.shards import Place, Span

T = TypeVar("T")
# Per dtype: the type of its stream, and the number of stream elements per element (complex numbers are pairs).
STREAM_TYPES: dict[torch.dtype, tuple[int, int]] = {
    **{getattr(torch, kind.name): (code, 1) for code, kind in enumerate(TYPES)},
    **{getattr(torch, name): (code, 2) for name, code in COMPLEX_TYPES.items()},
}

_ROUNDED = (*LOW_PRECISION, *CODE_OF_DTYPE)


class AddressTable(NamedTuple):
    """Parameters of one device with streams of the same types."""

    types: tuple[int, ...]  # of the streams
    scalar_types: tuple[int, ...]
    device: torch.device
    scalar_device: torch.device
    members: list[int]  # indices into the located tensors, ascending
    scalars: list[list[Tensor]]  # per member, in the order of the program: the step count first
    rows: "array[int]"  # one `RowLayout` per member, end to end

    @property
    def layout(self) -> RowLayout:
        """The layout of the rows."""
        return RowLayout(len(self.scalar_types), len(self.types), len(scale_indices(self.types)))

    def select(self, column: "list[T]") -> "list[T]":
        """The entries of this table's members, from a list with one entry per located parameter."""
        return column if len(column) == len(self.members) else [column[i] for i in self.members]


class AddressRow(NamedTuple):
    """One parameter that a kernel can step."""

    kind: tuple[tuple[int, ...], tuple[int, ...], torch.device, torch.device]  # the first fields of `AddressTable`
    scalars: list[Tensor]
    numbers: "array[int]"
    grad_in_order: bool  # whether its gradient has its memory order


class Coverage(NamedTuple):
    """The parameters that a kernel can step, and their addresses, for one snapshot of memory."""

    tables: list[AddressTable]
    unreachable: list[int]  # indices of the gathered parameters that no kernel can step
    reordered: list[int]  # indices of the located parameters with a gradient in another memory order


class LocatedTensors(NamedTuple):
    """The tensors of one step that are plain memory, and the tables of those that a kernel can step."""

    coverage: Coverage
    snapshot: MemorySnapshot
    params: list[Tensor]
    state: list[Tensor]
    grads: list[Tensor]
    grad_addresses: list[int]

    def with_ordered_gradients(self) -> "LocatedTensors":
        """The same, with a copy of each gradient that is not in the memory order of its parameter."""
        if not self.coverage.reordered:
            return self
        grads, addresses = list(self.grads), list(self.grad_addresses)
        for i in self.coverage.reordered:
            grads[i] = torch.empty_like(self.params[i], dtype=grads[i].dtype).copy_(grads[i])
            addresses[i] = grads[i].data_ptr()
        return self._replace(grads=grads, grad_addresses=addresses)


class Locator:
    """Locates the tensors of a group at every step."""

    def __init__(self, program: Program, names: Sequence[str], device_type: str):
        """`names` is the order of a parameter's state; the step count is first."""
        self.width = len(names)
        self.scalars = [names.index(name) for name in program.scalars]
        self.buffers = [names.index(name) for name in program.streams[1:-1]]
        # Per buffer, where its scales are; None if it is never in 8 bits.
        scale_names = map(scale_name, program.streams[1:-1])
        self.scales = [names.index(name) if name in names else None for name in scale_names]
        self._device_type = device_type
        self._rows: dict[int, tuple[MemoryRow, AddressRow | None]] = {}  # by the index of the parameter
        self._coverages: WeakKeyDictionary[MemorySnapshot, Coverage] = WeakKeyDictionary()

    def __eq__(self, other: object) -> bool:
        """Whether another locator finds the same tensors."""
        compared = ("width", "scalars", "buffers", "scales", "_device_type")
        return isinstance(other, Locator) and all(getattr(self, x) == getattr(other, x) for x in compared)

    def locate(self, checked: CheckedGroup) -> LocatedTensors:
        """The tensors of a step that were just checked."""
        coverage = self._coverages.get(checked.snapshot)
        if coverage is None:
            coverage = self._coverages[checked.snapshot] = self._cover(checked)
        plain, addresses = checked.plain, checked.grad_addresses
        return LocatedTensors(coverage, checked.snapshot, plain.params, plain.state, plain.grads, addresses)

    def _cover(self, checked: CheckedGroup) -> Coverage:
        plain, memory_rows = checked.plain, checked.snapshot.plain_rows
        shared = set() if checked.snapshot.is_disjoint else _with_shared_memory(memory_rows)
        tables: dict[Any, AddressTable] = {}
        reached, reordered = set(), []
        for i, (param_index, memory) in enumerate(zip(plain.param_indices, memory_rows, strict=True)):
            known = self._rows.get(param_index)
            if known is None or known[0] is not memory:
                known = self._rows[param_index] = memory, self._address_row(plain, i, memory)
            row = known[1]
            if row is None or i in shared:
                continue
            table = tables.get(row.kind)
            if table is None:
                table = tables[row.kind] = AddressTable(*row.kind, [], [], array("q"))
            table.members.append(i)
            table.scalars.append(row.scalars)
            table.rows.extend(row.numbers)
            reached.add(checked.snapshot.plain_indices[i])
            if not row.grad_in_order:
                reordered.append(i)
        unreachable = [i for i in range(len(checked.gathered.params)) if i not in reached]
        return Coverage(list(tables.values()), unreachable, reordered)

    def _address_row(self, plain: Gathered, i: int, memory: MemoryRow) -> AddressRow | None:
        """The row of one parameter; None if no kernel can step it."""
        p, grad, state = plain.params[i], plain.grads[i], plain.state[i * self.width : (i + 1) * self.width]
        scalars = [state[k] for k in self.scalars]
        buffers = [state[k] for k in self.buffers]
        scales = [None if k is None else state[k] for k in self.scales]
        span = _span((p, *buffers), memory.places[0])
        if (
            span is None
            or p.device.type != self._device_type
            or not _are_scalars(p, scalars)
            or not _are_parallel_streams(p, grad, buffers)
            or not all(map(_has_its_scales, buffers, scales))
        ):
            return None
        types = tuple(STREAM_TYPES[x.dtype][0] for x in (p, *buffers, grad))
        scalar_types = tuple(STREAM_TYPES[x.dtype][0] for x in scalars)
        used = [s for x, s in zip(buffers, scales, strict=True) if s is not None and x.dtype in CODE_OF_DTYPE]
        numbers = address_row((p, *buffers, grad), scalars, plain.param_indices[i], span, used, self._device_type)
        kind = (types, scalar_types, p.device, scalars[0].device)
        return AddressRow(kind, scalars, array("q", numbers), _is_in_order(p, grad))


def _span(written: Sequence[Tensor], place: Place | None) -> Span | None:
    """The positions of a parameter's elements in the whole; None if a row cannot say them. Only rounding needs them."""
    if place is None or not any(x.dtype in _ROUNDED for x in written):
        return Span(0, max(1, written[0].numel()), 0)
    return place.span(written[0])


def address_row(
    streams: Sequence[Tensor],
    scalars: Sequence[Tensor] = (),
    param_index: int = 0,
    span: Span | None = None,
    scales: Sequence[Tensor] = (),
    device_type: str = "cpu",
) -> list[int]:
    """A row of an address table. The parameter is the first stream, the gradient the last one."""
    layout, p = RowLayout(len(scalars), len(streams), len(scales)), streams[0]
    # The kernel of CPUs counts blocks from the beginning of the whole tensor, of which this one may be a shard.
    blocks_before = span.offset // BLOCK if span and device_type == "cpu" else 0
    row = [0] * layout.width
    row[layout.NUMEL], row[layout.PARAM_INDEX] = p.numel() * STREAM_TYPES[p.dtype][1], param_index
    row[layout.OFFSET : layout.OFFSET + len(Span._fields)] = span or (0, 1, 0)
    first_scales = [x.data_ptr() - blocks_before * x.element_size() for x in scales]
    row[layout.FIRST_SCALAR :] = [*(x.data_ptr() for x in scalars), *first_scales, *(x.data_ptr() for x in streams)]
    return row


def _are_scalars(p: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether these are single numbers, all on the parameter's device or all on the host."""
    together = len({x.device for x in tensors}) == 1 and (tensors[0].is_cpu or tensors[0].device == p.device)
    return together and all(x.numel() == 1 and x.dtype in (torch.float32, torch.float64) for x in tensors)


def _are_parallel_streams(p: Tensor, g: Tensor, buffers: Sequence[Tensor]) -> bool:
    """Whether a kernel can read the streams of a parameter element by element in parallel."""
    streams = (p, *buffers, g)
    if not all(x.dtype in STREAM_TYPES for x in streams) or p.dtype in CODE_OF_DTYPE or g.dtype in CODE_OF_DTYPE:
        return False
    types = {STREAM_TYPES[x.dtype] for x in streams}
    if len({per_element for _, per_element in types}) > 1 or ((FLOAT64 in dict(types)) and len(types) > 1):
        return False
    if p.is_contiguous():
        return all(x.is_contiguous() for x in buffers)
    return _is_dense(p) and all(x.stride() == p.stride() for x in buffers)


def _has_its_scales(buffer: Tensor, scales: Tensor | None) -> bool:
    """Whether a buffer has a scale per block, if it is in 8 bits."""
    if buffer.dtype not in CODE_OF_DTYPE:
        return True
    if scales is None or scales.dtype != torch.float32 or scales.device != buffer.device:
        return False
    return scales.shape == scale_shape(buffer.numel()) and scales.is_contiguous()


def _with_shared_memory(rows: Sequence[MemoryRow]) -> set[int]:
    """The parameters that share memory with another one or with their own state: a kernel steps all in parallel."""
    numbers = [row.record.spans for row in rows if row.record is not None]
    spans = sorted((start, end, i) for i, x in enumerate(numbers) for start, end in zip(x[::2], x[1::2], strict=True))
    shared, last_end, last = set(), 0, -1
    for start, end, i in spans:
        if start < last_end:
            shared |= {i, last}
        if end > last_end:
            last_end, last = end, i
    return shared


def _is_in_order(p: Tensor, grad: Tensor) -> bool:
    """Whether a gradient has the memory order of its parameter."""
    if grad.is_neg() or grad.is_conj():
        return False
    return grad.is_contiguous() if p.is_contiguous() else grad.stride() == p.stride()


def _is_dense(x: Tensor) -> bool:
    """Whether a tensor has neither gaps nor overlaps in memory, in any order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
