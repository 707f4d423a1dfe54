"""New parameter groups: what a user gives, completed with the parts and hyperparameters of its optimizer.

listed_params(model.parameters())                                         a list, or what to write instead
complete_group({"params": […], "lr": 1e-4}, optimizer.defaults)          the other values are the defaults
complete_group({"params": […], "geometry": Spectral()}, …)               a part of its own, with its hyperparameters
complete_group(another_optimizer.param_groups[0], …)                     all its parts are its own
"""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import fields
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from aimopt import checkpoints
from aimopt.checks import RESERVED_KEYS, SHARED_KEYS, check_part
from aimopt.messages.spelling import SYNONYMS, suggestion
from aimopt.parts.composition import AXES, CYCLED, Parts
from aimopt.parts.decays import DECOUPLED_KEY, chosen_decay
from aimopt.step.gather import parameter_name

_LATER_BETAS = "betas of groups added later"
_TYPING_ERROR = 0.85  # the likeness of two names from which on one is the other, misspelled


def listed_params(params: Any) -> list[Any]:
    """The parameters or groups that a constructor was given. The errors are of torch's classes, and say what to do."""
    if isinstance(params, Tensor):
        raise TypeError(
            "params argument given to the optimizer should be an iterable of Tensors or dicts, but got "
            f"{torch.typename(params)}; write [p] for one parameter p"
        )
    if isinstance(params, nn.Module):
        raise TypeError(f"params must be parameters, got the module {type(params).__name__}; pass .parameters()")
    if isinstance(params, (dict, str)) or not isinstance(params, Iterable):
        one_group = isinstance(params, dict) and "params" in params
        raise TypeError(
            f"params must be an iterable of parameters or groups, got {_described(params)}; "
            f"{'write [group] for one parameter group' if one_group else 'pass model.parameters()'}"
        )
    if isinstance(params, (list, tuple)) and not params:
        return [{"params": []}]  # one side of a hybrid may be empty; an exhausted iterator is a mistake
    listed = list(params)
    if not listed:
        raise ValueError(
            "optimizer got an empty parameter list; if it came from an iterator that was used before, such as "
            "model.parameters(), make a new one; if the whole model is frozen, there is nothing to train"
        )
    return listed


def check_group_params(group: Any, others: Sequence[dict[str, Any]], differentiable: bool) -> dict[str, Any]:
    """A group with its parameters as a list, or the error for what is no group, and no parameter for this optimizer."""
    if not isinstance(group, dict):
        raise TypeError(
            f"a parameter group must be a dict with the key 'params', got {_described(group)}; write {{'params': …}}"
        )
    if "params" not in group:
        raise ValueError(
            f"a parameter group must have the key 'params', got {_described(group)}; write "
            "{'params': model.parameters()}"
        )
    params = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
    if isinstance(params, (set, str)) or not isinstance(params, Iterable):
        return group  # torch has an error for these
    params = list(params)
    group_of = {id(p): i for i, other in enumerate(others) for p in other["params"]}
    for i, given in enumerate(params):
        named = isinstance(given, tuple) and len(given) == 2
        p = given[1] if named else given
        name = f"parameter {given[0]!r}" if named else parameter_name(group, i)
        if not isinstance(p, Tensor):
            raise TypeError(f"optimizer can only optimize Tensors, but {name} is {p!r}; pass model.parameters()")
        if not (differentiable or p.is_leaf or p.retains_grad):
            raise ValueError(
                f"can't optimize a non-leaf Tensor: {name} is the result of {type(p.grad_fn).__name__}; pass the "
                "parameters that it was computed from, or its .detach().requires_grad_()"
            )
        if id(p) in group_of:
            raise ValueError(
                f"some parameters appear in more than one parameter group: {name}, of shape {tuple(p.shape)}, is in "
                f"group {group_of[id(p)]} too; give each parameter to one group"
            )
    return {**group, "params": params}


def _described(value: Any) -> str:
    """A value of a wrong type, in a message."""
    if value is None:
        return "None"
    kind = type(value).__name__
    article = "an" if kind[0] in "AEIOUaeiou" else "a"
    if not isinstance(value, dict):
        return f"{article} {kind}"
    keys = [repr(key) for key in list(value)[:3]] + ["…"] * (len(value) > 3)
    return f"{article} {kind} with the keys [{', '.join(keys)}]"


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


def default_parts(defaults: dict[str, Any]) -> Parts:
    """The parts of an optimizer's groups that are added without parts of their own."""
    if _LATER_BETAS in defaults:
        defaults = {**{k: v for k, v in defaults.items() if k != CYCLED}, "betas": defaults[_LATER_BETAS]}
    return Parts.from_group(defaults)


def _has_all_parts(group: dict[str, Any]) -> bool:
    """Whether it is a group of another optimizer, with all its parts."""
    complete = checkpoints.with_all_axes(group)
    return all(isinstance(complete.get(axis), str) for axis in Parts._fields)


def _parts(group: dict[str, Any], defaults: dict[str, Any]) -> Parts:
    if _has_all_parts(group):
        return Parts.from_group(checkpoints.with_all_axes(group), complete=False)
    given = {axis: check_part(group[axis], axis) for axis in Parts._fields if axis in group}
    parts = default_parts(defaults)
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
    hyperparameters = sorted(read - {"params", "param_names", "skipped_steps", *Parts._fields})
    if not unread:
        return adapted, _warning_about_spelling(adapted, read, hyperparameters)
    names = " + ".join(type(part).__name__ for part in parts)
    values = ", ".join(f"{name}={group[name]!r}" for name in unread)
    return adapted, (
        f"a group sets {values}, which nothing reads in {names}, and which is left out; "
        f"{_instead(unread[0], hyperparameters)}"
    )


def _warning_about_spelling(group: dict[str, Any], read: set[str], hyperparameters: Sequence[str]) -> str | None:
    """The warning for a key that is nearly one of ours. All others are the user's own."""
    for name in group:
        if not isinstance(name, str) or name in read:
            continue
        likeness = {known: SequenceMatcher(None, name, known).ratio() for known in hyperparameters}
        meant = SYNONYMS.get(name) or max(likeness, key=lambda known: likeness[known])
        if meant in likeness and (name in SYNONYMS or likeness[meant] > _TYPING_ERROR):
            return f"a group has {name}={group[name]!r}, which nothing reads; did you mean {meant!r}?"
    return None


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
