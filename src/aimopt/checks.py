"""What a parameter group must be: every mistake gets a sentence with the value and what to do."""

from collections.abc import Sequence
from types import NoneType
from typing import Any

from torch import Tensor

from aimopt.components import Correction, Filter, Geometry, Parts, is_finite
from aimopt.gathering import parameter_name
from aimopt.kernels import why_not


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


def _check_numbers(group: dict[str, Any]) -> None:
    lr = group["lr"]
    if isinstance(lr, Tensor):
        check_tensor_lr(lr)
        lr = 0.0 if lr.is_meta else lr.item()
    for name, value in (("lr", lr), ("weight_decay", group["weight_decay"])):
        if not is_finite(value) or value < 0:
            raise ValueError(f"{name} must be a finite number ≥ 0, got {value!r}")


def check_tensor_lr(lr: Any) -> None:
    """Refuse a learning rate of several numbers; torch's own suite expects its words."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")


def _check_switches(group: dict[str, Any]) -> None:
    switches: dict[str, tuple[Any, ...]] = dict.fromkeys(
        ("maximize", "capturable", "differentiable", "skip_nonfinite", "stochastic_rounding"), (True, False)
    )
    switches |= dict.fromkeys(("foreach", "fused"), (True, False, None))
    switches["state_dtype"] = (None, "float32", "bfloat16")
    switches["decoupled_weight_decay"] = (True, False, "proximal")
    for name, choices in switches.items():
        value = group[name]
        if not (value in choices and isinstance(value, (bool, str, NoneType))):  # 1 == True, and is not it
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
