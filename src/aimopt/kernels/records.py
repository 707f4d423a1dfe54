"""Records of tensors: their addresses, sizes, dtypes and so on, to be compared with the tensors of the next step.

    row = describe([p, *state], grad)         one parameter
    known = record(rows)                      the parameters of a step, in their order
    known.compare(params + state, grads)      the present gradients; None if anything else has changed

`NativeRecord` asks torch through its stable C interface, in one call for all tensors, because this runs at every step.
`ListRecord` does the same in Python, for systems without the native library.
"""

import ctypes
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter, le
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aimopt.kernels.cpu.library import Library, library, torch_functions
from aimopt.kernels.layout import CHANGED, OVERLAPPING, TENSOR_RECORD
from aimopt.messages.reason import Reason
from aimopt.step.storage import extent, has_storage, is_plain, why_too_short


class Gradients(NamedTuple):
    """The present gradients."""

    addresses: list[int]
    overlap: bool  # whether any of them overlaps memory that the step writes


def describe(written: Sequence[Tensor], grad: Tensor) -> "NativeRow | ListRow":
    """A row of a record: a parameter, its state and its gradient, all of which have a storage and were just checked."""
    lib, functions = library(), torch_functions()
    if not isinstance(lib, Reason) and functions is not None and _native_agrees_with_python():
        return NativeRow.of(written, grad)
    return ListRow.of(written, grad)


def record(rows: "Sequence[NativeRow | ListRow]") -> "NativeRecord | ListRecord":
    """A record of rows, in their order. One of rows of both kinds is equal to no tensors."""
    native = [row for row in rows if isinstance(row, NativeRow)]
    if native and len(native) == len(rows):
        return NativeRecord(native)
    return ListRecord([row for row in rows if isinstance(row, ListRow)])


@lru_cache(maxsize=1)
def _native_agrees_with_python() -> bool:
    """Whether torch's C interface and Python describe a tensor alike."""
    x = torch.empty_strided((2, 3), (1, 4), dtype=torch.float64, device="cpu")[:, 1:]
    numbers = array("q", _native_numbers([x])).tolist()
    native = dict(zip(TENSOR_RECORD, numbers, strict=False))
    storage_bytes = x.untyped_storage().nbytes()
    expected = dict(address=x.data_ptr(), offset=x.storage_offset(), storage_bytes=storage_bytes, dim=x.dim())
    return expected.items() <= native.items() and numbers[len(TENSOR_RECORD) :] == [*x.shape, *x.stride()]


def _native_numbers(tensors: Sequence[Tensor]) -> bytes:
    """What torch's C interface says: per tensor `TENSOR_RECORD`, its sizes and its strides."""
    lib = library()
    assert isinstance(lib, Library)
    handles, functions = array("q", map(_cdata, tensors)), ctypes.byref(torch_functions())
    numbers = array("q", bytes(8 * sum(len(TENSOR_RECORD) + 2 * x.dim() for x in tensors)))
    length = lib.memory_record(functions, _start(handles), len(handles), _start(numbers), len(numbers))
    assert length == len(numbers), "torch describes every tensor that has a storage"
    return numbers.tobytes()


class NativeRow(NamedTuple):
    """One parameter as torch's C interface describes it. It refers to no tensor, so that it keeps none alive."""

    param: int  # `_cdata`
    state: list[int]
    param_numbers: bytes  # `_native_numbers`
    state_numbers: bytes
    grad_numbers: bytes
    grad_extent: bytes  # two numbers: the bytes that the gradient spans, and those of one element
    grad_is_negative: bool  # lazily, as a view; tensors that a step writes are not
    grad_is_conjugate: bool
    is_complex: bool
    inference_mode: bool
    spans: "array[int]"  # of the memory that a step writes: start, end, start, end, …

    @classmethod
    def of(cls, written: Sequence[Tensor], grad: Tensor) -> "NativeRow":
        """The row of a parameter, its state and its gradient."""
        param, *state = map(_cdata, written)
        numbers = _native_numbers([*written, grad])
        of_param, of_grad = (8 * (len(TENSOR_RECORD) + 2 * x.dim()) for x in (written[0], grad))
        return cls(
            param,
            state,
            numbers[:of_param],
            numbers[of_param:-of_grad],
            numbers[-of_grad:],
            array("q", (extent(grad), grad.element_size())).tobytes(),
            grad.is_neg(),
            grad.is_conj(),
            any(x.is_complex() for x in written),
            torch.is_inference_mode_enabled(),
            _spans(written),
        )


class NativeRecord:
    """The description of tensors by torch's C interface, and the flags that this interface lacks."""

    def __init__(self, rows: Sequence[NativeRow]):
        lib = library()
        assert isinstance(lib, Library)
        self._lib, self._torch = lib, ctypes.byref(torch_functions())
        # This runs whenever other parameters have gradients: column by column is faster than row by row.
        params, states, *numbers, extents, negative, conjugate, are_complex, modes, _ = zip(*rows, strict=True)
        self._written = [*params, *chain.from_iterable(states)]
        self._handles = array("q", self._written + [0] * len(rows))
        self._numbers = array("q", b"".join(chain.from_iterable(numbers)))
        self._starts, self._ends = _starts_and_ends(rows)
        self.is_disjoint = bool(lib.memory_sort(_start(self._starts), _start(self._ends), len(self._starts)))
        self._extents = array("q", b"".join(extents))
        self._addresses = array("q", bytes(8 * len(rows)))
        self._complex = any(are_complex)
        self._flags = (
            [False] * len(rows) + [*negative],
            [False] * len(self._written) + [*conjugate] if self._complex else None,
            modes[0] if len({*modes}) == 1 else None,
        )

    def _read_flags(self, written: list[Tensor], grads: list[Tensor]) -> tuple[Any, ...]:
        """The flags that the C interface lacks. Parameters come first; nothing negates state lazily."""
        negative = list(map(Tensor.is_neg, written[: len(grads)] + grads))
        conjugate = list(map(Tensor.is_conj, written + grads)) if self._complex else None
        return negative, conjugate, torch.is_inference_mode_enabled()

    def compare(self, written: list[Tensor], grads: list[Tensor]) -> Gradients | None:
        """The present gradients; None if anything else has changed."""
        kinds = {*map(type, grads)}
        try:
            tensors = list(map(_cdata, written))
        except AttributeError:  # a state value that is not a tensor
            return None
        if len(tensors) != len(self._written) or len(grads) != len(self._addresses):
            return None
        handles = self._handles
        if tensors != self._written:  # local parts of distributed tensors are new objects at every step
            kinds.update(map(type, written))
            if any(map(Tensor.is_neg, written)) or any(map(Tensor.is_inference, written)):
                return None
            handles = array("q", tensors) + handles[len(tensors) :]
        if not all(map(is_plain, kinds)) or self._read_flags(written, grads) != self._flags:
            return None
        handles[len(tensors) :] = array("q", list(map(_cdata, grads)))
        comparison = self._lib.memory_compare(
            self._torch,
            _start(handles),
            len(written),
            len(grads),
            _start(self._numbers),
            _start(self._extents),
            _start(self._starts),
            _start(self._ends),
            len(self._starts),
            _start(self._addresses),
        )
        if comparison == CHANGED:
            return None
        return Gradients(self._addresses.tolist(), comparison == OVERLAPPING)


class ListRow(NamedTuple):
    """One parameter as Python describes it."""

    param: tuple[Any, ...]  # `_memory_and_kind`
    state: list[tuple[Any, ...]]
    grad: tuple[Any, ...]  # `_kind`
    spans: "array[int]"  # of the memory that a step writes: start, end, start, end, …

    @classmethod
    def of(cls, written: Sequence[Tensor], grad: Tensor) -> "ListRow":
        """The row of a parameter, its state and its gradient."""
        param, *state = map(_memory_and_kind, written)
        return cls(param, state, _kind(grad), _spans(written))


class ListRecord:
    """The same comparison in Python."""

    def __init__(self, rows: Sequence[ListRow]):
        self._written = [row.param for row in rows] + [x for row in rows for x in row.state]
        self._grads = [row.grad for row in rows]
        self._starts, self._ends = map(sorted, _starts_and_ends(rows))
        self.is_disjoint = all(map(le, self._ends, self._starts[1:]))

    def compare(self, written: list[Tensor], grads: list[Tensor]) -> Gradients | None:
        """The present gradients; None if anything else has changed."""
        if list(map(_kind, grads)) != self._grads or any(why_too_short("", grad) for grad in grads):
            return None
        if list(map(_memory_and_kind, written)) != self._written:
            return None
        addresses = [grad.data_ptr() for grad in grads]
        pairs = zip(addresses, grads, strict=True)
        return Gradients(addresses, any(overlaps(a, a + extent(x), self._starts, self._ends) for a, x in pairs))


def _kind(x: Tensor) -> tuple[Any, ...]:
    if not has_storage(x):
        return (type(x),)
    flags = x.is_neg(), x.is_conj(), x.is_inference(), torch.is_inference_mode_enabled()
    return type(x), x.dtype, x.device, x.layout, x.shape, x.stride(), flags


def _memory_and_kind(x: Any) -> tuple[Any, ...]:
    if not (isinstance(x, Tensor) and has_storage(x)):
        return (type(x),)
    return x.data_ptr(), x.storage_offset(), x.untyped_storage().nbytes(), *_kind(x)


_cdata = attrgetter("_cdata")


def _start(numbers: "array[int]") -> ctypes.c_void_p:
    return ctypes.c_void_p(numbers.buffer_info()[0])


def overlaps(start: int, end: int, starts: Sequence[int], ends: Sequence[int]) -> bool:
    """Whether a span overlaps one of those with the given starts and ends, which are sorted."""
    ended = bisect_right(ends, start)  # it overlaps one if more of them begin before its end
    return start < end and ended < len(starts) and starts[ended] < end


def _spans(tensors: Iterable[Tensor]) -> "array[int]":
    """The starts and ends of the memory of these tensors, without empty ones."""
    spans = ((x.data_ptr(), x.data_ptr() + extent(x)) for x in tensors if x.numel())
    return array("q", chain.from_iterable(spans))


def _starts_and_ends(rows: "Sequence[NativeRow | ListRow]") -> "tuple[array[int], array[int]]":
    spans = array("q", b"".join(row.spans for row in rows))
    return spans[::2], spans[1::2]
