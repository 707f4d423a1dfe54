"""The reference of a comparison at other lengths, so that every difference can be stated in steps.

    study = compare("spirals", "mini")
    run(study, store="results")
    run_all(lengths(study, Store("results").runs(), factors=(0.5, 2)), store="results")
    analyse(study, store="results")          its contenders now have `equivalent`: "25 % fewer steps"

Each length is a complete schedule with the options and the learning rate that the comparison chose for its reference:
only the number of steps differs, and the warm-up in proportion. The comparison itself has the length 1. The rate is not
searched again, so a length far from 1 shows the reference at a rate that may be too low or too high for it.

`companion_runs` finds such runs again, whichever study made them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from aimopt.lab.protocol import tasks
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.schema import MAX_INTEGER, is_number
from aimopt.lab.protocol.search import with_options
from aimopt.lab.protocol.study import Study
from aimopt.lab.results.run import Run

NAME = "lengths"
SCALED = ("steps", "warmup_steps", "evaluate_every")  # settings in proportion to the length; log_every may stay
IGNORED = (*SCALED, "log_every")


def lengths(
    study: Study, runs: Mapping[str, Run], factors: Sequence[float] = (0.5, 2.0), seeds: Sequence[int] | None = None
) -> list[Study]:
    """One study per factor: the reference of a comparison at this multiple of its steps.

    Args:
        study: a comparison whose search for the reference has ended.
        runs: the runs of its store, by identity.
        factors: multiples of the steps of the comparison; 1 is the comparison itself, and is left out.
        seeds: by default those that every contender of the comparison has.
    """
    check_factors(study, factors)
    reference = study.contender(study.reference)
    choice = study.choice(reference, runs)
    if choice is None:
        raise ValueError(
            f"lengths() needs the learning rate of {study.reference} on {study.task}, and its search has not ended; "
            "run the comparison first"
        )
    options = with_options(study.facts.contenders[study.reference].options, dict(choice.point.options))
    contender = dataclasses.replace(reference, options=options, lr=choice.point.rate, tune=())
    planned = study.seeds[: study.looks[0]] if study.looks else study.seeds
    found = []
    for factor in dict.fromkeys(factors):
        settings = _settings_at(study, factor)
        if settings["steps"] != study.facts.settings["steps"]:
            found.append(
                Study(
                    name=NAME,
                    task=study.task,
                    scale=study.scale,
                    contenders=(contender,),
                    reference=contender.label,
                    rate_of=contender.label,  # no comparison, and no search: the grid has one rate
                    grid=(1.0,),
                    seeds=tuple(planned if seeds is None else seeds),
                    settings=settings,
                    search_steps=settings["steps"],
                )
            )
    return found


def check_factors(study: Study, factors: Sequence[float]) -> None:
    """Refuse multiples of the steps that no schedule, or no schedule of this task, can have."""
    if not factors or any(not 0 < factor < float("inf") for factor in factors):
        raise ValueError(f"lengths() needs positive factors, such as (0.5, 2), got {tuple(factors)}")
    longest = max(study.facts.settings[name] for name in SCALED if is_number(study.facts.settings.get(name)))
    for factor in factors:
        if longest * factor >= MAX_INTEGER:
            raise ValueError(f"lengths() cannot make schedules {factor:g} times as long; give a factor such as 2")
        try:
            tasks.find(study.task).at_scale(study.scale, _settings_at(study, factor))
        except ValueError as error:
            raise ValueError(f"lengths() cannot make schedules {factor:g} times as long: {error}") from None


def companion_runs(config: RunConfig, runs: Mapping[str, Run]) -> dict[int, dict[int, Run]]:
    """Finished complete schedules that differ from a config in their length and seed only: length -> seed -> run."""
    found: dict[int, dict[int, Run]] = {}
    for run in runs.values():
        other = run.config
        if run.settled and other.steps == other.settings.get("steps") and _differs_in_length_only(other, config):
            found.setdefault(other.steps, {})[other.seed] = run
    return dict(sorted(found.items()))


def _settings_at(study: Study, factor: float) -> dict[str, Any]:
    return {**study.settings, **_scaled(study.facts.settings, factor)}


def _scaled(settings: Mapping[str, Any], factor: float) -> dict[str, Any]:
    numbers = {name: settings[name] for name in SCALED if is_number(settings.get(name)) and settings[name]}
    scaled = {name: round(value * factor) for name, value in numbers.items()}
    return {name: max(1, value) for name, value in scaled.items()}


def _differs_in_length_only(one: RunConfig, other: RunConfig) -> bool:
    """Whether two configs agree in everything but the seed and the length, to which the warm-up is in proportion."""
    same = ("task", "scale", "optimizer", "options", "lr", "sources")
    if any(getattr(one, name) != getattr(other, name) for name in same):
        return False
    if {k: v for k, v in one.settings.items() if k not in IGNORED} != {
        k: v for k, v in other.settings.items() if k not in IGNORED
    }:
        return False
    scaled = _scaled(other.settings, one.steps / other.settings["steps"])
    return bool(one.settings.get("warmup_steps", 0) == scaled.get("warmup_steps", 0))
