"""Tensors that a step can work on. All others are refused with an error message, before anything has changed.

refuse_unusable(gathered, "RADAR")      RADAR.step: parameter 0 of group 0 cannot be stepped: its gradient needs 80
                                        bytes of memory and its storage holds 0; was the storage freed or shortened?
why_intercepted()                       why a kernel must not run now, or None: a mode or transform follows torch's
                                        operations, and would not see those of a kernel
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from aimopt.messages.reason import Reason
from aimopt.step.gather import Gathered
from aimopt.step.storage import has_storage, is_expanded, is_plain, why_too_short

DTYPES = frozenset([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128])
NO_SHAPES: Mapping[str, torch.Size] = {}
IF_REPLACED = "if you replaced its data, compute its gradient again and remove its state (del optimizer.state[p])"


class Unusable(RuntimeError):
    """Tensors that no step can work on; nothing was changed."""


def refuse_unusable(gathered: Gathered, optimizer: str) -> None:
    """Raise `Unusable` for the first parameter that cannot be stepped; it names the optimizer's class."""
    buffers = gathered.parts.buffers()
    scalar_names = {"step", *(name for name, initial in buffers.items() if initial.scalar)}
    shaped = {name: initial for name, initial in buffers.items() if initial.shaped}
    matrices_only = gathered.parts.geometry.matrices_only
    states = gathered.states() if gathered.state else [{}] * len(gathered.params)
    for i, (p, grad, state) in enumerate(zip(gathered.params, gathered.grads, states, strict=True)):
        tensors = {name: x for name, x in state.items() if name not in scalar_names}
        scalars = {name: x for name, x in state.items() if name in scalar_names}
        ordinary = _are_ordinary(p, grad, tensors.values()) and all(map(_is_ordinary_scalar, scalars.values()))
        shapes = {} if ordinary else {name: initial.shape_for(p) for name, initial in shaped.items()}
        reason = None if ordinary else why_unusable(p, grad, tensors, scalars, shapes)
        if reason is None and matrices_only and p.ndim < 2:
            geometry = type(gathered.parts.geometry).__name__
            reason = Reason(f"it has shape {tuple(p.shape)}, and {geometry} takes matrices")
        if reason is not None:
            raise refusal(gathered, i, optimizer, reason)


def _are_ordinary(p: Tensor, grad: Tensor, buffers: Iterable[Any]) -> bool:
    """A quick test that nearly all tensors pass; the others get the thorough one."""
    shape, dtype, device = p.shape, p.dtype, p.device
    if dtype not in DTYPES or torch.is_inference_mode_enabled():
        return False
    for x in (p, grad, *buffers):
        if type(x) not in _ORDINARY or not x.is_contiguous() or x.shape != shape or x.device != device:
            return False
        if x.dtype != dtype or not _has_its_own_memory(x):
            return False
    return True


def _is_ordinary_scalar(x: Any) -> bool:
    return type(x) in _ORDINARY and x.is_cpu and x.dim() == 0 and x.dtype == torch.float32 and _has_its_own_memory(x)


_ORDINARY = (Tensor, torch.nn.Parameter)


def _has_its_own_memory(x: Tensor) -> bool:
    """Whether a contiguous tensor is plain memory that it can be read from and written to."""
    if x.is_neg() or x.is_conj() or x.is_inference() or not has_storage(x):
        return False
    return x.storage_offset() * x.element_size() + x.nbytes <= x.untyped_storage().nbytes() or x.numel() == 0


def refusal(gathered: Gathered, i: int, optimizer: str, reason: Reason) -> Unusable:
    """The error for one parameter."""
    return Unusable(f"{optimizer}.step: {gathered.name_of(i)} cannot be stepped: {reason}")


def why_unusable(
    p: Tensor,
    grad: Tensor,
    buffers: Mapping[str, Any],
    scalars: Mapping[str, Any],
    shapes: Mapping[str, torch.Size] = NO_SHAPES,
) -> Reason | None:
    """Why a parameter cannot be stepped, or None: everything that torch would notice too late or not at all.

    `shapes` are those of the buffers that do not have the parameter's shape.
    """
    return next((reason for reason in _reasons(p, grad, buffers, scalars, shapes) if reason is not None), None)


def _reasons(
    p: Tensor,
    grad: Tensor,
    buffers: Mapping[str, Any],
    scalars: Mapping[str, Any],
    shapes: Mapping[str, torch.Size],
) -> Iterator[Reason | None]:
    if torch._C._functorch.is_batchedtensor(grad) and not torch._C._functorch.is_batchedtensor(p):
        yield Reason("its gradient is one of a batch in torch.vmap; call step outside of torch.vmap, with one gradient")
    yield _unreadable("it", p, p)
    yield _unwritable("it", p)
    if grad.is_sparse:
        yield Reason("its gradient is sparse; make its layer with sparse=False, or give it to torch.optim.SparseAdam")
    if torch._is_functional_tensor(grad):
        yield _of_another_kind("its gradient", grad, p)
    yield _unreadable("its gradient", grad, p)
    for key, x in buffers.items():
        name = f"its state {key!r}"
        if not isinstance(x, Tensor):
            yield Reason(f"{name} is a {type(x).__name__}, not a tensor")
        yield _of_another_kind(name, x, p)
        yield _unreadable(name, x, p, shapes.get(key))
        yield _unwritable(name, x)
    for key, x in scalars.items():
        name = f"its state {key!r}"
        if not (isinstance(x, Tensor) and x.layout == torch.strided and x.numel() == 1 and x.dtype in DTYPES):
            kind = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            yield Reason(f"{name} must be a tensor of one real number, and is {kind}")
        yield _of_another_kind(name, x, p)
        if x.is_complex() or (x.device != p.device and not x.is_cpu):
            yield Reason(f"{name} must be a real number on {p.device} or the CPU, and is {x.dtype} on {x.device}")
        yield why_too_short(name, x)
        yield _unwritable(name, x)


def _of_another_kind(name: str, x: Tensor, p: Tensor) -> Reason | None:
    functional = torch._is_functional_tensor(x) and not torch._is_functional_tensor(p)
    if not functional and (is_plain(type(x)) or not is_plain(type(p))):
        return None
    kind = "functional tensor" if functional else type(x).__name__
    return Reason(f"{name} is a {kind} and the parameter is not; use one from outside the mode or transform")


def _unreadable(name: str, x: Tensor, p: Tensor, shape: torch.Size | None = None) -> Reason | None:
    other = name.replace("its", "the")
    if x.shape != (p.shape if shape is None else shape):
        expected = "" if shape is None else f" instead of {tuple(shape)}"
        return Reason(f"it has shape {tuple(p.shape)} and {other} {tuple(x.shape)}{expected}; {IF_REPLACED}")
    if x.device != p.device:
        return Reason(f"it is on {p.device} and {other} on {x.device}; move them to the same device")
    if x.layout != torch.strided and is_plain(type(x)):
        return Reason(f"{name} has layout {x.layout}, and only strided tensors can be stepped; use .to_dense()")
    if x.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        return Reason(f"{name} has dtype {x.dtype}, and only {known} can be stepped")
    if x.is_complex() != (p.is_complex() and shape is None):
        return Reason(f"{name} has dtype {x.dtype}, which does not fit a parameter of dtype {p.dtype}")
    return why_too_short(name, x)


def _unwritable(name: str, x: Tensor) -> Reason | None:
    if is_expanded(x):
        return Reason(f"{name} is expanded, so that several elements share one memory address; use .clone()")
    if x.is_neg() or x.is_conj() or x._is_zerotensor():
        return Reason(f"{name} is a lazily negated, conjugated or zero view; use .clone()")
    if x.is_inference() and not torch.is_inference_mode_enabled():
        return Reason(
            f"{name} was made in torch.inference_mode(), and can only be changed there; use .clone() outside of it"
        )
    return None


def has_nonfinite_gradient(groups: Iterable[dict[str, Any]]) -> bool:
    """Whether any gradient of these parameter groups is infinite or NaN; waits once per device."""
    finite: dict[torch.device, list[Tensor]] = {}
    for group in groups:
        for p in group["params"]:
            if p.grad is not None and p.grad.numel():
                finite.setdefault(p.device, []).append(torch.linalg.vector_norm(p.grad, math.inf).isfinite())
    return not all(bool(torch.stack(on_device).all()) for on_device in finite.values())


def why_intercepted() -> Reason | None:
    """What follows torch's operations now, and would not see those of a kernel; None if nothing does."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return Reason("a transform of torch.func is active")
    if forward_ad._current_level >= 0:
        return Reason("forward-mode differentiation is active")
    if torch._C._len_torch_dispatch_stack() > 0:
        return Reason("a dispatch mode, such as FakeTensorMode, is active")
    return None
