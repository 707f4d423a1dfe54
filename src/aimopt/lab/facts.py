"""What a study takes from code: its task's title, measures and settings, and all options of its optimizers.

It is kept with the study, so that results can be read, analysed and reported without loading a task or an optimizer.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from aimopt.lab import optimizers, tasks
from aimopt.lab.config import RunConfig, plain
from aimopt.lab.shapes import fields, list_of, map_of, number, one_of, text, whole
from aimopt.lab.shapes import plain as plain_shape
from aimopt.lab.tasks.task import Measure

_MEASURE = fields({"key": text, "label": text, "better": one_of("lower", "higher")})
_CONTENDER = fields({"usual_rate": number(above=0), "options": map_of(plain_shape), "sources": map_of(text)})
SHAPE = fields({
    "title": text,
    "score": _MEASURE,
    "measure": _MEASURE,
    "published": map_of(list_of(number(), length=2)),
    "settings": map_of(plain_shape),
    "contenders": map_of(_CONTENDER),
})  # fmt: skip
_LENGTHS = ("steps", "search_steps", "evaluate_every")


@dataclass(frozen=True, kw_only=True)
class ContenderFacts:
    """What running a contender takes from its optimizer's class and from the task."""

    usual_rate: float
    options: Mapping[str, Any]  # all of them
    sources: Mapping[str, str]  # checksums of the user's files


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a study takes from code."""

    title: str  # of the task, at the study's scale
    score: Measure
    measure: Measure
    published: Mapping[str, tuple[float, float]]
    settings: Mapping[str, Any]  # all of them
    contenders: Mapping[str, ContenderFacts]  # by label

    @classmethod
    def from_code(
        cls, task: str, scale: str, settings: Mapping[str, Any], contenders: Mapping[str, tuple[str, Mapping[str, Any]]]
    ) -> Self:
        """Of the task and optimizers that these names stand for; contenders are optimizers and options by label."""
        made = tasks.find(task).at(scale, settings)
        found = {}
        for label, (optimizer, options) in contenders.items():
            usual = RunConfig.of(task, scale, optimizer=optimizer, options=options, settings=settings)
            rate = made.lr * optimizers.usual_factor(optimizer)
            found[label] = ContenderFacts(usual_rate=rate, options=usual.options, sources=usual.sources)
        return cls(
            title=made.title_at(scale),
            score=made.score,
            measure=made.measure,
            published=made.published,
            settings=plain(dataclasses.asdict(made)),
            contenders=found,
        )

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Self:
        """From what `to_dict` gave, perhaps through a file."""
        SHAPE(kept, "facts of a study")
        for name in _LENGTHS:
            whole(1)(kept["settings"].get(name), f"{name} of facts of a study")
        return cls(
            title=kept["title"],
            score=Measure(**kept["score"]),
            measure=Measure(**kept["measure"]),
            published={name: (mean, std) for name, (mean, std) in kept["published"].items()},
            settings=kept["settings"],
            contenders={label: ContenderFacts(**own) for label, own in kept["contenders"].items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, strings, lists and dictionaries."""
        return plain(dataclasses.asdict(self))
