"""Checkpoints: continue a run that another optimizer began, and let others continue ours.

A state dict is accepted when it holds the buffers our parts need and no others, in the shapes of our parameters,
whoever wrote it:

    torch.optim.Adam, AdamW    exp_avg and exp_avg_sq are RADAR's own state, so RADAR continues exactly
    pytorch-rad 0.2.1          the same, with its l as a fixed ell
    pytorch-rad 0.2.0          kept the filtered m and the previous gradient: the plain average is recovered from them
    torch.optim.SGD, Muon      momentum_buffer is that of HeavyBall: SGDM, Nesterov and Muon continue

The other way round, torch.optim.AdamW loads what RADAR saves. Hyperparameters follow torch's rule: those of the
checkpoint win where ours has the same one, and the rest stay as constructed. Nothing is changed before all is checked.
"""

import math
from typing import Any

import torch
from torch import Tensor

from aimopt.checks import check_group
from aimopt.components import Initial, Parts, scalar_dtype, scalar_one
from aimopt.gathering import kept_in

_PARTS = ("filter", "geometry", "correction")
_EXECUTION = ("foreach", "fused", "capturable", "differentiable")
_OF_SCHEDULERS = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")
_FOREIGN_BETAS = {2: ("beta", "beta2"), 3: ("beta", "beta_difference", "beta2")}  # what others mean by two, by three
_ALIASES = {"l": "ell", "decouple_weight_decay": "decoupled_weight_decay"}


def export(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Add what torch.optim.AdamW insists on and RADAR has under another name: ε = √ζ."""
    for group in state_dict["param_groups"]:
        if "zeta" in group:
            group.setdefault("eps", math.sqrt(group["zeta"] or 1e-16))
    return state_dict


def adapt(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """A state dict of any origin as one of `optimizer`'s own, or a ValueError that names the parameter in the way."""
    if not (isinstance(state_dict, dict) and {"state", "param_groups"} <= state_dict.keys()):
        raise ValueError("pass what optimizer.state_dict() returned: a dict with the keys 'state' and 'param_groups'")
    ours, saved = optimizer.param_groups, state_dict["param_groups"]
    sizes, saved_sizes = [[len(g["params"]) for g in groups] for groups in (ours, saved)]
    if sizes != saved_sizes:
        raise ValueError(
            f"the checkpoint has parameter groups of {saved_sizes} parameters and this optimizer of {sizes}; "
            "build the optimizer with the groups of the run that wrote it"
        )
    groups = [_adapt_group(own, theirs) for own, theirs in zip(ours, saved, strict=True)]
    for own, group in zip(ours, groups, strict=True):
        check_group({**group, "params": own["params"]})
    state = dict(state_dict["state"])
    for own, theirs, group in zip(ours, saved, groups, strict=True):
        buffers = Parts.from_group(group).buffers()
        names = own.get("param_names") or theirs.get("param_names") or [f"number {i}" for i in theirs["params"]]
        for p, key, name in zip(own["params"], theirs["params"], names, strict=True):
            if state.get(key):
                state[key] = _adapt_state(p, state[key], theirs, buffers, f"parameter {name}")
                for buffer, initial in buffers.items():
                    if initial is not scalar_one:
                        state[key][buffer] = state[key][buffer].to(kept_in(p, group))
    return {**state_dict, "state": state, "param_groups": groups}


def _adapt_group(own: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    theirs = {_ALIASES.get(name, name) if name not in own else name: value for name, value in theirs.items()}
    if all(theirs.get(axis) == own[axis] for axis in _PARTS):
        # What runs fused there may not be able to here.
        adopted = {name: value for name, value in theirs.items() if name != "fused" and (name in own or name != "eps")}
    else:
        betas = theirs.get("betas", ())
        adopted = {
            name: value
            for name, value in theirs.items()
            if (name in own or name in _OF_SCHEDULERS) and name not in (*_PARTS, *_EXECUTION)
        }
        if _beta_names(own) != (_beta_names(theirs) if "filter" in theirs else _FOREIGN_BETAS.get(len(betas))):
            adopted.pop("betas", None)
    return {**own, **adopted, "params": theirs["params"]}


def _beta_names(group: dict[str, Any]) -> tuple[str, ...]:
    filter, geometry, _ = Parts.from_group(group)
    return (*filter.betas, *geometry.betas)


def _adapt_state(
    p: Tensor, saved: dict[str, Any], group: dict[str, Any], buffers: dict[str, Initial], name: str
) -> dict[str, Any]:
    state = {key: value for key, value in saved.items() if value is not None}
    if "prev_grad" in state and "prev_grad" not in buffers and "l" in group:
        state["exp_avg"] = _plain_average(state["exp_avg"], state.pop("prev_grad"), group)
    if "momentum_buffer" in buffers and not group.get("dampening"):
        state.setdefault("step", 1)  # torch.optim.SGD and Muon do not count, and neither does HeavyBall
    missing = [key for key in ("step", *buffers) if key not in state]
    strange = [
        key
        for key, value in state.items()
        if key not in (*buffers, "step", "prev_grad")
        and isinstance(value, Tensor)
        and value.shape == p.shape
        and p.ndim
    ]
    if missing or strange:
        complaint = f"but not {missing[0]!r}" if missing else f"and {strange[0]!r} means nothing here"
        raise ValueError(
            f"the checkpoint's state of {name} has {sorted(saved)} {complaint}: "
            "it is of an optimizer whose run this one cannot continue"
        )
    for key, initial in buffers.items():
        value = state[key]
        if initial is not scalar_one and value.shape != p.shape:
            raise ValueError(
                f"{name} has shape {tuple(p.shape)} and the checkpoint's {key!r} for it {tuple(value.shape)}; "
                "is it a checkpoint of another model, or are the parameters in another order?"
            )
        if isinstance(value, float):
            state[key] = torch.tensor(value, dtype=scalar_dtype())
    if not isinstance(state["step"], Tensor):
        state["step"] = torch.tensor(float(state["step"]), dtype=scalar_dtype())
    if not state["step"].is_floating_point():
        state["step"] = state["step"].to(scalar_dtype())
    return state


def _plain_average(m: Tensor, previous: Tensor, group: dict[str, Any]) -> Tensor:
    """The average e of gradients from m = (1−γ/β)·e + (γ/β)·g; where γ = β, m does not depend on e: any will do."""
    beta, gamma = group["betas"][0], group["gamma"]
    return previous.clone() if beta in (0, gamma) else (m * beta - previous * gamma) / (beta - gamma)


def restore_dtypes(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Undo torch's cast of loaded state to the dtype of the parameter."""
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        for p, key in zip(group["params"], saved["params"], strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                loaded = optimizer.state[p][name]
                if isinstance(value, Tensor) and loaded.dtype != value.dtype:
                    optimizer.state[p][name] = value.detach().clone().to(loaded.device)
