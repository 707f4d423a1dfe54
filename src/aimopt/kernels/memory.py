"""The memory of a step's tensors, checked before anything follows an address into it.

Users change tensors between steps: `p.data = other`, `p.untyped_storage().resize_(0)`, `p.grad = p.detach()`. What was
learned about tensors in one step is used in the next one only if it is still so:

    memory = GroupMemory()
    checked = memory.check(gathered)     raises a sentence for tensors that no step can work on
    checked.layout is before.layout      nothing has changed that a kernel relies on, apart from gradients' addresses

A first look at tensors is thorough. Later ones ask torch for all tensors in one native call, and compare what it says
with what it said: that runs at every step.
"""

import ctypes
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aimopt.components import scalar_one
from aimopt.gathering import Gathered
from aimopt.kernels.library import Library, library, torch_functions

MAPPINGS = Path("/proc/self/maps")


class Unusable(RuntimeError):
    """Tensors that no step can work on; nothing was changed."""


def unusable(p: Tensor, grad: Tensor, buffers: Mapping[str, Any], scalars: Mapping[str, Any]) -> str | None:
    """Why a parameter cannot be stepped, or None: whatever torch would only notice half way, or not at all."""
    if torch._C._functorch.is_batchedtensor(grad) and not torch._C._functorch.is_batchedtensor(p):
        return "its gradient is one of several in torch.vmap; call step outside of it, with the gradient to follow"
    checks = [_unreadable("it", p, p), _unwritable("it", p), _unreadable("its gradient", grad, p)]
    for key, x in buffers.items():
        name = f"its state {key!r}"
        if not isinstance(x, Tensor):
            return f"{name} is a {type(x).__name__}, not a tensor"
        checks += [_unreadable(name, x, p), _unwritable(name, x)]
    for key, x in scalars.items():
        if not (isinstance(x, Tensor) and x.numel() == 1 and x.is_floating_point()):
            kind = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            return f"its state {key!r} must be a tensor of one real number, and is {kind}"
        checks += [_too_short(f"its state {key!r}", x), _unwritable(f"its state {key!r}", x)]
    return next((reason for reason in checks if reason), None)


def _unreadable(name: str, x: Tensor, p: Tensor) -> str | None:
    if x.shape != p.shape:
        return (
            f"it has shape {tuple(p.shape)} and {name.replace('its', 'the')} {tuple(x.shape)}; if you replaced its "
            "data, compute its gradient again and remove its state (del optimizer.state[p])"
        )
    if x.device != p.device:
        return f"it is on {p.device} and {name.replace('its', 'the')} on {x.device}; move them to the same device"
    if x.layout != torch.strided:
        return f"{name} has layout {x.layout}, and only strided tensors can be stepped; use .to_dense()"
    if not (x.is_floating_point() or x.is_complex()) or x.is_complex() != p.is_complex():
        return f"{name} has dtype {x.dtype}, which does not fit a parameter of dtype {p.dtype}"
    return _too_short(name, x)


def _too_short(name: str, x: Tensor) -> str | None:
    if not has_storage(x) or x.numel() == 0:
        return None
    last = x.storage_offset() + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    needed, there = (last + 1) * x.element_size(), x.untyped_storage().nbytes()
    if needed <= there:
        return None
    return f"{name} needs {needed} bytes of memory and its storage holds {there}; was the storage freed or shortened?"


def _unwritable(name: str, x: Tensor) -> str | None:
    if is_expanded(x):
        return f"{name} is expanded, so that several elements share one place in memory; use .clone()"
    if x.is_neg() or x.is_conj():
        return f"{name} is a lazily negated or conjugated view; use .resolve_neg().resolve_conj()"
    if x.is_inference() and not torch.is_inference_mode_enabled():
        return f"{name} was made in torch.inference_mode(), and can only be changed there; use .clone() outside of it"
    return None


def is_expanded(x: Tensor) -> bool:
    """Whether several elements of a strided tensor share one place in memory, as far as torch itself looks."""
    pairs = zip(x.shape, x.stride(), strict=True)
    return x.numel() > 0 and any(stride == 0 and size > 1 for size, stride in pairs)


def has_storage(x: Tensor) -> bool:
    """Whether a tensor is what its memory says: one whose type redefines torch's operations may not be."""
    return _is_plain(type(x)) and not x.is_meta and torch._C._has_storage(x) and not x._is_zerotensor()


@lru_cache(maxsize=256)
def _is_plain(kind: type) -> bool:
    return kind.__torch_dispatch__ is Tensor.__torch_dispatch__  # type: ignore[attr-defined]


class Layout:
    """The memory of a group's tensors as it was seen: what a step writes stays where it was, gradients may move."""

    def __init__(self, gathered: Gathered):
        width = len(gathered.state) // len(gathered.params) if gathered.params else 1
        states = [gathered.state[i : i + width] for i in range(0, len(gathered.state), width)]
        rows = zip(gathered.params, gathered.grads, states, strict=True)
        plain = [all(map(has_storage, (p, grad, *state))) for p, grad, state in rows]
        self._count = len(plain)
        self.members = [i for i, is_plain in enumerate(plain) if is_plain]
        self.others = [i for i, is_plain in enumerate(plain) if not is_plain]  # their tensors are no plain memory
        members = gathered.only(self.members)
        self._ranks = members.ranks
        self._record = record(members.params + members.state, members.grads)

    def look(self, gathered: Gathered) -> "Seen | None":
        """Where the gradients are now; None if anything else has changed."""
        if len(gathered.params) != self._count:
            return None
        members = gathered.only(self.members)
        if members.ranks != self._ranks:
            return None
        return self._record.compare(members.params + members.state, members.grads)


class Seen(NamedTuple):
    """Gradients as just seen."""

    addresses: list[int]
    overlap: bool  # whether any shares memory with what the step writes


def record(written: list[Tensor], grads: list[Tensor]) -> "NativeRecord | ListRecord":
    """What is known of tensors, to be compared with them later."""
    lib, functions = library(), torch_functions()
    if isinstance(lib, Library) and functions is not None and not _inside_a_transform() and _native_is_right():
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
    """What torch says of tensors, written down and compared in one call of the native library."""

    def __init__(self, written: list[Tensor], grads: list[Tensor], lib: Library, functions: Any):
        self._lib, self._torch = lib, ctypes.byref(functions)
        self._written = list(map(_cdata, written))
        self._negative = list(map(Tensor.is_neg, grads))
        self._complex = any(x.is_complex() for x in written)
        self._conjugate = list(map(Tensor.is_conj, written + grads)) if self._complex else []
        tensors = array("q", map(_cdata, written + grads))
        self._record = array("q", bytes(8 * self._write(tensors, array("q"))))
        self._write(tensors, self._record)
        starts, ends = _united((x.data_ptr(), _extent(x)) for x in written)
        self._starts, self._ends = array("q", starts), array("q", ends)
        self._extents = array("q", (n for grad in grads for n in (_extent(grad), grad.element_size())))
        self._addresses = array("q", bytes(8 * len(grads)))

    @property
    def numbers(self) -> list[int]:
        """All that is written down: the numbers of `Tensor` in `memory.cpp`, one tensor after the other."""
        return self._record.tolist()

    def _write(self, tensors: "array[int]", record: "array[int]") -> int:
        length = self._lib.memory_record(self._torch, _start(tensors), len(tensors), _start(record), len(record))
        assert length >= 0, "torch knows where a tensor is that has a storage"
        return int(length)

    def compare(self, written: list[Tensor], grads: list[Tensor]) -> Seen | None:
        """Where the gradients are now; None if anything else has changed."""
        try:
            tensors = list(map(_cdata, written))
        except AttributeError:  # state that is no tensor
            return None
        if tensors != self._written or list(map(Tensor.is_neg, grads)) != self._negative or _inside_a_transform():
            return None
        if self._complex and list(map(Tensor.is_conj, written + grads)) != self._conjugate:
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
    """The same in Python, where there is no native library."""

    def __init__(self, written: list[Tensor], grads: list[Tensor]):
        self._written = list(map(_place_and_kind, written))
        self._grads = list(map(_kind, grads))
        self._starts, self._ends = _united((x.data_ptr(), _extent(x)) for x in written)

    def compare(self, written: list[Tensor], grads: list[Tensor]) -> Seen | None:
        """Where the gradients are now; None if anything else has changed."""
        if list(map(_kind, grads)) != self._grads or any(_too_short("", grad) for grad in grads):
            return None
        if list(map(_place_and_kind, written)) != self._written:
            return None
        addresses = [grad.data_ptr() for grad in grads]
        pairs = zip(addresses, grads, strict=True)
        return Seen(addresses, any(touches(a, a + _extent(x), self._starts, self._ends) for a, x in pairs))


def _kind(x: Tensor) -> tuple[Any, ...]:
    flags = x.is_neg(), x.is_conj(), x._is_zerotensor()
    return type(x), x.dtype, x.device, x.layout, x.shape, x.stride() if x.layout == torch.strided else (), flags


def _place_and_kind(x: Any) -> tuple[Any, ...]:
    if not (isinstance(x, Tensor) and has_storage(x)):
        return (type(x),)
    return id(x), x.data_ptr(), x.storage_offset(), x.untyped_storage().nbytes(), *_kind(x)


_cdata = attrgetter("_cdata")


def _start(numbers: "array[int]") -> ctypes.c_void_p:
    return ctypes.c_void_p(numbers.buffer_info()[0])


def _inside_a_transform() -> bool:
    """Whether this is inside torch.vmap and the like, where a tensor may stand for others."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def touches(start: int, end: int, starts: Sequence[int], ends: Sequence[int]) -> bool:
    """Whether a span shares memory with any of the given ones, which are in order and apart."""
    i = bisect_right(ends, start)
    return start < end and i < len(starts) and starts[i] < end


def _extent(x: Tensor) -> int:
    """How many bytes lie between a tensor's first element and the end of its last one."""
    if x.numel() == 0:
        return 0
    return (1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))) * x.element_size()


def _united(spans: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
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


def _read_only_mappings() -> Iterator[tuple[int, int]]:
    """(address, bytes) of what the process may not write to, where the system tells."""
    try:
        lines = MAPPINGS.read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        span, mode = line.split(maxsplit=2)[:2]
        if "w" not in mode:
            start, end = (int(address, 16) for address in span.split("-"))
            yield start, end - start


class Checked(NamedTuple):
    """The tensors of a step as just seen."""

    gathered: Gathered  # gradients that share memory with what the step writes are copies
    layout: Layout
    members: Gathered  # those that are plain memory; of tensors spread over processes, the part of this one
    grad_addresses: list[int]  # of the members


class GroupMemory:
    """The memory of one parameter group's tensors, checked at every step."""

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._writable: set[tuple[int, int]] = set()

    def check(self, gathered: Gathered, optimizer: str) -> Checked:
        """Look at the tensors of a step, or raise `Unusable`, which names the optimizer's class."""
        local = localize(gathered)
        seen = self._layout.look(local) if self._layout is not None else None
        if self._layout is None or seen is None:
            self._layout = None
            self._refuse_unusable(local, optimizer)
            layout = Layout(local)
            seen = layout.look(local)
            assert seen is not None
            self._layout = layout
        elif self._layout.others:
            refuse_unusable(local.only(self._layout.others), optimizer)
        members = local.only(self._layout.members)
        if seen.overlap:
            grads = [grad.clone() for grad in gathered.grads]
            return self.check(gathered._replace(grads=grads), optimizer)
        return Checked(gathered, self._layout, members, seen.addresses)

    def _refuse_unusable(self, gathered: Gathered, optimizer: str) -> None:
        refuse_unusable(gathered, optimizer)
        width = len(gathered.state) // len(gathered.params) if gathered.params else 1
        written = [(i // width, x) for i, x in enumerate(gathered.state)] + list(enumerate(gathered.params))
        written = [(i, x) for i, x in written if x.device.type == "cpu" and x.numel() and has_storage(x)]
        spans = {(x.data_ptr(), _extent(x)) for _, x in written}
        if not spans <= self._writable:
            starts, ends = _united(_read_only_mappings())
            for i, x in written:
                if touches(x.data_ptr(), x.data_ptr() + _extent(x), starts, ends):
                    raise _refusal(gathered, i, optimizer, "it or its state lies in read-only memory; use .clone()")
        self._writable = spans


def refuse_unusable(gathered: Gathered, optimizer: str) -> None:
    """Raise `Unusable` for the first parameter that cannot be stepped."""
    buffers = gathered.parts.buffers()
    numbers = {"step", *(name for name, initial in buffers.items() if initial is scalar_one)}
    states = gathered.states() if gathered.state else [{}] * len(gathered.params)
    for i, (p, grad, state) in enumerate(zip(gathered.params, gathered.grads, states, strict=True)):
        tensors = {name: x for name, x in state.items() if name not in numbers}
        scalars = {name: x for name, x in state.items() if name in numbers}
        if reason := unusable(p, grad, tensors, scalars):
            raise _refusal(gathered, i, optimizer, reason)


def _refusal(gathered: Gathered, i: int, optimizer: str, reason: str) -> Unusable:
    return Unusable(f"{optimizer}.step: {gathered.name_of(i)} cannot be stepped: {reason}")


def localize(gathered: Gathered) -> Gathered:
    """This process's part of tensors that are spread over several; what is no such tensor stays as it is."""
    if all(map(_is_plain, {*map(type, gathered.grads)})):
        return gathered
    width = len(gathered.state) // len(gathered.params)
    rows = [
        _local((p, grad, *gathered.state[i * width : (i + 1) * width]))
        for i, (p, grad) in enumerate(zip(gathered.params, gathered.grads, strict=True))
    ]
    return gathered._replace(
        params=[row[0] for row in rows], grads=[row[1] for row in rows], state=[x for row in rows for x in row[2:]]
    )


def _local(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    spread: list[Any] = [x for x in tensors if hasattr(x, "to_local") and hasattr(x, "placements")]
    alike = len({(x.device_mesh, x.placements) for x in spread}) == 1
    if not alike or any(placement.is_partial() for placement in spread[0].placements):
        return tensors
    return tuple(x.to_local() if hasattr(x, "to_local") else x for x in tensors)
