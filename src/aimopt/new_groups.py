"""New parameter groups: what a user gives, completed with the parts and hyperparameters of its optimizer.

complete_group({"params": […], "lr": 1e-4}, optimizer.defaults)          the other values are the defaults
complete_group({"params": […], "geometry": Spectral()}, …)               a part of its own, with its hyperparameters
complete_group(another_optimizer.param_groups[0], …)                     all its parts are its own
"""

import inspect
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import torch

from aimopt import checkpoints
from aimopt.checks import RESERVED_KEYS, SHARED_KEYS, check_part
from aimopt.messages.spelling import suggestion
from aimopt.parts.composition import AXES, CYCLED, Parts
from aimopt.parts.decays import DECOUPLED_KEY, chosen_decay

_LATER_BETAS = "betas of groups added later"


def complete_group(given: dict[str, Any], defaults: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The whole group, and a warning if it sets a hyperparameter that nothing reads."""
    warning, parts = None, _parts(given, defaults)
    if not _has_all_parts(given):
        given, warning = _adapted(given, parts)
    group = {name: value for name, value in defaults.items() if name in SHARED_KEYS} | parts.to_group()
    not_stored = (*Parts._fields, DECOUPLED_KEY)
    return group | {name: value for name, value in given.items() if name not in not_stored}, warning


def let_schedulers_write_momentum(defaults: dict[str, Any]) -> None:
    """Offer schedulers `momentum` in place of `betas`, which groups that are added later still begin with."""
    if "betas" in defaults:
        defaults[_LATER_BETAS] = defaults.pop("betas")
        defaults[CYCLED] = defaults[_LATER_BETAS][0]


def _has_all_parts(group: dict[str, Any]) -> bool:
    """Whether it is a group of another optimizer, with all its parts."""
    complete = checkpoints.with_all_axes(group)
    return all(isinstance(complete.get(axis), str) for axis in Parts._fields)


def _parts(group: dict[str, Any], defaults: dict[str, Any]) -> Parts:
    if _has_all_parts(group):
        return Parts.from_group(checkpoints.with_all_axes(group))
    given = {axis: check_part(group[axis], axis) for axis in Parts._fields if axis in group}
    if _LATER_BETAS in defaults:
        defaults = {**{k: v for k, v in defaults.items() if k != CYCLED}, "betas": defaults[_LATER_BETAS]}
    parts = Parts.from_group(defaults)
    if DECOUPLED_KEY in group:
        parts = parts._replace(decay=chosen_decay(None, parts.decay.weight_decay, group[DECOUPLED_KEY]))
    if "decay" in given:
        given["decay"] = chosen_decay(given["decay"], parts.decay.weight_decay, True)
    return parts._replace(**given)


def _adapted(group: dict[str, Any], parts: Parts) -> tuple[dict[str, Any], str | None]:
    """A user's group with the names that its parts have, and a warning if it sets a hyperparameter that nothing reads.

    Trainers and schedulers put keys of their own into groups. So only names that an optimizer of this package or of
    torch has for a hyperparameter are looked at.
    """
    fields_of_parts = parts.to_group()
    adapted = dict(group)
    for part in parts:
        for alias, (name, convert) in part.aliases.items():
            if alias not in group or alias in fields_of_parts:
                continue
            if name in group:
                raise ValueError(f"a group has {alias}={group[alias]!r} and {name}={group[name]!r}; give {name} alone")
            adapted[name] = convert(adapted.pop(alias))
    read = {*fields_of_parts, *RESERVED_KEYS} - ({"betas"} if not parts.filter.betas else set())
    unread = [name for name in adapted if name not in read and name in _hyperparameter_names()]
    for name in unread:
        del adapted[name]
    if not unread:
        return adapted, None
    hyperparameters = sorted(read - {"params", "param_names", "skipped_steps", *Parts._fields})
    names = " + ".join(type(part).__name__ for part in parts)
    values = ", ".join(f"{name}={group[name]!r}" for name in unread)
    return adapted, (
        f"a group sets {values}, which nothing reads in {names}, and which is left out; "
        f"{_instead(unread[0], hyperparameters)}"
    )


def _instead(name: str, hyperparameters: Sequence[str]) -> str:
    if name == CYCLED and "betas" in hyperparameters:
        return "write betas=(β1, …), whose first number is its momentum"
    if name == "betas" and CYCLED in hyperparameters:
        return f"write {CYCLED}=β1"
    return suggestion(name, hyperparameters)


@lru_cache(maxsize=1)
def _hyperparameter_names() -> frozenset[str]:
    """What the optimizers of torch, and the parts that exist when this is first called, have as hyperparameters."""
    ours = {f.name for axis in AXES.values() for part in axis.registry.values() for f in fields(part)}
    aliases = {alias for axis in AXES.values() for part in axis.registry.values() for alias in part.aliases}
    torchs = [optimizer for optimizer in vars(torch.optim).values() if isinstance(optimizer, type)]
    signatures = [inspect.signature(o) for o in torchs if issubclass(o, torch.optim.Optimizer)]
    return frozenset({*ours, *aliases, *(name for signature in signatures for name in signature.parameters)})
