"""One run: everything that determines its result, and the identity that follows from it.

    config = RunConfig.create("spirals", optimizer="torch.optim:AdamW", lr=1e-3, seed=0)
    config.identity                    "5c0e…": another seed, option or setting gives another identity

The machine, the number of threads and the versions are not part of it: they are provenance, stored beside the result.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from aimopt.lab.defaults import SCALE
from aimopt.lab.protocol import import_paths, optimizers, schema, tasks
from aimopt.lab.protocol.protocol import Protocol
from aimopt.lab.protocol.schema import fields, integer, map_of, number, text
from aimopt.lab.protocol.task import MOVED_TO_STUDY, Task
from aimopt.lab.protocol.user_code import user_code

# Settings that decide which runs a study has, but determine no run. Current tasks have only `lr` of these.
NOT_PART_OF_A_RUN = ("lr", *MOVED_TO_STUDY)
SHAPE = fields(
    {
        "task": text,
        "scale": text,
        "settings": map_of(schema.plain),
        "optimizer": text,
        "options": map_of(schema.plain),
        "lr": number(),
        "seed": integer(0),
        "steps": integer(1),
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
    options: Mapping[str, Any]  # all options of the optimizer except its learning rate
    lr: float
    seed: int
    steps: int  # number of steps to train; the schedule may be longer
    sources: Mapping[str, str] = field(default_factory=dict)  # checksums of the user's files, by import path

    @classmethod
    def create(
        cls,
        task: str,
        scale: str = SCALE,
        *,
        optimizer: str,
        lr: float | None = None,
        seed: int = 0,
        steps: int | None = None,
        options: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        protocol: Protocol | None = None,
    ) -> Self:
        """A config in which the task and its protocol supply what is not given here.

        The default learning rate is the usual one of this optimizer on this task.
        """
        entry = tasks.entry(task)
        chosen = entry.task.at_scale(scale, settings)
        protocol = entry.protocol(scale) if protocol is None else protocol
        name = optimizers.canonical(optimizer)
        rate = float(rounded(usual_rate(chosen, protocol, name) if lr is None else lr))
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"the learning rate must be a positive number, got {rate}")
        length = chosen.steps if steps is None else steps
        if not 0 < length <= chosen.steps:
            raise ValueError(f"steps must be from 1 to {chosen.steps}, the length of the schedule, got {length}")
        given = optimizers.with_usual(name, functools.partial(usual_options, task, protocol), options or {})
        complete = as_json_value(optimizers.resolved(name, {}, given))
        map_of(schema.plain)(complete, f"the options of {name}")  # else its files could not be read again
        return cls(
            task=task,
            scale=scale,
            settings=settings_of_run(as_json_value({**entry.former_settings, **chosen.recorded_settings(scale)})),
            optimizer=name,
            options=complete,
            lr=rate,
            seed=seed,
            steps=length,
            sources={**import_paths.source(task), **import_paths.source(name)},
        )

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """A config from the result of `to_dict`, which may have been read from a file."""
        SHAPE(record, "a run")
        return cls(**{**record, "lr": float(record["lr"])})

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, strings, lists and dictionaries."""
        return dataclasses.asdict(self)

    @cached_property
    def identity(self) -> str:
        """The hash of everything that determines the result."""
        # Not `to_dict`, because its copies would take most of the time of reading a store with thousands of runs.
        record = {name: getattr(self, name) for name in _FIELDS}
        return hashlib.sha256(_CANONICAL.encode(record).encode()).hexdigest()

    def make_task(self) -> Task:
        """The task, with this run's settings."""
        return tasks.find(self.task).at_scale(self.scale, self._current_settings())

    def completed(self) -> Self:
        """This config, completed by the settings and options that it leaves out; refuses what cannot run.

        Configs in files may be written by hand and incomplete. A complete config keeps its identity.
        """
        complete = RunConfig.create(
            self.task,
            self.scale,
            optimizer=self.optimizer,
            lr=self.lr,
            seed=self.seed,
            steps=self.steps,
            options=self.options,
            settings=self._current_settings(),
        )
        settings = {**complete.settings, **self.settings}
        return dataclasses.replace(self, settings=settings, options=complete.options)

    def check_optimizer(self, label: str | None = None) -> None:
        """Refuse options that the optimizer refuses: build it once, for a small model."""
        closures = tasks.find(self.task).gives_closures
        label = label or self.optimizer
        optimizers.check(self.optimizer, lr=self.lr, options=self.options, label=label, closures=closures)

    def _current_settings(self) -> dict[str, Any]:
        """The settings that the task still has. Runs of older versions have others, which are options now."""
        former = tasks.entry(self.task).former_settings
        return {name: frozen(value) for name, value in self.settings.items() if name not in former}

    def __str__(self) -> str:
        return f"{self.task} {self.optimizer} lr {self.lr:g} seed {self.seed}"


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_FIELDS = tuple(f.name for f in dataclasses.fields(RunConfig))


def usual_rate(task: Task, protocol: Protocol, optimizer: str) -> float:
    """The learning rate of an optimizer on a task, without a search."""
    return task.lr * protocol.lr_factors.get(optimizer, 1.0)


def usual_options(task: str, protocol: Protocol, optimizer: str) -> dict[str, Any]:
    """The options that the protocol gives an optimizer, also those it does not have; messages name `task`."""
    with user_code(f"the protocol of {task} cannot give the options of {optimizer}"):
        return dict(protocol.options(optimizer))


def settings_of_run(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a task that determine a run."""
    return {name: value for name, value in settings.items() if name not in NOT_PART_OF_A_RUN}


def rounded(rate: float) -> float:
    """A rate without the rounding error of a product: 0.1 · 3e-4 is 3.0000000000000004e-05."""
    return float(f"{rate:.12g}")


def as_json_value(value: Any) -> Any:
    """The value after writing it as JSON and reading it again."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} cannot be stored; use finite numbers, text, lists and dictionaries") from None


def frozen(value: Any) -> Any:
    """Lists as tuples, because the settings of a task must be hashable."""
    return tuple(frozen(item) for item in value) if isinstance(value, list) else value
