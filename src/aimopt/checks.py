"""What a parameter group must be: every mistake gets a sentence with the value and what to do."""

from collections.abc import Sequence
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from aimopt.components import Correction, Filter, Geometry, Parts, is_finite
from aimopt.gathering import parameter_name
from aimopt.kernels import why_not
from aimopt.kernels.usable import DTYPES
from aimopt.storage import too_short


def check_group(group: dict[str, Any], others: Sequence[dict[str, Any]] = ()) -> None:
    """Refuse a group that cannot be stepped, alone or beside `others`."""
    parts = Parts.from_group(group)
    parts.validate()
    _check_numbers(group)
    _check_switches(group)
    if parts.geometry.matrices_only:
        _check_matrices(group, type(parts.geometry).__name__)
    if parts.correction.joint and group["decoupled_weight_decay"] == "proximal" and group["weight_decay"]:
        raise ValueError(
            f"{type(parts.correction).__name__} cannot solve for a point that is decayed after the step; "
            "use decoupled_weight_decay=True or False"
        )
    check_joint([parts, *map(Parts.from_group, others)])
    if group["fused"] and (reason := why_not(parts, group)):
        # torch's own optimizers call a device without a kernel a RuntimeError.
        kind = RuntimeError if any(p.is_meta for p in group["params"]) else ValueError
        raise kind(f"fused=True: {reason}; leave fused=None")


def check_joint(of_groups: Sequence[Parts]) -> None:
    """Refuse a correction that solves for all parameters beside one that does not."""
    joint = [type(parts.correction).__name__ for parts in of_groups if parts.correction.joint]
    if joint and len(joint) < len(of_groups):
        raise ValueError(f"{joint[0]} solves for all parameters at once: give it to every parameter group")


SWITCHES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("maximize", "capturable", "differentiable", "skip_nonfinite", "stochastic_rounding"), (True, False)
    ),
    **dict.fromkeys(("foreach", "fused"), (True, False, None)),
    "state_dtype": (None, "float32", "bfloat16"),
    "decoupled_weight_decay": (True, False, "proximal"),
}


def check_step_values(group: dict[str, Any]) -> None:
    """Refuse values that no step can be made with; whoever schedules a learning rate may let it fall below zero."""
    lr = group["lr"]
    if not (isinstance(lr, Tensor) or is_finite(lr)):
        raise ValueError(f"lr must be a finite number, got {lr!r}")
    _check_not_negative("weight_decay", group["weight_decay"])
    _check_switches(group)


def check_tensor_lr(lr: Any) -> None:
    """Refuse a tensor that is no learning rate; torch's own suite expects its words."""
    if not isinstance(lr, Tensor):
        return
    if lr.numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
    if lr.dtype not in DTYPES or lr.is_complex() or lr.layout != torch.strided:
        raise ValueError(f"a tensor lr must be a real number, got {lr.dtype} of layout {lr.layout}")
    if reason := too_short("lr", lr):
        raise ValueError(reason)


def _check_numbers(group: dict[str, Any]) -> None:
    lr = group["lr"]
    if isinstance(lr, Tensor):
        check_tensor_lr(lr)
        lr = 0.0 if lr.is_meta else lr.item()
    _check_not_negative("lr", lr)
    _check_not_negative("weight_decay", group["weight_decay"])


def _check_not_negative(name: str, value: Any) -> None:
    if not is_finite(value) or value < 0:
        raise ValueError(f"{name} must be a finite number ≥ 0, got {value!r}")


def _check_switches(group: dict[str, Any]) -> None:
    for name, choices in SWITCHES.items():
        value = group[name]
        if not (isinstance(value, (bool, str, NoneType)) and value in choices):  # 1 == True, and is not it
            raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")
    if group["foreach"] and group["differentiable"]:
        raise ValueError("foreach=True cannot be differentiated through; leave foreach=None")


def _check_matrices(group: dict[str, Any], geometry: str) -> None:
    for i, p in enumerate(group["params"]):
        if p.ndim < 2 or p.is_complex():
            raise ValueError(
                f"{geometry} takes real matrices and convolution kernels, but {parameter_name(group, i)} has shape "
                f"{tuple(p.shape)} and dtype {p.dtype}; give such parameters to another optimizer: "
                "see aimopt.groups.split and aimopt.groups.combine"
            )


def check_part(part: Any, axis: str) -> Any:
    """Refuse what is not a part of an axis."""
    known = {"filter": Filter, "geometry": Geometry, "correction": Correction}[axis]
    if not isinstance(part, known):
        raise ValueError(f"{axis} must be a {known.__name__}, such as those in aimopt, got {part!r}")
    return part
