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
from aimopt.parts.component import Initial
from aimopt.step.gather import Gathered, invalid_count, refusal
from aimopt.step.quantization import (
    BLOCK,
    CODE_OF_DTYPE,
    Code,
    coded_buffers,
    cuts_blocks,
    scale_name,
    scale_shape,
    state_dtype,
)
from aimopt.step.shards import any_rank, local_part, place_of, trains_together
from aimopt.step.storage import has_storage, is_expanded, is_plain, why_too_short

SCALAR_DTYPES = (torch.float32, torch.float64)  # in bfloat16 a step count would stop at 256
DTYPES = frozenset([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128])
NO_SHAPES: Mapping[str, torch.Size] = {}
NO_CODES: Mapping[str, Code] = {}
IF_REPLACED = "if you replaced its data, compute its gradient again and remove its state (del optimizer.state[p])"


def refuse_unusable(gathered: Gathered, optimizer: str) -> None:
    """Raise `Unusable` for the first parameter that cannot be stepped; it names the optimizer's class."""
    buffers = gathered.parts.buffers()
    scalar_names = {"step", *(name for name, initial in buffers.items() if initial.scalar)}
    shaped = {name: initial for name, initial in buffers.items() if initial.shaped}
    matrices_only = gathered.parts.geometry.matrices_only
    codes = coded_buffers(buffers, gathered.group)
    states = gathered.states() if gathered.state else [{}] * len(gathered.params)
    for i, (p, grad, state) in enumerate(zip(gathered.params, gathered.grads, states, strict=True)):
        tensors = {name: state[name] for name in buffers if name not in scalar_names and name in state}
        scalars = {name: x for name, x in state.items() if name in scalar_names}
        ordinary = _are_ordinary(p, grad, tensors.values()) and all(map(_is_ordinary_scalar, scalars.values()))
        reason = None
        if not ordinary:
            shapes = {name: _expected_shape(gathered, i, name, initial) for name, initial in shaped.items()}
            reason = (
                why_not_stored_in_8_bits(p, buffers, gathered.group)
                or _why_codes_unusable(state, codes)
                or why_unusable(p, grad, tensors, scalars, shapes, codes)
            )
        if reason is None and "step" in scalars:
            reason = _why_no_count(scalars["step"])
        if reason is None and matrices_only and p.ndim < 2:
            geometry = type(gathered.parts.geometry).__name__
            flattened = (
                "; DeepSpeed and FSDP1 flatten parameters: use FSDP2 (fully_shard) or DDP" if p.ndim == 1 else ""
            )
            reason = Reason(f"it has shape {tuple(p.shape)}, and {geometry} takes matrices{flattened}")
        if reason is not None:
            raise refusal(gathered, i, optimizer, reason)


def _why_no_count(step: Tensor) -> Reason | None:
    """Why a step count cannot be advanced, or None; reading one on a device would wait for that."""
    if not (step.is_cpu and is_plain(type(step))) or why_intercepted() or step.item() >= 0:
        return None
    return invalid_count(step)


def _expected_shape(gathered: Gathered, i: int, name: str, initial: Initial) -> torch.Size:
    """The shape of a buffer that has its own; of its local part, if that is what was gathered."""
    place = gathered.places[i] if gathered.places else None
    shape = initial.shape_for(gathered.params[i], place.shape if place else None)
    own = gathered.buffer_places[i].get(name) if gathered.buffer_places else None
    if own is None or own.block is None or own.shape != shape:
        return shape
    return torch.Size(size for _, size in own.block)


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


def why_unusable(
    p: Tensor,
    grad: Tensor,
    buffers: Mapping[str, Any],
    scalars: Mapping[str, Any],
    shapes: Mapping[str, torch.Size] = NO_SHAPES,
    codes: Mapping[str, Code] = NO_CODES,
) -> Reason | None:
    """Why a parameter cannot be stepped, or None: everything that torch would notice too late or not at all.

    `shapes` are those of the buffers that do not have the parameter's shape, `codes` those that may be in 8 bits.
    """
    return next((reason for reason in _reasons(p, grad, buffers, scalars, shapes, codes) if reason is not None), None)


def why_not_stored_in_8_bits(p: Tensor, buffers: dict[str, Initial], group: dict[str, Any]) -> Reason | None:
    """Why the state of a parameter cannot be stored in 8 bits, though its group is to do that; None if it can."""
    place = place_of(p)
    if is_plain(type(p)) or not any(state_dtype(p, buffer, group) in CODE_OF_DTYPE for buffer in buffers.values()):
        return None
    if place is not None and not cuts_blocks(place):
        return None
    return Reason(
        f"it is distributed, and a block of {BLOCK} elements of 8-bit state would span two shards; distribute it by "
        "Shard(0) in equal shards of whole blocks, or give it a group with state_dtype='bfloat16'"
    )


def _why_codes_unusable(state: Mapping[str, Any], codes: Mapping[str, Code]) -> Reason | None:
    """Why buffers in 8 bits cannot be read, or None."""
    for key, code in codes.items():
        x, scale = state.get(key), state.get(scale_name(key))
        if isinstance(x, Tensor) and x.dtype in CODE_OF_DTYPE and (reason := why_not_coded(key, x, scale, code)):
            return reason
    return None


def why_not_coded(key: str, x: Tensor, scale: Any, code: Code) -> Reason | None:
    """Why a state buffer and its scales are not numbers in 8 bits, or None."""
    name, shape = f"its state {scale_name(key)!r}", scale_shape(x.numel())
    if x.dtype != code.dtype:
        return Reason(f"its state {key!r} has dtype {x.dtype}, and in 8 bits it is {code.dtype}")
    if not isinstance(scale, Tensor):
        return Reason(f"{name} must be a tensor with the scales of {key!r}, and is a {type(scale).__name__}")
    if scale.dtype != torch.float32 or scale.shape != shape or is_plain(type(scale)) != is_plain(type(x)):
        kind = f"a {type(scale).__name__} of {scale.dtype} and shape {tuple(scale.shape)}"
        return Reason(f"{name} must be a tensor of torch.float32 and shape {shape}, one per block, and is {kind}")
    if scale.device != x.device:
        return Reason(f"{name} is on {scale.device} and {key!r} on {x.device}; move them to the same device")
    if scale.layout != torch.strided or not scale.is_contiguous():
        return Reason(f"{name} has gaps in memory; use .contiguous()")
    return why_too_short(name, scale) or _why_unwritable(name, scale)


def _reasons(
    p: Tensor,
    grad: Tensor,
    buffers: Mapping[str, Any],
    scalars: Mapping[str, Any],
    shapes: Mapping[str, torch.Size],
    codes: Mapping[str, Code],
) -> Iterator[Reason | None]:
    if torch._C._functorch.is_batchedtensor(grad) and not torch._C._functorch.is_batchedtensor(p):
        yield Reason("its gradient is one of a batch in torch.vmap; call step outside of torch.vmap, with one gradient")
    yield _why_unreadable("it", p, p)
    yield _why_unwritable("it", p)
    if grad.is_sparse:
        yield Reason("its gradient is sparse; make its layer with sparse=False, or give it to torch.optim.SparseAdam")
    if torch._is_functional_tensor(grad):
        yield _why_of_another_kind("its gradient", grad, p)
    yield _why_unreadable("its gradient", grad, p)
    for key, x in buffers.items():
        name = f"its state {key!r}"
        if not isinstance(x, Tensor):
            yield Reason(f"{name} is a {type(x).__name__}, not a tensor")
        yield _why_of_another_kind(name, x, p)
        yield _why_unreadable(name, x, p, shapes.get(key), coded=key in codes)
        yield _why_unwritable(name, x)
    for key, x in scalars.items():
        name = f"its state {key!r}"
        if not (isinstance(x, Tensor) and x.layout == torch.strided and x.numel() == 1 and x.dtype in SCALAR_DTYPES):
            kind = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            yield Reason(f"{name} must be a tensor of one number in float32 or float64, and is {kind}")
        yield _why_of_another_kind(name, x, p)
        if x.device != p.device and not x.is_cpu:
            yield Reason(f"{name} must be on {p.device} or the CPU, and is on {x.device}")
        yield why_too_short(name, x)
        yield _why_unwritable(name, x)


def _why_of_another_kind(name: str, x: Tensor, p: Tensor) -> Reason | None:
    functional = torch._is_functional_tensor(x) and not torch._is_functional_tensor(p)
    if not functional and (is_plain(type(x)) or not is_plain(type(p))):
        return None
    kind = "functional tensor" if functional else type(x).__name__
    return Reason(f"{name} is a {kind} and the parameter is not; use one from outside the mode or transform")


def _why_unreadable(
    name: str, x: Tensor, p: Tensor, shape: torch.Size | None = None, *, coded: bool = False
) -> Reason | None:
    other = name.replace("its", "the")
    if x.shape != (p.shape if shape is None else shape):
        expected = "" if shape is None else f" instead of {tuple(shape)}"
        return Reason(f"it has shape {tuple(p.shape)} and {other} {tuple(x.shape)}{expected}; {IF_REPLACED}")
    if x.device != p.device:
        return Reason(f"it is on {p.device} and {other} on {x.device}; move them to the same device")
    if x.layout != torch.strided and is_plain(type(x)):
        return Reason(f"{name} has layout {x.layout}, and only strided tensors can be stepped; use .to_dense()")
    if x.dtype in CODE_OF_DTYPE and not p.is_complex():
        if coded:
            return why_too_short(name, x)
        how = "load optimizer.state_dict() into an optimizer with another state_dtype to convert it"
        return Reason(f"{name} has dtype {x.dtype}, and the state_dtype of its group is not 'int8'; {how}")
    if x.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        return Reason(f"{name} has dtype {x.dtype}, and only {known} can be stepped")
    if x.is_complex() != (p.is_complex() and shape is None):
        return Reason(f"{name} has dtype {x.dtype}, which does not fit a parameter of dtype {p.dtype}")
    return why_too_short(name, x)


def _why_unwritable(name: str, x: Tensor) -> Reason | None:
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
    """Whether any gradient of these parameter groups is infinite or NaN, on any rank; waits once per device.

    All ranks decide together, in one collective: each may hold other shards, or under ZeRO other parameters.
    """
    finite: dict[torch.device, list[Tensor]] = {}
    for group in groups:
        for p in group["params"]:
            grad = None if p.grad is None else local_part(p.grad)
            if grad is not None and grad.numel() and is_plain(type(grad)):  # the values of a FakeTensor are not known
                finite.setdefault(grad.device, []).append(torch.linalg.vector_norm(grad, math.inf).isfinite())
    here = not all(bool(torch.stack(on_device).all()) for on_device in finite.values())
    return any_rank([here])[0] if trains_together() else here


def why_intercepted() -> Reason | None:
    """What follows torch's operations now, and would not see those of a kernel; None if nothing does."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return Reason("a transform of torch.func is active")
    if forward_ad._current_level >= 0:
        return Reason("forward-mode differentiation is active")
    if torch._C._len_torch_dispatch_stack() > 0:
        return Reason("a dispatch mode, such as FakeTensorMode, is active")
    return None
