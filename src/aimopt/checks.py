"""The checks of a parameter group: every mistake gets an error that names the value and what to do."""

from collections.abc import Callable, Iterable, Sequence
from operator import is_, itemgetter
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from aimopt.kernels import why_not_fused
from aimopt.parts.component import Component, Geometry, is_finite
from aimopt.parts.composition import AXES, Parts, parts_of_groups
from aimopt.parts.decays import DECOUPLED_KEY, decay_kind
from aimopt.step.evaluation import TRAIN_MODE
from aimopt.step.gather import Gathered, parameter_name
from aimopt.step.options import OPTIONS
from aimopt.step.quantization import INT8
from aimopt.step.shards import local_part
from aimopt.step.storage import is_plain, why_too_short
from aimopt.step.usable import DTYPES, why_intercepted

# The values of a group that are one of a few: its execution options.
SWITCHES: dict[str, tuple[Any, ...]] = {name: option.choices for name, option in OPTIONS.items()}
# The keys that a group has whatever its parts are.
SHARED_KEYS = frozenset({"lr", TRAIN_MODE, "skipped_steps", *SWITCHES})
# The keys of a group that no part may use as a field name, except that a decay has a `weight_decay`.
RESERVED_KEYS = SHARED_KEYS | {"params", "param_names", "betas", "weight_decay", DECOUPLED_KEY, *Parts._fields}


def check_group(group: dict[str, Any], others: Sequence[dict[str, Any]] = (), *, of_checkpoint: bool = False) -> None:
    """Refuse a group that cannot be stepped, alone or together with `others`.

    In a checkpoint the learning rate may be negative: a schedule may have lowered it below zero.
    """
    parts = Parts.from_group(group)
    parts.validate()
    _check_numbers(group, of_checkpoint)
    _check_switches(group)
    if parts.geometry.matrices_only:
        _check_matrices(group, parts.geometry)
    check_joint([parts, *parts_of_groups(others)])
    if group["fused"] and (reason := why_not_fused(parts, group)):
        # torch's own optimizers call a device without a kernel a RuntimeError.
        kind = RuntimeError if any(p.is_meta for p in group["params"]) else ValueError
        raise kind(f"fused=True: {reason}; leave fused=None")


def check_joint(parts_of_groups: Sequence[Parts]) -> None:
    """Refuse a joint correction in one group together with another correction in another group."""
    classes = [type(parts.correction) for parts in parts_of_groups]
    joint = next((kind for kind in classes if kind.joint), None)
    if joint is not None and any(kind is not joint for kind in classes):
        other = next(kind for kind in classes if kind is not joint)
        raise ValueError(
            f"{joint.__name__} solves for all parameters at once, and another group has {other.__name__}; use "
            f"{joint.__name__} in every parameter group"
        )


def check_closure(closure: Callable[[], Any] | None, groups: Sequence[Gathered], optimizer: str) -> Callable[[], Any]:
    """Refuse a step without a closure; its optimizer has a correction that evaluates the closure again."""
    if closure is not None:
        return closure
    if all(_moves_nothing(group) for group in groups):
        # torch.distributed.checkpoint makes the state of a new optimizer by such a step.
        return lambda: None
    correction = next(group.parts.correction for group in groups if group.parts.correction.evaluates_again)
    raise ValueError(
        f"{optimizer}.step: {type(correction).__name__} evaluates the gradient more than once per step; call "
        "step(closure) with a closure that clears the gradients, computes the loss, calls backward and returns the loss"
    )


def _moves_nothing(group: Gathered) -> bool:
    """Whether neither parameters nor gradients would change: the learning rate and all gradients are zero."""
    return float(group.group["lr"]) == 0 and not any(local_part(grad).any() for grad in group.grads)


class GroupValues:
    """The values of parameter groups, checked at every step: users and schedulers may have put others into a group."""

    def __init__(self, optimizer: str):
        self._optimizer = optimizer  # the name of its class, for messages
        self._checked: dict[int, tuple[Any, ...]] = {}  # by the index of the group: what was valid at the last step

    def check(self, groups: Sequence[dict[str, Any]], indices: Iterable[int] | None = None) -> None:
        """Refuse a group, or one of these, that cannot be stepped; quick if its values are those of the last step."""
        for index in range(len(groups)) if indices is None else indices:
            group = groups[index]
            try:
                values = _STEP_VALUES(group)
                _check_list(group["params"])
                if isinstance(group["lr"], Tensor):
                    check_tensor_lr(group["lr"])
                elif self._is_checked(index, values) and DECOUPLED_KEY not in group:
                    continue
                if DECOUPLED_KEY in group:  # written there by a user, as for torch's optimizers
                    group["decay"] = decay_kind(group.pop(DECOUPLED_KEY)).__name__
                check_step_values(group)
            except (KeyError, ValueError) as error:
                raise self.error(index, error) from None
            self._checked[index] = values

    def _is_checked(self, index: int, values: tuple[Any, ...]) -> bool:
        """Whether these are the objects of the last step. They are not compared: an array has no truth value."""
        known = self._checked.get(index)
        return known is not None and all(map(is_, known, values))

    def error(self, index: int, error: Exception) -> ValueError:
        """The error about a value of a group, which names the step and the group."""
        problem = f"it has no {error}; put it back" if isinstance(error, KeyError) else str(error)
        return ValueError(f"{self._optimizer}.step: group {index}: {problem}")


_STEP_VALUES = itemgetter("lr", "weight_decay", TRAIN_MODE, *Parts._fields, *SWITCHES)


def _check_list(params: Any) -> None:
    if not isinstance(params, (list, tuple)):
        raise ValueError(f"'params' must be a list of tensors, got a {type(params).__name__}")


def check_callable(closure: Any, optimizer: str) -> None:
    """Refuse a closure that cannot be called."""
    if not callable(closure):
        raise TypeError(
            f"{optimizer}.step: closure must be a function that computes the loss and returns it, got a "
            f"{type(closure).__name__}; after loss.backward() write step() alone"
        )


def check_step_values(group: dict[str, Any]) -> None:
    """Refuse values with which no step can be made. A schedule may lower a learning rate below zero."""
    lr = group["lr"]
    if not isinstance(lr, Tensor):
        _check_finite("lr", lr)
    elif lr.is_cpu and is_plain(type(lr)) and not why_intercepted():  # reading it on a device would wait for that
        _check_finite("lr", lr.item())
    _check_not_negative("weight_decay", group["weight_decay"])
    _check_switches(group)
    Parts.from_group(group)
    if group[TRAIN_MODE] is not True:
        raise ValueError("its parameters are where they are to be evaluated; call optimizer.train() before step")


def check_tensor_lr(lr: Any) -> None:
    """Refuse a tensor that is not a learning rate. torch's own test suite expects the first message."""
    if not isinstance(lr, Tensor):
        return
    if lr.is_nested:  # it has no shape
        raise ValueError("a tensor lr must be one real number, got a nested tensor")
    if lr.numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
    if lr.dtype not in DTYPES or lr.is_complex() or lr.layout != torch.strided:
        raise ValueError(f"a tensor lr must be a real number, got {lr.dtype} of layout {lr.layout}")
    if reason := why_too_short("lr", lr):
        raise ValueError(str(reason))


def _check_numbers(group: dict[str, Any], of_checkpoint: bool) -> None:
    lr = group["lr"]
    if isinstance(lr, Tensor):
        check_tensor_lr(lr)
        lr = 0.0 if lr.is_meta else lr.item()
    (_check_finite if of_checkpoint else _check_not_negative)("lr", lr)
    _check_not_negative("weight_decay", group["weight_decay"])


def _check_finite(name: str, value: Any) -> None:
    if not is_finite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")


def _check_not_negative(name: str, value: Any) -> None:
    if not is_finite(value) or value < 0:
        raise ValueError(f"{name} must be a finite number ≥ 0, got {value!r}")


def _check_switches(group: dict[str, Any]) -> None:
    for name, choices in SWITCHES.items():
        value = group[name]
        if not (isinstance(value, (bool, str, NoneType)) and value in choices):  # 1 == True, but only True is valid
            raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")
    if group["foreach"] and group["differentiable"]:
        raise ValueError("foreach=True cannot be differentiated through; leave foreach=None")
    if group["differentiable"] and group["state_dtype"] == INT8:
        raise ValueError("state in 8 bits cannot be differentiated through; use another state_dtype")


def _check_matrices(group: dict[str, Any], geometry: Geometry) -> None:
    for i, p in enumerate(group["params"]):
        if p.ndim < 2 or p.is_complex():
            raise ValueError(
                f"{type(geometry).__name__} takes real matrices and convolution kernels, but "
                f"{parameter_name(group, i)} has shape {tuple(p.shape)} and dtype {p.dtype}; give "
                "such parameters to another optimizer, with aimopt.create('hybrid', model, …), or with "
                "aimopt.groups.split and aimopt.groups.combine (DeepSpeed and FSDP1 flatten all parameters: matrices "
                "need FSDP2, fully_shard, or DDP)"
            )
        if reason := geometry.why_unfit(p.shape):
            raise ValueError(f"{type(geometry).__name__} cannot step {parameter_name(group, i)}: {reason}")


def check_part(part: Any, axis: str) -> Any:
    """Refuse a value that is not a part of this axis, or a part with a field that a group uses otherwise."""
    base = AXES[axis]
    if not isinstance(part, base):
        raise ValueError(f"{axis} must be a {base.__name__}{_instead_of_part(part)}")
    for name in part.hyperparameters():
        if name in RESERVED_KEYS and not (axis == "decay" and name == "weight_decay"):
            raise ValueError(f"{type(part).__name__}: a group has another use for {name!r}; rename the field")
    return part


def _instead_of_part(given: Any) -> str:
    """What is wrong with a value that is no part of an axis, and what to write."""
    if isinstance(given, type) and issubclass(given, Component):
        return f", got the class {given.__name__}; write {given.__name__}(…)"
    if isinstance(given, Component):
        name = type(given).__name__
        return f", and {name} is a {given.axis}; write {given.axis}={name}(…)"
    return f", got {given!r}"


def warning_about_ell(group: dict[str, Any], parts: Parts) -> str | None:
    """The warning for an ℓ above the learning rate, or None."""
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.device.type != "cpu":
        return None  # comparing would wait for the device
    lr = float(lr.detach() if isinstance(lr, Tensor) else lr) * parts.filter.gain
    ratio = parts.correction.ratio(lr, parts.filter.pole)
    if not ratio > 1:
        return None
    return (
        f"ell exceeds the learning rate: ell/lr is {float(ratio):g} at lr={lr:g}; the theory needs ell ≤ lr. "
        "Use ell_ratio ≤ 1 to let ell follow a learning-rate schedule. (This warning is shown once.)"
    )
