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
from typing import Any, Self

from aimopt.lab import optimizers, references, tasks


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
        rate = chosen.lr * optimizers.usual_factor(name) if lr is None else lr
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"the learning rate must be a positive number, got {rate}")
        length = chosen.steps if steps is None else steps
        if not 0 < length <= chosen.steps:
            raise ValueError(f"steps must be from 1 to {chosen.steps}, the length of the schedule, got {length}")
        complete = optimizers.resolved(name, chosen.options(name), options or {})
        return cls(
            task=task,
            scale=scale,
            settings=_plain(dataclasses.asdict(chosen)),
            optimizer=name,
            options=_plain(complete),
            lr=rate,
            seed=seed,
            steps=length,
            sources={**references.source(task), **references.source(name)},
        )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """A config from what `to_dict` gave, perhaps through a file."""
        known = {f.name for f in dataclasses.fields(cls)}
        missing, unknown = known - {"sources"} - set(fields), set(fields) - known
        if missing or unknown:
            wrong = f"lacks {sorted(missing)[0]!r}" if missing else f"has no {sorted(unknown)[0]!r}"
            raise ValueError(f"a run {wrong}; its fields are {', '.join(sorted(known))}")
        return cls(**{name: _plain(value) for name, value in fields.items()})

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, strings, lists and dictionaries."""
        return dataclasses.asdict(self)

    @property
    def identity(self) -> str:
        """The hash of everything that determines the result."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def make_task(self) -> tasks.Task:
        """The task, with this run's settings."""
        return tasks.find(self.task)(**{name: _frozen(value) for name, value in self.settings.items()})

    def __str__(self) -> str:
        return f"{self.task} {self.optimizer} lr {self.lr:g} seed {self.seed}"


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    return json.loads(json.dumps(value, allow_nan=False))


def _frozen(value: Any) -> Any:
    """A list as a tuple: a task's settings can be hashed."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
