"""What the commands of the theory are given: an optimizer by name, or a class in a user's file.

    source("radar", {"gamma": 0.3})           the optimizer, for one small matrix
    source("mine.py:MyFilter", {})            the filter
    part("mine.py:MyGeometry")                a part with its default values

It imports torch, so the command line imports it when a command runs.
"""

import inspect
from typing import TYPE_CHECKING, Any, cast

import torch

from aimopt.aim import AIM
from aimopt.lab.protocol import import_paths
from aimopt.lab.protocol.user_code import user_code
from aimopt.optimizers import class_of
from aimopt.parts.component import Component, Correction, Filter
from aimopt.parts.composition import Parts
from aimopt.parts.filters import EMA

if TYPE_CHECKING:
    from aimopt.theory.linear_step import Source


def source(name: str, hyperparameters: dict[str, Any]) -> "Source":
    """The optimizer, filter, or correction with an average, with those of these hyperparameters that it has."""
    kind = _class(name)
    given = {key: value for key, value in hyperparameters.items() if key in arguments(name)}
    if issubclass(kind, AIM):
        make: Any = kind
        return cast(AIM, make([torch.zeros(2, 2, requires_grad=True)], **given))
    own = _build(kind, name, given)
    if isinstance(own, Filter):
        return own
    if isinstance(own, Correction):
        return EMA(0.9), own
    raise ValueError(f"{name} is a {own.axis}, which has no response; give an optimizer, a filter or a correction")


def part(name: str) -> Component:
    """The part at an import path, with its default values."""
    kind = _class(name)
    if not issubclass(kind, Component):
        raise ValueError(f"{name} is an optimizer; give the class of a part")
    return _build(kind, name, {})


def arguments(name: str) -> set[str]:
    """The hyperparameters of an optimizer or part."""
    return set(inspect.signature(_class(name)).parameters) - {"params"}


def label(source: "Source") -> str:
    """The class of an optimizer or filter; of a correction with an average, the correction's."""
    return type(source[1] if isinstance(source, tuple) else source).__name__


def stability_limit(source: "Source") -> str:
    """The largest stable step on a quadratic, or why there is none."""
    from aimopt.theory import quadratic

    if isinstance(source, AIM):
        parts: tuple[Any, ...] = Parts.from_group(source.param_groups[0])
    else:
        parts = source if isinstance(source, tuple) else (source,)
    for one in parts:
        if not getattr(one, "linear", True):
            return f"— ({type(one).__name__} is not linear)"
    return f"{quadratic(source).largest_stable:.4g}"


def _class(name: str) -> type:
    if ":" not in name:
        return class_of(name)
    loaded = import_paths.load(name)
    if not (isinstance(loaded, type) and issubclass(loaded, (AIM, Component)) and not inspect.isabstract(loaded)):
        raise ValueError(f"{name} is not the class of an optimizer or of a part of aimopt; it is {loaded!r}")
    return loaded


def _build(kind: type, name: str, values: dict[str, Any]) -> Component:
    with user_code(f"{name} cannot be built", explained=(ValueError,)):
        return cast(Component, kind(**values))
