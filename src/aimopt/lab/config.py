"""One run: everything that determines its result, and the identity that follows from it.

    config = RunConfig.of("digits", "demo", optimizer="RADAR", lr=1e-3, seed=0)
    config.identity                    "5c0e…": another seed, option or setting, another identity

Where it runs, on how many threads and with which versions is not part of it: that is provenance, kept beside it.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from aimopt.lab import optimizers, references, shapes, tasks
from aimopt.lab.shapes import fields, map_of, number, text, whole
from aimopt.lab.user_code import user_code

# Settings of a task that say which runs a study consists of, and nothing about any of them.
_OF_THE_STUDY = ("lr", "grid", "seeds", "search_steps")
_NO_SEARCH = {"search_steps": 1}  # fits every length of a run
SHAPE = fields(
    {
        "task": text,
        "scale": text,
        "settings": map_of(shapes.plain),
        "optimizer": text,
        "options": map_of(shapes.plain),
        "lr": number(),
        "seed": whole(0),
        "steps": whole(),
    },
    {"sources": map_of(text)},
)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run of one optimizer on one task."""

    task: str
    scale: str
    settings: Mapping[str, Any]  # every setting of the task
    optimizer: str
    options: Mapping[str, Any]  # what it is given besides its learning rate
    lr: float
    seed: int
    steps: int  # how far to go; the schedule may be longer
    sources: Mapping[str, str] = field(default_factory=dict)  # checksums of the user's files it depends on

    @classmethod
    def of(
        cls,
        task: str,
        scale: str = "mini",
        *,
        optimizer: str,
        lr: float | None = None,
        seed: int = 0,
        steps: int | None = None,
        options: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Self:
        """A run in which the task says what is not said here; the learning rate is its η₀ for this optimizer."""
        chosen = tasks.find(task).at(scale, settings)
        name = optimizers.canonical(optimizer)
        rate = float(written(chosen.lr * optimizers.usual_factor(name) if lr is None else lr))
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"the learning rate must be a positive number, got {rate}")
        length = chosen.steps if steps is None else steps
        if not 0 < length <= chosen.steps:
            raise ValueError(f"steps must be from 1 to {chosen.steps}, the length of the schedule, got {length}")
        with user_code(f"{task} cannot say the options of {name}"):
            usual = chosen.options(name)
        complete = optimizers.resolved(name, usual, options or {})
        return cls(
            task=task,
            scale=scale,
            settings=of_a_run(plain(dataclasses.asdict(chosen))),
            optimizer=name,
            options=plain(complete),
            lr=rate,
            seed=seed,
            steps=length,
            sources={**references.source(task), **references.source(name)},
        )

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Self:
        """A config from what `to_dict` gave, perhaps through a file."""
        SHAPE(kept, "a run")
        return cls(**{**kept, "lr": float(kept["lr"])})

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, strings, lists and dictionaries."""
        return dataclasses.asdict(self)

    @cached_property
    def identity(self) -> str:
        """The hash of everything that determines the result."""
        # Not by `to_dict`: a store of thousands of runs asks for all of theirs, and copies take most of the time.
        named = {name: getattr(self, name) for name in _FIELDS}
        return hashlib.sha256(_CANONICAL.encode(named).encode()).hexdigest()

    def make_task(self) -> tasks.Task:
        """The task, with this run's settings."""
        settings = {name: frozen(value) for name, value in self.settings.items()}
        return tasks.find(self.task).at(self.scale, {**_NO_SEARCH, **settings})

    def check(self) -> None:
        """Refuse what could not be run, as a file that people write may say."""
        again = RunConfig.of(
            self.task,
            self.scale,
            optimizer=self.optimizer,
            lr=self.lr,
            seed=self.seed,
            steps=self.steps,
            options=self.options,
            settings={**_NO_SEARCH, **{name: frozen(value) for name, value in self.settings.items()}},
        )
        assert again.task == self.task

    def check_optimizer(self, label: str | None = None) -> None:
        """Refuse options that the optimizer refuses: it is made once, for a small matrix."""
        optimizers.check(self.optimizer, lr=self.lr, options=self.options, label=label or self.optimizer)

    def __str__(self) -> str:
        return f"{self.task} {self.optimizer} lr {self.lr:g} seed {self.seed}"


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_FIELDS = tuple(f.name for f in dataclasses.fields(RunConfig))


def of_a_run(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a task that determine a run."""
    return {name: value for name, value in settings.items() if name not in _OF_THE_STUDY}


def written(rate: float) -> float:
    """A rate as people would write it: 0.1 · 3e-4 is 3.0000000000000004e-05."""
    return float(f"{rate:.12g}")


def plain(value: Any) -> Any:
    """As JSON gives it back."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} cannot be kept; use finite numbers, text, lists and names") from None


def frozen(value: Any) -> Any:
    """A list as a tuple: a task's settings can be hashed."""
    return tuple(frozen(item) for item in value) if isinstance(value, list) else value
