"""Optimizers that a study may name: those of this package, and any torch optimizer class by its import path.

make("torch.optim:SGD", named_parameters, lr=1e-3, options={"weight_decay": 0.01})
make("file.py:Mine", named_parameters, lr=1e-3, options={})
"""

import inspect
import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from aimopt.checkpoints import restore_dtypes
from aimopt.lab.protocol import import_paths
from aimopt.lab.protocol.user_code import user_code
from aimopt.messages.spelling import suggestion
from aimopt.optimizers import available, class_of


def canonical(name: str) -> str:
    """The name as tables print it; refuses an unknown name."""
    if ":" not in name:
        return class_of(name).__name__
    _class(name)
    return name


def known_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that an optimizer has; the others are left out."""
    parameters = inspect.signature(_class(name)).parameters
    return {option: value for option, value in options.items() if option in parameters}


def resolved(name: str, usual: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of an optimizer: the given value of each, else the usual value on the task, else the default.

    Default values are included because they determine the result, and a later version may have other defaults. Left out
    are those of a class's `later_keywords`: runs that were made before these keywords existed keep their identity.
    """
    parameters = inspect.signature(_class(name)).parameters
    accepts_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if "lr" in options or "params" in options:
        raise ValueError(f"the run passes lr and params to {name}; leave them out of its options")
    unknown = [option for option in options if option not in parameters]
    if unknown and not accepts_any:
        known = [option for option in parameters if option not in ("self", "params", "lr")]
        raise ValueError(f"{name} has no option {unknown[0]!r}; {suggestion(unknown[0], known)}")
    defaults = {option: p.default for option, p in parameters.items() if _plain(p.default) and option != "lr"}
    chosen = {**defaults, **known_options(name, usual), **options}
    later = getattr(_class(name), "later_keywords", ())
    chosen = {o: value for o, value in chosen.items() if o not in later or value != defaults.get(o)}
    floats = {option for option, value in defaults.items() if isinstance(value, float)}
    return {
        option: float(value) if option in floats and type(value) is int else value for option, value in chosen.items()
    }


def make(
    name: str, parameters: Iterable[tuple[str, Tensor]], *, lr: float, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """Build an optimizer; a class that does not accept named parameters gets the parameters without names."""
    named = list(parameters)
    optimizer = _class(name)
    chosen = {option: tuple(value) if isinstance(value, list) else value for option, value in options.items()}
    try:
        built = optimizer(named, lr=lr, **chosen)
    except (TypeError, AttributeError):
        built = optimizer([parameter for _, parameter in named], lr=lr, **chosen)
    return built


def check(name: str, *, lr: float, options: Mapping[str, Any], label: str) -> None:
    """Refuse options that the optimizer refuses, before anything is trained; messages call it `label`."""
    step = inspect.signature(_class(name).step).parameters
    if "closure" in step and step["closure"].default is inspect.Parameter.empty:
        raise ValueError(f"{label} needs a closure for every step, but runs pass none; choose another optimizer")
    matrix = torch.zeros(2, 2, requires_grad=True)  # some optimizers accept only matrices
    with warnings.catch_warnings(), user_code(f"{label} cannot be made"):
        warnings.simplefilter("ignore")  # training shows the same warnings
        make(name, [("weight", matrix)], lr=lr, options=options)


def load_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load a state without rounding: `load_state_dict` casts tensors to the type of the parameter."""
    optimizer.load_state_dict(dict(saved))
    restore_dtypes(optimizer, saved)


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
    optimizer = import_paths.load(name)
    if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
        raise ValueError(f"{name} is not an optimizer; name a class that derives from torch.optim.Optimizer")
    return optimizer
