"""Records of tensors: their addresses, sizes, dtypes and so on, to be compared with the tensors of the next step.

    known = record(params + state, grads)
    known.compare(params + state, grads)      the present gradients; None if anything else has changed

`NativeRecord` asks torch through its stable C interface, in one call for all tensors, because this runs at every step.
`ListRecord` does the same in Python, for systems without the native library.
"""

import ctypes
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
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


def record(written: list[Tensor], grads: list[Tensor]) -> "NativeRecord | ListRecord":
    """A record of tensors, all of which have a storage."""
    lib, functions = library(), torch_functions()
    if not isinstance(lib, Reason) and functions is not None and _native_agrees_with_python():
        return NativeRecord(written, grads, lib, functions)
    return ListRecord(written, grads)


@lru_cache(maxsize=1)
def _native_agrees_with_python() -> bool:
    """Whether torch's C interface and Python describe a tensor alike."""
    lib, functions = library(), torch_functions()
    assert isinstance(lib, Library)
    x = torch.empty_strided((2, 3), (1, 4), dtype=torch.float64, device="cpu")[:, 1:]
    numbers = NativeRecord([x], [], lib, functions).numbers
    native = dict(zip(TENSOR_RECORD, numbers, strict=False))
    storage_bytes = x.untyped_storage().nbytes()
    expected = dict(address=x.data_ptr(), offset=x.storage_offset(), storage_bytes=storage_bytes, dim=x.dim())
    return expected.items() <= native.items() and numbers[len(TENSOR_RECORD) :] == [*x.shape, *x.stride()]


class NativeRecord:
    """The description of tensors by torch's C interface, and the flags that this interface lacks."""

    def __init__(self, written: list[Tensor], grads: list[Tensor], lib: Library, functions: Any):
        self._lib, self._torch = lib, ctypes.byref(functions)
        self._written = list(map(_cdata, written))
        self._complex = any(x.is_complex() for x in written)
        self._flags = self._read_flags(written, grads)
        self._handles = array("q", map(_cdata, written + grads))
        self._record = array("q", bytes(8 * self._write(self._handles, array("q"))))
        self._write(self._handles, self._record)
        starts, ends = merge_spans((x.data_ptr(), extent(x)) for x in written)
        self._starts, self._ends = array("q", starts), array("q", ends)
        self._extents = array("q", (n for grad in grads for n in (extent(grad), grad.element_size())))
        self._addresses = array("q", bytes(8 * len(grads)))

    @property
    def numbers(self) -> list[int]:
        """The whole record: per tensor `TENSOR_RECORD`, its sizes and its strides."""
        return self._record.tolist()

    def _write(self, tensors: "array[int]", record: "array[int]") -> int:
        length = self._lib.memory_record(self._torch, _start(tensors), len(tensors), _start(record), len(record))
        assert length >= 0, "torch describes every tensor that has a storage"
        return int(length)

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
            _start(self._record),
            _start(self._extents),
            _start(self._starts),
            _start(self._ends),
            len(self._starts),
            _start(self._addresses),
        )
        if comparison == CHANGED:
            return None
        return Gradients(self._addresses.tolist(), comparison == OVERLAPPING)


class ListRecord:
    """The same comparison in Python."""

    def __init__(self, written: list[Tensor], grads: list[Tensor]):
        self._written = list(map(_memory_and_kind, written))
        self._grads = list(map(_kind, grads))
        self._starts, self._ends = merge_spans((x.data_ptr(), extent(x)) for x in written)

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
    """Whether a span overlaps any of the given spans, which are sorted and disjoint."""
    i = bisect_right(ends, start)
    return start < end and i < len(starts) and starts[i] < end


def merge_spans(spans: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The starts and ends of the union of (address, bytes) spans, sorted."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted((start, start + size) for start, size in spans if size):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends
