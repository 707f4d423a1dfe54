"""Optimizers a study may name: those of this package, and any torch optimizer class by its place.

make("RADAR", named_parameters, lr=1e-3, options={"gamma": 0.1})
make("torch.optim:AdamW", named_parameters, lr=1e-3, options={"weight_decay": 0.01})
"""

import inspect
import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from aimopt.lab import references
from aimopt.lab.user_code import user_code
from aimopt.optimizers import available, class_of
from aimopt.spelling import suggestion

# The paper's eight, in its order.
PAPER = ("RADAR", "RAD", "Adam", "AdamW", "NAdam", "Adan", "AdaBelief", "Lion")
# Their usual learning rates in units of Adam's, as in the paper.
_USUAL_FACTORS = {"Adan": 2.5, "Lion": 0.1, "AcceleratedLion": 0.1}


def canonical(name: str) -> str:
    """The name as tables print it; refuses a name that stands for no optimizer."""
    if ":" not in name:
        return class_of(name).__name__
    _class(name)
    return name


def usual_factor(name: str) -> float:
    """Where the search is centred, in units of the task's η₀."""
    return _USUAL_FACTORS.get(name, 1.0)


def resolved(name: str, usual: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of an optimizer: those said, else those usual on a task that it has, else its own defaults.

    Defaults are part of what determines a result: a later version may have others.
    """
    parameters = inspect.signature(_class(name)).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if "lr" in options or "params" in options:
        raise ValueError(f"{name} is given its learning rate and parameters by the run; leave them out of its options")
    unknown = [option for option in options if option not in parameters]
    if unknown and not open_ended:
        known = [option for option in parameters if option not in ("self", "params", "lr")]
        raise ValueError(f"{name} has no option {unknown[0]!r}; {suggestion(unknown[0], known)}")
    defaults = {option: p.default for option, p in parameters.items() if _plain(p.default) and option != "lr"}
    usual = {option: value for option, value in usual.items() if option in parameters}
    chosen = {**defaults, **usual, **options}
    floats = {option for option, value in defaults.items() if isinstance(value, float)}
    return {
        option: float(value) if option in floats and type(value) is int else value for option, value in chosen.items()
    }


def make(
    name: str, parameters: Iterable[tuple[str, Tensor]], *, lr: float, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """Build one; a class that knows no parameter names is given the parameters alone."""
    named = list(parameters)
    optimizer = _class(name)
    chosen = {option: tuple(value) if isinstance(value, list) else value for option, value in options.items()}
    try:
        built = optimizer(named, lr=lr, **chosen)
    except (TypeError, AttributeError):
        built = optimizer([parameter for _, parameter in named], lr=lr, **chosen)
    return built


def check(name: str, *, lr: float, options: Mapping[str, Any], label: str) -> None:
    """Refuse what the optimizer refuses, before anything is trained with it; `label` is what messages call it."""
    step = inspect.signature(_class(name).step).parameters
    if "closure" in step and step["closure"].default is inspect.Parameter.empty:
        raise ValueError(f"{label} needs a closure for every step, which a run does not give; choose another optimizer")
    matrix = torch.zeros(2, 2, requires_grad=True)  # for those, too, that take matrices alone
    with warnings.catch_warnings(), user_code(f"{label} cannot be made"):
        warnings.simplefilter("ignore")  # what it warns of is said when it trains
        make(name, [("weight", matrix)], lr=lr, options=options)


def load_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load a state to the bit: torch casts what an optimizer keeps to the parameter's type, which may be coarser."""
    optimizer.load_state_dict(dict(saved))
    indices = [index for group in saved["param_groups"] for index in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, parameter in zip(indices, parameters, strict=True):
        state = optimizer.state.get(parameter)
        for name, value in saved["state"].get(index, {}).items():
            if isinstance(value, Tensor) and isinstance(state, dict) and state[name].dtype != value.dtype:
                state[name] = value.to(state[name].device, copy=True)


def describe() -> list[tuple[str, str]]:
    """Every optimizer of the package, with the first line of its documentation."""
    return [(name, (class_of(name).__doc__ or "").strip().splitlines()[0]) for name in available()]


def _plain(value: Any) -> bool:
    """Whether a default can be part of an identity."""
    if isinstance(value, tuple):
        return all(map(_plain, value))
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def _class(name: str) -> Any:
    if ":" not in name:
        return class_of(name)
    optimizer = references.load(name)
    if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
        raise ValueError(f"{name} is no optimizer; name a class that derives from torch.optim.Optimizer")
    return optimizer
