"""What a study reads from code: title, measures and settings of its task, and all options of its optimizers.

The facts are stored with the study. Results can then be read, analysed and reported without loading a task or an
optimizer.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, get_args

from aimopt.lab.protocol import tasks
from aimopt.lab.protocol.protocol import Protocol
from aimopt.lab.protocol.run_config import RunConfig, as_json_value
from aimopt.lab.protocol.schema import fields, integer, list_of, map_of, number, one_of, plain, text
from aimopt.lab.protocol.task import Measure
from aimopt.lab.stats.values import Better

_MEASURE = fields({"key": text, "label": text, "better": one_of(*get_args(Better))})
_CONTENDER = fields({"usual_rate": number(above=0), "options": map_of(plain), "sources": map_of(text)})
SHAPE = fields(
    {
        "title": text,
        "score": _MEASURE,
        "measure": _MEASURE,
        "settings": map_of(plain),
        "contenders": map_of(_CONTENDER),
    },
    {"published": map_of(list_of(number(), length=2))},  # written by older versions; part of the study now
)
_LENGTHS = ("steps", "evaluate_every")


@dataclass(frozen=True, kw_only=True)
class ContenderFacts:
    """What the runs of a contender take from the class of its optimizer and from the task."""

    usual_rate: float
    options: Mapping[str, Any]  # all options, also those with default values
    sources: Mapping[str, str]  # checksums of the user's files, by import path


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a study reads from code."""

    title: str  # of the task, at the study's scale
    score: Measure
    measure: Measure
    settings: Mapping[str, Any]  # all settings of the task
    contenders: Mapping[str, ContenderFacts]  # by label

    @classmethod
    def from_code(
        cls,
        task: str,
        scale: str,
        settings: Mapping[str, Any],
        contenders: Mapping[str, tuple[str, Mapping[str, Any], float | None]],
    ) -> Self:
        """Load the task and the optimizers; `contenders` maps a label to (optimizer, options, lr)."""
        entry = tasks.entry(task)
        task_at_scale = entry.task.at_scale(scale, settings)
        contender_facts = {}
        for label, (optimizer, options, lr) in contenders.items():
            config = RunConfig.create(
                task, scale, optimizer=optimizer, options=options, settings=settings, protocol=Protocol()
            )
            rate = task_at_scale.lr if lr is None else lr
            contender_facts[label] = ContenderFacts(usual_rate=rate, options=config.options, sources=config.sources)
        return cls(
            title=task_at_scale.title_at(scale),
            score=task_at_scale.score,
            measure=task_at_scale.measure,
            settings=as_json_value({**entry.former_settings, **task_at_scale.recorded_settings(scale)}),
            contenders=contender_facts,
        )

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Facts from the result of `to_dict`, which may have been read from a file."""
        SHAPE(record, "facts of a study")
        for name in _LENGTHS:
            integer(1)(record["settings"].get(name), f"{name} of facts of a study")
        return cls(
            title=record["title"],
            score=Measure(**record["score"]),
            measure=Measure(**record["measure"]),
            settings=record["settings"],
            contenders={label: ContenderFacts(**facts) for label, facts in record["contenders"].items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, strings, lists and dictionaries."""
        return as_json_value(dataclasses.asdict(self))
