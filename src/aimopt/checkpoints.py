"""Checkpoints: continue a run that another optimizer began, and let others continue ours.

A state dict is accepted if it holds the buffers that our parts need, in the shapes of our parameters, and no others of
these shapes that its optimizer used. It may come from any optimizer:

    torch.optim.Adam, AdamW    exp_avg and exp_avg_sq are RADAR's own state, so RADAR continues exactly
    pytorch-rad 0.2.1          the same, with its l as a fixed ell
    pytorch-rad 0.2.0          stored the filtered m and the previous gradient: the plain average is computed from them
    torch.optim.SGD, Muon      momentum_buffer is that of HeavyBall: SGDM, Nesterov and Muon continue

State in any dtype, 8 bits included, becomes state of the dtype that our group has. In the other direction,
torch.optim.AdamW loads a checkpoint of RADAR; if its state is in 8 bits, load it into a RADAR with float32 state first.
Hyperparameters follow torch's rule: the checkpoint's value wins if our optimizer has the hyperparameter too, and the
others stay as constructed. Nothing is changed before everything is checked.
"""

import contextlib
import math
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from aimopt.checks import check_group
from aimopt.messages.reason import Reason
from aimopt.parts.component import PREVIOUS_GRADIENT, Initial, is_finite, scalar_dtype
from aimopt.parts.composition import CYCLED, Parts
from aimopt.parts.decays import DECOUPLED_KEY, decay_kind, exported_kind
from aimopt.parts.iterates import Last
from aimopt.step.evaluation import TRAIN_MODE, TRAINING_POINT
from aimopt.step.options import OPTIONS
from aimopt.step.quantization import CODE_OF_DTYPE, CODES, decoded, scale_name, state_dtype, stored_buffer
from aimopt.step.shards import local_part
from aimopt.step.storage import is_expanded, why_too_short
from aimopt.step.usable import DTYPES, SCALAR_DTYPES, why_not_coded, why_not_stored_in_8_bits

_STRUCTURE = {"state", "param_groups"}
_PARTS = Parts._fields
_NEVER_ADOPTED = [name for name, option in OPTIONS.items() if option.adopted_from == "none"]
_NOT_ADOPTED_FROM_OTHER_PARTS = [name for name, option in OPTIONS.items() if option.adopted_from != "any"]
_SCHEDULER_KEYS = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")
_FOREIGN_BETAS = {
    2: ("beta", "beta2"),
    3: ("beta", "beta_difference", "beta2"),
}  # the meaning of two or three betas in other packages
_ALIASES = {"l": "ell", "decouple_weight_decay": "decoupled_weight_decay"}


@contextlib.contextmanager
def exporting(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let torch's `state_dict` run `export` before the user's own hooks."""
    hook = optimizer.register_state_dict_post_hook(lambda _, state_dict: export(state_dict), prepend=True)
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def adapting(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let torch's `load_state_dict` run `adapt` after the user's pre-hooks, and keep dtypes before the post-hooks."""
    adapted: dict[str, Any] = {}

    def adapt_and_store(_: torch.optim.Optimizer, original: dict[str, Any]) -> dict[str, Any]:
        adapted.update(adapt(optimizer, original))
        return adapted

    before = optimizer.register_load_state_dict_pre_hook(adapt_and_store)
    after = optimizer.register_load_state_dict_post_hook(lambda _: restore_dtypes(optimizer, adapted), prepend=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()


def refuse_state_without_group(optimizer: torch.optim.Optimizer) -> None:
    """Refuse state of a parameter that was removed from its group: a state dict has no place for it."""
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for p in optimizer.state:
        if isinstance(p, Tensor) and id(p) not in known:
            raise ValueError(
                f"a parameter of shape {tuple(p.shape)} has state, but is in no group; add it to a group, or remove "
                "its state (del optimizer.state[p])"
            )


def export(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Add the keys that torch's optimizers need and ours have under other names: ε = √ζ, and the kind of decay."""
    for group in state_dict["param_groups"]:
        if "zeta" in group:
            group.setdefault("eps", math.sqrt(group["zeta"] or 1e-16))
        if (kind := exported_kind(group["decay"])) is not None:
            group[DECOUPLED_KEY] = kind
    return state_dict


def with_all_axes(group: dict[str, Any]) -> dict[str, Any]:
    """A group of this package; one of a version without decay and iterate gets these."""
    if "filter" not in group:
        return group
    kept = {name: value for name, value in group.items() if name != DECOUPLED_KEY}
    decay = decay_kind(group.get(DECOUPLED_KEY, True)).__name__
    return {"decay": decay, "iterate": Last.__name__, **kept}


def adapt(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Convert a state dict of any optimizer to one of `optimizer`, or raise a ValueError that names the parameter."""
    _check_structure(state_dict)
    ours, saved = optimizer.param_groups, state_dict["param_groups"]
    sizes, saved_sizes = [[len(g["params"]) for g in groups] for groups in (ours, saved)]
    if sizes != saved_sizes:
        raise ValueError(
            f"the checkpoint has parameter groups of {saved_sizes} parameters and this optimizer of {sizes}; "
            "build the optimizer with the groups of the run that wrote it"
        )
    groups = []
    for i, (our_group, saved_group) in enumerate(zip(ours, saved, strict=True)):
        try:
            groups.append(_adapt_group(our_group, saved_group))
            check_group({**groups[-1], "params": our_group["params"]}, of_checkpoint=True)
        except ValueError as error:
            raise ValueError(f"group {i} of the checkpoint: {error}") from None
    state = dict(state_dict["state"])
    for our_group, saved_group, group in zip(ours, saved, groups, strict=True):
        keys = saved_group["params"]
        names = our_group.get("param_names") or saved_group.get("param_names") or [f"number {i}" for i in keys]
        for p, key, name in zip(our_group["params"], keys, names, strict=True):
            if state.get(key):
                state[key] = _adapt_state(p, state[key], saved_group, group, f"parameter {name}")
    return {**state_dict, "state": state, "param_groups": groups}


def refuse_as_state_dict(value: Any) -> NoReturn:
    """Raise the error for a value that is not a state dict."""
    raise ValueError(
        "pass what optimizer.state_dict() returned: a dict with the keys 'state' and 'param_groups'; got "
        f"{_described(value)}"
    )


def _described(value: Any) -> str:
    """What a value is that is no state dict, and perhaps where the state dict is."""
    if not isinstance(value, dict):
        is_path = isinstance(value, (str, Path))
        return f"a {type(value).__name__}{'; load a file with torch.load first' if is_path else ''}"
    keys = f"a dict with the keys {sorted(map(str, value))}"
    inside = [key for key, entry in value.items() if isinstance(entry, dict) and entry.keys() >= _STRUCTURE]
    if inside:
        return f"{keys}; pass its entry {inside[0]!r}"
    if value and all(isinstance(entry, Tensor) for entry in value.values()):
        return f"{keys}, all of them tensors: is it the state dict of a model?"
    return keys


def _check_structure(state_dict: Any) -> None:
    """Refuse a value that is not a state dict of any optimizer."""
    if not (isinstance(state_dict, dict) and state_dict.keys() >= _STRUCTURE):
        refuse_as_state_dict(state_dict)
    state, groups = state_dict["state"], state_dict["param_groups"]
    if not isinstance(state, dict):
        raise ValueError(f"the checkpoint's 'state' must be a dict, and is a {type(state).__name__}")
    if not (isinstance(groups, (list, tuple)) and all(isinstance(group, dict) for group in groups)):
        raise ValueError("the checkpoint's 'param_groups' must be a list of dicts")
    for i, group in enumerate(groups):
        _check_group_structure(group, f"group {i} of the checkpoint")
    counts = Counter(key for group in groups for key in group["params"])
    if twice := [key for key, count in counts.items() if count > 1]:
        raise ValueError(f"the groups of the checkpoint list a parameter twice: {reprlib.repr(twice)}")
    for key, saved in state.items():
        if key not in counts:
            known = reprlib.repr(list(counts))
            raise ValueError(f"the checkpoint has state of parameter {key!r}, but its groups list only {known}")
        if not isinstance(saved, dict):
            kind = type(saved).__name__
            raise ValueError(f"the checkpoint's state of parameter {key} must be a dict, and is a {kind}")


def _check_group_structure(group: dict[str, Any], name: str) -> None:
    params, names = group.get("params"), group.get("param_names")
    if not (isinstance(params, (list, tuple)) and all(type(key) in (int, str) for key in params)):
        of = f" of {sorted({type(key).__name__ for key in params})}" if isinstance(params, (list, tuple)) else ""
        raise ValueError(f"{name} must have a list 'params' of numbers or names, got a {type(params).__name__}{of}")
    if names is not None and not (isinstance(names, (list, tuple)) and len(names) == len(params)):
        raise ValueError(f"{name} has {len(params)} 'params', but 'param_names' is {names!r}")
    if not isinstance(betas := group.get("betas", ()), (list, tuple)):
        raise ValueError(f"'betas' of {name} must be a tuple of numbers, got {betas!r}")
    if type(skipped := group.get("skipped_steps", 0)) is not int or skipped < 0:
        raise ValueError(f"'skipped_steps' of {name} must be a whole number ≥ 0, got {skipped!r}")
    if type(training := group.get(TRAIN_MODE, True)) is not bool:
        raise ValueError(f"{TRAIN_MODE!r} of {name} must be True or False, got {training!r}")


def _adapt_group(ours: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    saved = {_ALIASES.get(name, name) if name not in ours else name: value for name, value in saved.items()}
    kind = decay_kind(saved[DECOUPLED_KEY]).__name__ if DECOUPLED_KEY in saved else ours["decay"]
    saved = with_all_axes(saved)
    if all(saved.get(axis) == ours[axis] for axis in _PARTS):
        adopted = {
            name: value
            for name, value in saved.items()
            if name not in _NEVER_ADOPTED and (name in ours or name != "eps")  # `export` adds eps
        }
    else:
        adopted = {
            name: value
            for name, value in saved.items()
            if (name in ours or name in _SCHEDULER_KEYS) and name not in (*_PARTS, *_NOT_ADOPTED_FROM_OTHER_PARTS)
        }
        if _beta_names(ours) != _saved_beta_names(saved):
            adopted.pop("betas", None)
        if exported_kind(ours["decay"]) is not None:
            adopted["decay"] = saved.get("decay", kind)
    if "betas" in adopted and CYCLED in adopted and CYCLED not in ours:  # of a scheduler for several kinds of groups
        adopted["betas"] = (adopted.pop(CYCLED), *adopted["betas"][1:])
    return {**ours, **adopted, "params": saved["params"]}


def _saved_beta_names(saved: dict[str, Any]) -> tuple[str, ...] | None:
    if saved.keys() >= {*_PARTS}:
        return _beta_names(saved)
    return _FOREIGN_BETAS.get(len(saved.get("betas", ())))


def _beta_names(group: dict[str, Any]) -> tuple[str, ...]:
    parts = Parts.from_group(group, complete=False)
    return (*parts.filter.betas, *parts.geometry.betas)


def _adapt_state(
    p: Tensor, saved: dict[str, Any], saved_group: dict[str, Any], group: dict[str, Any], name: str
) -> dict[str, Any]:
    buffers = Parts.from_group(group).buffers()
    state = {key: value for key, value in saved.items() if value is not None}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.is_nested:  # it has no shape that could be compared
            raise ValueError(f"{name}: the checkpoint's {key!r} is a nested tensor, which is no state")
    scales = _decode_others(p, state, buffers, group, name)
    if PREVIOUS_GRADIENT in state and PREVIOUS_GRADIENT not in buffers and "l" in saved_group:
        _convert_pytorch_rad_0_2_0(p, state, saved_group, name)
    if "momentum_buffer" in buffers and not saved_group.get("dampening"):
        state.setdefault("step", 1)  # torch.optim.SGD and Muon store no count, and HeavyBall does not use it
    _check_names(p, state, saved, saved_group, buffers, name)
    if TRAINING_POINT in state:
        _check_buffer(p, state[TRAINING_POINT], TRAINING_POINT, name)
    state["step"] = _count(p, state["step"], name)
    for key in state.keys() - {"step", *buffers}:
        if isinstance(state[key], Tensor):
            _check_memory(p, state[key], key, name)
        elif not isinstance(state[key], (int, float, str)):
            raise ValueError(f"{name}: the checkpoint's {key!r} is a {type(state[key]).__name__}, which is no state")
    for key, initial in buffers.items():
        if initial.scalar:
            state[key] = _scalar(p, state[key], key, name)
        elif key not in scales:
            _check_buffer(p, state[key], key, name, initial.shape_for(p) if initial.shaped else None)
            state[key], scale = stored_buffer(state[key], p, initial, group)
            scales |= {} if scale is None else {key: scale}
    return state | {scale_name(key): scale for key, scale in scales.items()}


def _decode_others(
    p: Tensor, state: dict[str, Any], buffers: dict[str, Initial], group: dict[str, Any], name: str
) -> dict[str, Tensor]:
    """Decode the buffers that our group does not store in the same 8 bits; return the scales of those that it does."""
    if (reason := why_not_stored_in_8_bits(p, buffers, group)) is not None:
        raise ValueError(f"{name} cannot have 8-bit state: {reason}")
    kept = {}
    for key, initial in buffers.items():
        scale: Any = None if scale_name(key) in buffers else state.pop(scale_name(key), None)
        x = state.get(key)
        if initial.code is None or not (isinstance(x, Tensor) and x.dtype in CODE_OF_DTYPE and x.shape == p.shape):
            continue
        reason = why_not_coded(key, x, scale, CODES[initial.code])
        if reason is None and not scale.is_meta and local_part(scale).lt(0).any():
            reason = Reason(f"its state {scale_name(key)!r} has a negative scale")
        if reason is not None:
            raise ValueError(f"{name}: the checkpoint's {key!r} cannot be read: {reason}")
        _check_memory(p, x, key, name)
        if x.dtype == state_dtype(p, initial, group):
            kept[key] = scale
        else:
            state[key] = decoded(x, scale)
    return kept


def _convert_pytorch_rad_0_2_0(p: Tensor, state: dict[str, Any], saved_group: dict[str, Any], name: str) -> None:
    """Replace the filtered m and the previous gradient by the plain average."""
    for key in ("exp_avg", PREVIOUS_GRADIENT):
        _check_buffer(p, state.get(key), key, name)
    if not all(map(is_finite, (*saved_group.get("betas", [None]), saved_group.get("gamma")))):
        raise ValueError(f"{name}: the checkpoint has a {PREVIOUS_GRADIENT!r} but not the betas and gamma of its run")
    state["exp_avg"] = _plain_average(state["exp_avg"], state.pop(PREVIOUS_GRADIENT), saved_group)


def _count(p: Tensor, value: Any, name: str) -> Tensor:
    """A step count of the state, as a tensor."""
    step = _scalar(p, value, "step", name)
    if not (step.is_meta or (float(step) >= 0 and float(step).is_integer())):
        raise ValueError(f"{name}: the checkpoint's 'step' must be a whole number ≥ 0, got {float(step)}")
    return step


def _check_names(
    p: Tensor,
    state: dict[str, Any],
    saved: dict[str, Any],
    saved_group: dict[str, Any],
    buffers: dict[str, Initial],
    name: str,
) -> None:
    """Refuse the state of an optimizer that lacks one of our buffers, or has read another one."""
    missing = [key for key in ("step", *buffers) if key not in state]
    known = (*buffers, "step", PREVIOUS_GRADIENT, TRAINING_POINT)
    foreign = [
        key
        for key, value in state.items()
        if key not in known
        and isinstance(value, Tensor)
        and value.shape == p.shape
        and p.ndim
        and not _is_left_over(key, saved_group)
    ]
    if missing or foreign:
        problem = f"but not {missing[0]!r}" if missing else f"and {foreign[0]!r} has no meaning here"
        raise ValueError(
            f"the checkpoint's state of {name} has {sorted(map(str, saved))} {problem}: "
            "this optimizer cannot continue the run of the optimizer that wrote it; continue with that one, or begin "
            "with the weights alone"
        )


def _is_left_over(key: str, saved_group: dict[str, Any]) -> bool:
    """Whether a state buffer is of an option or a part that was replaced during the run: its last steps ignored it."""
    saved_group = with_all_axes(saved_group)
    if saved_group.keys() >= {*_PARTS}:
        return key not in Parts.from_group(saved_group, complete=False).buffers()
    return key == "max_exp_avg_sq" and saved_group.get("amsgrad") is False


def _check_buffer(p: Tensor, value: Any, key: str, name: str, shape: torch.Size | None = None) -> None:
    """Refuse a value that cannot be a state buffer of this parameter; `shape` is given if it is not its own."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name}: the checkpoint's {key!r} must be a tensor, and is a {type(value).__name__}")
    if value.shape != (p.shape if shape is None else shape):
        expected = "" if shape is None else f" instead of {tuple(shape)}"
        raise ValueError(
            f"{name} has shape {tuple(p.shape)} and the checkpoint's {key!r} for it {tuple(value.shape)}{expected}; "
            "is it a checkpoint of another model, or are the parameters in another order?"
        )
    kind = "complex" if p.is_complex() and shape is None else "real"
    if value.dtype not in DTYPES or value.is_complex() != (kind == "complex"):
        raise ValueError(f"{name}: the checkpoint's {key!r} must hold {kind} numbers, and has dtype {value.dtype}")
    _check_memory(p, value, key, name)


def _check_memory(p: Tensor, value: Tensor, key: str, name: str) -> None:
    """Refuse a tensor without dense memory of its own."""
    reasons = {
        f"of layout {value.layout}": value.layout != torch.strided,
        "on the meta device": value.is_meta and not p.is_meta,
        "expanded": is_expanded(value),
        "quantized": value.is_quantized,
        "without memory": torch._is_functional_tensor(value) or value._is_zerotensor(),
        "a lazily negated or conjugated view": value.is_neg() or value.is_conj(),
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None) or why_too_short("it", value)
    if reason is not None:
        raise ValueError(f"{name}: the checkpoint's {key!r} must be an ordinary dense tensor, and is not: {reason}")


def _scalar(p: Tensor, value: Any, key: str, name: str) -> Tensor:
    """A scalar of the state, as a tensor."""
    if is_finite(value):
        return torch.tensor(float(value), dtype=scalar_dtype(), device="cpu")
    known = (*DTYPES, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if not isinstance(value, Tensor) or value.numel() != 1 or value.is_complex() or value.dtype not in known:
        kind = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ValueError(f"{name}: the checkpoint's {key!r} must be one real number, got {kind}")
    _check_memory(p, value, key, name)
    exact = value.dtype in SCALAR_DTYPES
    return value.reshape(()) if exact else value.reshape(()).to(scalar_dtype())


def _plain_average(m: Tensor, previous: Tensor, group: dict[str, Any]) -> Tensor:
    """The average e of gradients, from m = (1−γ/β)·e + (γ/β)·g. If γ = β, m does not depend on e: any e is right."""
    beta, gamma = group["betas"][0], group["gamma"]
    return previous.clone() if beta in (0, gamma) else (m * beta - previous * gamma) / (beta - gamma)


def restore_dtypes(optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Undo torch's cast of loaded state to the dtype of the parameter, in any optimizer."""
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        for p, key in zip(group["params"], saved["params"], strict=True):
            state = optimizer.state.get(p)
            if not isinstance(state, dict):
                continue
            for name, value in state_dict["state"].get(key, {}).items():
                if isinstance(value, Tensor) and state[name].dtype != value.dtype:
                    state[name] = value.detach().clone().to(state[name].device)
