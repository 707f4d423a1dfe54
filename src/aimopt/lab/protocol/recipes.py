"""Functions that make the usual studies from a protocol.

    compare("spirals", optimizers=["Mine", "torch.optim:AdamW"])               which optimizer is better
    sensitivity("spirals", axes={"beta": (0.8, 0.9)}, optimizer="Mine")        the effect of an option

Both call `make_study`, which takes from the protocol what they do not give.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from aimopt.lab.defaults import SCALE
from aimopt.lab.protocol import optimizers as known_optimizers
from aimopt.lab.protocol import tasks
from aimopt.lab.protocol.protocol import Protocol, is_comparison
from aimopt.lab.protocol.run_config import usual_options, usual_rate
from aimopt.lab.protocol.search import can_be_tuned
from aimopt.lab.protocol.study import COMPARISON, Contender, Study
from aimopt.lab.protocol.task import Task


def compare(
    task: str,
    scale: str = SCALE,
    *,
    optimizers: Sequence[str] = (),
    protocol: Protocol | None = None,
    options: Mapping[str, Any] | None = None,
    tune: Sequence[str] = (),
    **fields: Any,
) -> Study:
    """A comparison of optimizers, each at the learning rate that a search chooses.

    Args:
        task: the name of a task, or its import path: `file.py:Class`.
        scale: a scale of the task.
        optimizers: such as `"Mine"`, `"Mine(weight_decay=0.1)"`, `"torch.optim:AdamW"`; by default those of the
            protocol.
        protocol: supplies what is not given here; by default that of the task.
        options: options for every optimizer that has them.
        tune: what every optimizer that has it searches besides its learning rate: `"beta1"`, `"weight_decay"`.
        fields: any field of `Study`.
    """
    protocol = tasks.entry(task).protocol(scale) if protocol is None else protocol
    names = optimizers or protocol.optimizers
    if not names:
        raise ValueError(f"name the optimizers to compare on {task}: its protocol has none")
    contenders = [Contender.named(name) for name in names]
    labels = [contender.label for contender in contenders]
    reference = protocol.reference if protocol.reference in labels else labels[-1]
    chosen = {"name": COMPARISON, "reference": reference, **fields}
    if protocol.subject in labels:
        chosen.setdefault("subject", protocol.subject)
    return make_study(task, scale, contenders, protocol, options or {}, chosen, tune)


def sensitivity(
    task: str,
    scale: str = SCALE,
    axes: Mapping[str, Sequence[Any]] | None = None,
    *,
    optimizer: str | None = None,
    protocol: Protocol | None = None,
    options: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Study:
    """One optimizer over values of one or more of its options, at the learning rate chosen for its defaults.

    The default optimizer is the subject of the protocol. The other arguments are those of `compare`.
    """
    protocol = tasks.entry(task).protocol(scale) if protocol is None else protocol
    optimizer = optimizer or protocol.subject
    if not axes or optimizer is None:
        raise ValueError(f"name the optimizer to vary on {task} and the values of its options: axes={{'name': (0, 1)}}")
    default = Contender.named(optimizer)
    contenders = [default]
    for values in itertools.product(*axes.values()):
        varied = dict(zip(axes, values, strict=True))
        label = ", ".join(
            f"{name}={value:.12g}" if isinstance(value, float) else f"{name}={value}" for name, value in varied.items()
        )
        contenders.append(dataclasses.replace(default, label=label, options={**default.options, **varied}))
    chosen = {
        "name": "sensitivity-" + "-".join(axes),
        "reference": default.label,
        "rate_of": default.label,
        "axes": tuple(axes),
        **fields,
    }
    return make_study(task, scale, contenders, protocol, options or {}, chosen)


def make_study(
    task: str,
    scale: str,
    contenders: Sequence[Contender],
    protocol: Protocol,
    options: Mapping[str, Any],
    fields: Mapping[str, Any],
    tune: Sequence[str] = (),
) -> Study:
    """A study of these contenders; the protocol supplies what neither they nor `fields` give."""
    task_at_scale = tasks.find(task).at_scale(scale, fields.get("settings"))
    comparison = is_comparison(fields.get("rate_of"), fields.get("axes", ()))
    if not comparison:
        protocol = protocol.with_fixed_seeds()  # a sweep looks for an effect over many values, not for one verdict

    def complete(contender: Contender) -> Contender:
        def usual(optimizer: str) -> dict[str, Any]:
            return {**usual_options(task, protocol, optimizer), **options}

        name = contender.optimizer
        complete_options = known_optimizers.with_usual(name, usual, contender.options)
        lr = usual_rate(task_at_scale, protocol, name) if contender.lr is None else contender.lr
        every = known_optimizers.resolved(name, {}, complete_options)
        tuned = contender.tune or tuple(option for option in tune if can_be_tuned(option, every))
        return dataclasses.replace(contender, options=complete_options, lr=lr, tune=tuned)

    _check_every_option_is_known(options, contenders)
    adaptive = _adaptive_fields(protocol, task_at_scale, fields)
    defaults = {
        "seeds": protocol.seeds,
        "grid": protocol.grid,
        "tuning_seed": protocol.tuning_seed,
        "search_steps": protocol.search_length(task_at_scale.steps),
        "published": protocol.published_for(contender.label for contender in contenders),
        **adaptive,
        "untuned": comparison and "looks" not in adaptive,  # a search around the usual rate has tried it
    }
    axes, symbols = fields.get("axes", ()), fields.get("symbols", protocol.symbols)
    chosen = {**defaults, **fields, "symbols": {axis: symbols[axis] for axis in axes if axis in symbols}}
    study = Study(task=task, scale=scale, contenders=tuple(map(complete, contenders)), **chosen)
    study.check()
    return study


def _adaptive_fields(protocol: Protocol, task: Task, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The search in rounds and the looks of the protocol; a given grid replaces the search, given seeds the looks."""
    adaptive: dict[str, Any] = {}
    if protocol.search is not None and "grid" not in fields:
        adaptive["search"] = protocol.search
    seeds = fields.get("seeds", protocol.seeds)
    looks = tuple(look for look in fields.get("looks", protocol.looks) if look <= len(seeds))
    if looks and looks[-1] == len(seeds):
        adaptive |= {"looks": looks, "margin": task.margin if protocol.margin is None else protocol.margin}
    return adaptive


def _check_every_option_is_known(options: Mapping[str, Any], contenders: Sequence[Contender]) -> None:
    for option, value in options.items():
        usual = {option: value}
        if not any(known_optimizers.takes_any(c.optimizer, usual, c.options) for c in contenders):
            labels = ", ".join(contender.label for contender in contenders)
            raise ValueError(f"none of {labels} has the option {option!r}; see `aimopt optimizers`")
