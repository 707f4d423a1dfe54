"""Records: what torch said of tensors when they were looked at, to be compared with what it says now.

    seen = record(params + state, grads)
    seen.compare(params + state, grads)      where the gradients are; None if anything else has changed

`NativeRecord` asks torch through its stable C interface, for all tensors in one call, because this runs at every step.
`ListRecord` is the same in Python, for where there is no native library.
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

from aimopt.kernels.library import Library, library, torch_functions
from aimopt.storage import extent, has_storage, is_plain, too_short


class Seen(NamedTuple):
    """Gradients as just seen."""

    addresses: list[int]
    overlap: bool  # whether any shares memory with what the step writes


def record(written: list[Tensor], grads: list[Tensor]) -> "NativeRecord | ListRecord":
    """What is known of tensors that have a storage."""
    lib, functions = library(), torch_functions()
    if isinstance(lib, Library) and functions is not None and _native_is_right():
        return NativeRecord(written, grads, lib, functions)
    return ListRecord(written, grads)


@lru_cache(maxsize=1)
def _native_is_right() -> bool:
    """Whether torch's C interface says of a tensor what Python says."""
    lib, functions = library(), torch_functions()
    assert isinstance(lib, Library)
    x = torch.empty_strided((2, 3), (1, 4), dtype=torch.float64, device="cpu")[:, 1:]
    numbers = NativeRecord([x], [], lib, functions).numbers
    expected = [x.data_ptr(), x.storage_offset(), x.untyped_storage().nbytes()]
    return numbers[:3] == expected and numbers[6:] == [x.dim(), *x.shape, *x.stride()]


class NativeRecord:
    """What torch's C interface says of tensors, and the little that it does not say."""

    def __init__(self, written: list[Tensor], grads: list[Tensor], lib: Library, functions: Any):
        self._lib, self._torch = lib, ctypes.byref(functions)
        self._written = list(map(_cdata, written))
        self._complex = any(x.is_complex() for x in written)
        self._flags = self._read_flags(written, grads)
        tensors = array("q", map(_cdata, written + grads))
        self._record = array("q", bytes(8 * self._write(tensors, array("q"))))
        self._write(tensors, self._record)
        starts, ends = united((x.data_ptr(), extent(x)) for x in written)
        self._starts, self._ends = array("q", starts), array("q", ends)
        self._extents = array("q", (n for grad in grads for n in (extent(grad), grad.element_size())))
        self._addresses = array("q", bytes(8 * len(grads)))

    @property
    def numbers(self) -> list[int]:
        """All that is written down: the numbers of `Tensor` in `memory.cpp`, one tensor after the other."""
        return self._record.tolist()

    def _write(self, tensors: "array[int]", record: "array[int]") -> int:
        length = self._lib.memory_record(self._torch, _start(tensors), len(tensors), _start(record), len(record))
        assert length >= 0, "torch knows where a tensor is that has a storage"
        return int(length)

    def _read_flags(self, written: list[Tensor], grads: list[Tensor]) -> tuple[Any, ...]:
        """What the C interface does not tell. Parameters come first; state is lazily negated by nobody."""
        negative = list(map(Tensor.is_neg, written[: len(grads)] + grads))
        conjugate = list(map(Tensor.is_conj, written + grads)) if self._complex else None
        return negative, conjugate, torch.is_inference_mode_enabled()

    def compare(self, written: list[Tensor], grads: list[Tensor]) -> Seen | None:
        """Where the gradients are now; None if anything else has changed."""
        kinds = {*map(type, grads)}
        try:
            tensors = list(map(_cdata, written))
        except AttributeError:  # state that is no tensor
            return None
        if tensors != self._written:  # parts of distributed tensors are other objects at every step
            kinds.update(map(type, written))
            if any(map(Tensor.is_neg, written)) or any(map(Tensor.is_inference, written)):
                return None
        same_size = len(tensors) == len(self._written) and len(grads) == len(self._addresses)
        if not same_size or not all(map(is_plain, kinds)) or self._read_flags(written, grads) != self._flags:
            return None
        asked = array("q", tensors + list(map(_cdata, grads)))
        same = self._lib.memory_holds(
            self._torch,
            _start(asked),
            len(written),
            len(grads),
            _start(self._record),
            _start(self._extents),
            _start(self._starts),
            _start(self._ends),
            len(self._starts),
            _start(self._addresses),
        )
        return Seen(self._addresses.tolist(), same == 2) if same else None


class ListRecord:
    """The same in Python."""

    def __init__(self, written: list[Tensor], grads: list[Tensor]):
        self._written = list(map(_place_and_kind, written))
        self._grads = list(map(_kind, grads))
        self._starts, self._ends = united((x.data_ptr(), extent(x)) for x in written)

    def compare(self, written: list[Tensor], grads: list[Tensor]) -> Seen | None:
        """Where the gradients are now; None if anything else has changed."""
        if list(map(_kind, grads)) != self._grads or any(too_short("", grad) for grad in grads):
            return None
        if list(map(_place_and_kind, written)) != self._written:
            return None
        addresses = [grad.data_ptr() for grad in grads]
        pairs = zip(addresses, grads, strict=True)
        return Seen(addresses, any(touches(a, a + extent(x), self._starts, self._ends) for a, x in pairs))


def _kind(x: Tensor) -> tuple[Any, ...]:
    if not has_storage(x):
        return (type(x),)
    flags = x.is_neg(), x.is_conj(), x.is_inference(), torch.is_inference_mode_enabled()
    return type(x), x.dtype, x.device, x.layout, x.shape, x.stride(), flags


def _place_and_kind(x: Any) -> tuple[Any, ...]:
    if not (isinstance(x, Tensor) and has_storage(x)):
        return (type(x),)
    return x.data_ptr(), x.storage_offset(), x.untyped_storage().nbytes(), *_kind(x)


_cdata = attrgetter("_cdata")


def _start(numbers: "array[int]") -> ctypes.c_void_p:
    return ctypes.c_void_p(numbers.buffer_info()[0])


def touches(start: int, end: int, starts: Sequence[int], ends: Sequence[int]) -> bool:
    """Whether a span shares memory with any of the given ones, which are in order and apart."""
    i = bisect_right(ends, start)
    return start < end and i < len(starts) and starts[i] < end


def united(spans: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Where the union of (address, bytes) begins and ends, in order."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted((start, start + size) for start, size in spans if size):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends
