"""The memory of a step's tensors, checked before anything follows an address into it.

Users change tensors between steps: `p.data = other`, `p.untyped_storage().resize_(0)`, `p.grad = p.detach()`. What was
learned about tensors in one step is used in the next one only if it is still so:

    memory = GroupMemory()
    checked = memory.check(gathered)     raises a sentence for tensors that no step can work on
    checked.layout is before.layout      nothing has changed that a kernel relies on, apart from gradients' addresses

A first look at tensors is thorough. Later looks compare lists with lists, because they run at every step.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import repeat
from operator import add, ge, mul
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage

from aimopt.components import scalar_one
from aimopt.gathering import Gathered

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
    if not has_storage(x) or x._is_zerotensor() or x.numel() == 0:
        return None
    last = x.storage_offset() + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    needed, there = (last + 1) * x.element_size(), x.untyped_storage().nbytes()
    if needed <= there:
        return None
    return f"{name} needs {needed} bytes of memory and its storage holds {there}; was the storage freed or shortened?"


def _unwritable(name: str, x: Tensor) -> str | None:
    if is_expanded(x):
        return f"{name} is expanded, so that several elements share one place in memory; use .clone()"
    if x.is_inference() and not torch.is_inference_mode_enabled():
        return f"{name} was made in torch.inference_mode(), and can only be changed there; use .clone() outside of it"
    return None


def is_expanded(x: Tensor) -> bool:
    """Whether several elements of a strided tensor share one place in memory, as far as torch itself looks."""
    pairs = zip(x.shape, x.stride(), strict=True)
    return x.numel() > 0 and any(stride == 0 and size > 1 for size, stride in pairs)


def has_storage(x: Tensor) -> bool:
    """Whether a tensor is what its memory says: one whose type redefines torch's operations may not be."""
    return _is_plain(type(x)) and not x.is_meta and torch._C._has_storage(x)


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
        written, grads = members.params + members.state, members.grads
        self._ranks = members.ranks
        self._addresses = list(map(Tensor.data_ptr, written))
        self._offsets = list(map(Tensor.storage_offset, written))
        self._storage_bytes = _storage_bytes(written)
        self._are_of_same_kind = kind_check(written + grads)
        self._grad_itemsizes = [grad.element_size() for grad in grads]
        self._starts, self._ends = _united(zip(self._addresses, map(_extent, written), strict=True))
        self._grad_bytes = list(map(_extent, grads))

    def holds(self, gathered: Gathered) -> bool:
        """Whether all is as it was, except for the storages of the gradients, which need only be large enough."""
        if len(gathered.params) != self._count:
            return False
        members = gathered.only(self.members)
        written, grads = members.params + members.state, members.grads
        return (
            len(written) == len(self._offsets)
            and self._are_of_same_kind(written + grads)
            and members.ranks == self._ranks
            and list(map(Tensor.data_ptr, written)) == self._addresses
            and list(map(Tensor.storage_offset, written)) == self._offsets
            and _storage_bytes(written) == self._storage_bytes
            and self._have_room(grads)
        )

    def _have_room(self, grads: list[Tensor]) -> bool:
        begin = map(mul, map(Tensor.storage_offset, grads), self._grad_itemsizes)
        return all(map(ge, _storage_bytes(grads), map(add, begin, self._grad_bytes)))

    def overlapping(self, grad_addresses: list[int]) -> list[int]:
        """The parameters whose gradients share memory with what the step writes."""
        ends = list(map(add, grad_addresses, self._grad_bytes))
        # A span touches none of the sorted others if as many of them begin before its end as end before its start.
        begun = list(map(bisect_left, repeat(self._starts), ends))
        over = list(map(bisect_right, repeat(self._ends), grad_addresses))
        if begun == over:
            return []
        pairs = enumerate(zip(begun, over, strict=True))
        return [self.members[i] for i, (x, y) in pairs if x != y and self._grad_bytes[i]]


def _storage_bytes(tensors: list[Tensor]) -> list[int]:
    return list(map(UntypedStorage.nbytes, map(Tensor.untyped_storage, tensors)))


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


def kind_check(tensors: list[Tensor]) -> Callable[[list[Tensor]], bool]:
    """A function that tells whether as many tensors have the same types, dtypes, devices, sizes and strides as these.

    torch.compile's own check of its inputs does that in one call. It is not public, so it is tried out before it is
    trusted; `list_check` is the same in public functions, at four times the time.
    """
    if not _guards_can_be_trusted():
        return list_check(tensors)
    check = _guards(tensors).check
    return lambda others: check(*others)


def list_check(tensors: list[Tensor]) -> Callable[[list[Tensor]], bool]:
    """`kind_check` in public functions."""
    before = list(map(_kind, tensors))
    return lambda others: list(map(_kind, others)) == before


def _kind(x: Any) -> tuple[Any, ...]:
    if not isinstance(x, Tensor):
        return (type(x),)
    flags = x.is_neg(), x.is_conj(), x.is_inference(), x._is_zerotensor()
    return type(x), x.dtype, x.device, x.layout, x.shape, x.stride() if x.layout == torch.strided else (), flags


def _guards(tensors: list[Tensor]) -> Any:
    return torch._C._dynamo.guards.TensorGuards(  # type: ignore[attr-defined]
        *tensors,
        dynamic_dims_sizes=[list(x.shape) for x in tensors],
        dynamic_dims_strides=[list(x.stride()) for x in tensors],
    )


@lru_cache(maxsize=1)
def _guards_can_be_trusted() -> bool:
    kind: dict[str, Any] = dict(dtype=torch.float32, device="cpu")  # whatever the defaults are when this is first asked
    with torch.inference_mode():
        inference = torch.zeros(2, 3, **kind)
    with torch.inference_mode(False):
        x, same = torch.zeros(2, 3, **kind), torch.ones(2, 3, **kind)
        others = [torch.zeros(*shape, **kind) for shape in ((3, 2), (2, 2), (6,))]
        others += [others[0].t(), torch.zeros(2, 6, **kind)[:, :3], x.double(), x.half(), x.to("meta"), x.to_sparse()]
        others += [inference, torch._neg_view(x), torch.nn.Parameter(x), torch._efficientzerotensor((2, 3), **kind)]
        try:
            check = _guards([x, x]).check
            return check(x, same) and not any(check(x, other) or check(other, x) for other in others)
        except Exception:  # a torch that has changed or dropped it
            return False


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
        layout = self._layout
        if layout is None or not layout.holds(local):
            self._layout = None
            self._refuse_unusable(local, optimizer)
            layout = self._layout = Layout(local)
        elif layout.others:
            refuse_unusable(local.only(layout.others), optimizer)
        members = local.only(layout.members)
        grad_addresses = list(map(Tensor.data_ptr, members.grads))
        if overlapping := layout.overlapping(grad_addresses):
            grads = list(gathered.grads)
            for i in overlapping:
                grads[i] = grads[i].clone()
            return self.check(gathered._replace(grads=grads), optimizer)
        return Checked(gathered, layout, members, grad_addresses)

    def _refuse_unusable(self, gathered: Gathered, optimizer: str) -> None:
        refuse_unusable(gathered, optimizer)
        width = len(gathered.state) // len(gathered.params) if gathered.params else 1
        written = [(i // width, x) for i, x in enumerate(gathered.state)] + list(enumerate(gathered.params))
        written = [(i, x) for i, x in written if x.device.type == "cpu" and x.numel() and has_storage(x)]
        spans = {(x.data_ptr(), _extent(x)) for _, x in written}
        if not spans <= self._writable:
            starts, ends = _united(_read_only_mappings())
            for i, x in written:
                if bisect_left(starts, x.data_ptr() + _extent(x)) != bisect_right(ends, x.data_ptr()):
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
