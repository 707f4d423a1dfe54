"""A task is what a network is trained to do: data, model, schedule and measures. It does not depend on an optimizer.

A task is a frozen dataclass. Its fields are its settings: they are part of a run's identity, can be written to a file
and overridden on the command line. `scales` names sets of settings, such as `mini` for two cores. How optimizers are
compared (seeds, grid, length of the search, options per optimizer) is stated in a `Protocol`, not here.
`start` returns a `Training`, which the runner steps, evaluates and saves:

    training = task.start(Context(seed=0, make_optimizer=lambda model: SGD(model.parameters(), lr=0.1)))
    loss = training.step(0)
    training.evaluate()                # {"valid_loss": 2.31, "test_loss": 2.30}

Most tasks are supervised and derive from `Supervised`, which needs only data and a model.
"""

import dataclasses
import functools
import math
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor, nn

from aimopt.lab.defaults import SCALE
from aimopt.lab.protocol.schema import is_number
from aimopt.lab.protocol.user_code import user_code
from aimopt.lab.stats.values import Better
from aimopt.messages.spelling import suggestion

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]

# Settings that must be integers of at least 1, if a task has them.
COUNTS = (
    "steps",
    "evaluate_every",
    "log_every",
    "batch_size",
    "micro_batches",
    "evaluation_batch_size",
)
# Settings that must be numbers ≥ 0, and settings that must be numbers > 0 or None.
NOT_NEGATIVE = ("warmup_steps", "last_lr")
POSITIVE = ("lr", "clip")
# Settings of a task in older versions, and what replaces them. The first ones decide which runs a study has, and
# determine no run.
MOVED_TO_STUDY = {"seeds": "--seeds", "grid": "--grid", "search_steps": "--search-steps"}
MOVED_TO_PROTOCOL = {
    **MOVED_TO_STUDY,
    "weight_decay": "--option weight_decay=0.1",
    "options": "--option",
    "published": "Protocol(published=PublishedTable(…))",
}


@dataclass(frozen=True)
class Measure:
    """A number that an evaluation returns: its key, its label in tables, and whether lower or higher is better."""

    key: str
    label: str
    better: Better = "lower"

    @property
    def worst(self) -> float:
        """The value of a diverged run."""
        return math.inf if self.better == "lower" else -math.inf


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a task gets from a run: the seed, the optimizer under test, the device and the processes."""

    seed: int
    make_optimizer: MakeOptimizer  # for the parameters of a model; the types of its layers may matter
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rank: int = 0
    processes: int = 1
    steps: int | None = None  # number of steps that the run takes; None: not known, so every evaluation may be the last


class Training(Protocol):
    """A run in training. `state_dict` holds all of its state; its random numbers depend only on seed and step."""

    optimizers: Sequence[torch.optim.Optimizer]

    def step(self, index: int) -> Tensor:
        """Take one training step and return its loss."""

    def evaluate(self) -> dict[str, float]:
        """The current values of the task's measures, by key."""

    def weights(self) -> Mapping[str, Tensor]:
        """The tensors that are learned, by name."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs: tensors, numbers, strings, and containers of these."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task; its fields are its settings."""

    title: ClassVar[str]  # name in tables
    titles: ClassVar[Mapping[str, str]] = {}  # names in tables at scales with a different name
    score: ClassVar[Measure]  # decides the learning-rate search; never uses test data
    measure: ClassVar[Measure]  # the result in tables and verdicts
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {SCALE: {}}
    packages: ClassVar[tuple[str, ...]] = ()  # packages that may change a result; a run records their versions
    # The relative difference of the measure that counts: optimizers closer than this are equal in practice. It is
    # declared before any comparison, from the differences between seeds.
    margin: ClassVar[float] = 0.01
    # Settings that were added after runs were published. A run that leaves them at their defaults does not record
    # them, so that the published ones keep their identity.
    later_settings: ClassVar[tuple[str, ...]] = ()
    gives_closures: ClassVar[bool] = False  # whether optimizers that need a closure for every step get one

    lr: float  # η₀, the usual learning rate on the task; the middle of a search
    steps: int  # length of the schedule
    evaluate_every: int
    log_every: int

    @classmethod
    def at_scale(cls, scale: str, settings: Mapping[str, Any] | None = None) -> Self:
        """The task at a scale; `settings` override those of the scale."""
        for name, replacement in MOVED_TO_PROTOCOL.items():
            if hasattr(cls, name) or name in (settings or {}):
                raise ValueError(
                    f"{name} is not a setting of {cls.__name__}: it belongs to the comparison; "
                    f"leave it out of the task and give {replacement}, or a Protocol in the task's TaskEntry"
                )
        cls.check_scale(scale)
        known = [f.name for f in dataclasses.fields(cls)]
        unknown = [name for name in settings or {} if name not in known]
        if unknown:
            raise ValueError(f"{cls.__name__} has no setting {unknown[0]!r}; {suggestion(unknown[0], known)}")
        required = [f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]
        for name in required:
            if name not in cls.scales[scale]:
                raise ValueError(
                    f"{cls.__name__} has no {name!r} at scale {scale!r}; give the field a default, and the class the "
                    "decorator @dataclass(frozen=True, kw_only=True)"
                )
        with user_code(f"{cls.__name__} cannot be made at scale {scale!r}", explained=(ValueError,)):
            at_scale = cls(**cls.scales[scale])
            for name, value in (settings or {}).items():
                declared = _setting_types(cls)[name]
                if not has_type(value, declared):
                    expected = _describe_type(declared, getattr(at_scale, name))
                    raise ValueError(f"{name} must be {expected}, got {value!r}")
            return dataclasses.replace(at_scale, **(settings or {}))

    @classmethod
    def check_scale(cls, scale: str) -> None:
        """Refuse a scale that the task does not have."""
        if scale not in cls.scales:
            raise ValueError(f"{cls.__name__} has no scale {scale!r}; {suggestion(scale, cls.scales)}")

    @classmethod
    def title_at(cls, scale: str) -> str:
        """The name of the task in tables, at a scale."""
        return cls.titles.get(scale, cls.title)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.name in COUNTS and (type(value) is not int or value < 1):
                raise ValueError(f"{f.name} must be a whole number from 1, got {value!r}")
            if f.name in NOT_NEGATIVE and not (has_type(value, float) and value >= 0):
                raise ValueError(f"{f.name} must be a number ≥ 0, got {value!r}")
            if f.name in POSITIVE and value is not None and not (has_type(value, float) and value > 0):
                raise ValueError(f"{f.name} must be a number > 0, got {value!r}")
        if self.lr is None:
            raise ValueError("lr must be a number > 0, got None")

    def recorded_settings(self, scale: str) -> dict[str, Any]:
        """The settings that runs and studies at a scale record, by name."""
        settings = dataclasses.asdict(self)
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        left_out = [
            name
            for name in self.later_settings
            if name not in self.scales[scale] and settings[name] == defaults[name]  # a scale's value is no default
        ]
        return {name: value for name, value in settings.items() if name not in left_out}

    @property
    def first_steady_step(self) -> int:
        """The first step that takes as long as all later ones."""
        return 1

    def prepare(self) -> None:
        """Fetch the data before a run; does nothing if they were fetched before."""
        return

    @abstractmethod
    def checksum(self) -> str:
        """The checksum of the data that a run uses."""

    @abstractmethod
    def start(self, context: Context) -> Training:
        """Start a run."""


@functools.cache
def _setting_types(task: type[Task]) -> dict[str, Any]:
    """The declared types of the settings of a task, by name."""
    return typing.get_type_hints(task)


def _describe_type(declared: Any, example: Any) -> str:
    """What a setting must be, for a message."""
    if typing.get_origin(declared) is Literal:
        return f"one of {', '.join(map(repr, typing.get_args(declared)))}"
    return f"a value like {example!r}" if example is not None else f"{declared}, for example None"


def has_type(value: Any, declared: Any) -> bool:
    """Whether a value has a declared type; types that settings do not usually have accept every value."""
    origin, parts = typing.get_origin(declared), typing.get_args(declared)
    if origin in (typing.Union, types.UnionType):
        return any(has_type(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin is tuple and isinstance(value, tuple):
        item_types = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return len(item_types) == len(value) and all(map(has_type, value, item_types))
    if declared is float or (declared is int and type(value) is int):
        return is_number(value)
    if declared in (int, bool, str, types.NoneType):
        return type(value) is declared
    return not isinstance(origin or declared, type) or isinstance(value, origin or declared)
