"""What a network is asked to learn: a task owns its data, model, schedule and measures, and knows no optimizer.

A task is a frozen dataclass whose fields are its settings, so that settings can be counted into a run's identity,
written to a file and overridden from the command line. `scales` names sets of settings: `mini` for two cores, `paper`
for a cluster. `start` gives a `Training`, which the runner steps, evaluates and saves:

    training = task.start(Context(seed=0, build=lambda params: RADAR(params, lr=1e-3)))
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor

from aimopt.lab.shapes import is_number
from aimopt.lab.user_code import user_code
from aimopt.spelling import suggestion

Better = Literal["lower", "higher"]
Build = Callable[[Iterable[tuple[str, Tensor]]], torch.optim.Optimizer]


# Settings that must be whole numbers from 1 where a task has them.
COUNTS = (
    "steps",
    "search_steps",
    "evaluate_every",
    "log_every",
    "batch_size",
    "micro_batches",
    "evaluation_batch_size",
)
# And numbers that must not be negative, or must be positive unless they are None, which means without.
NOT_NEGATIVE = ("warmup_steps", "last_lr", "weight_decay")
POSITIVE = ("lr", "clip")


@dataclass(frozen=True)
class Measure:
    """A number that an evaluation gives: its key there, what people call it, and which way is better."""

    key: str
    label: str
    better: Better = "lower"

    @property
    def worst(self) -> float:
        """What a diverged run is worth."""
        return math.inf if self.better == "lower" else -math.inf


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a run gives a task to start from: the seed, the optimizer under test, and where it runs."""

    seed: int
    build: Build  # makes the optimizer under test for some named parameters
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rank: int = 0
    processes: int = 1


class Training(Protocol):
    """A run in the making. All of its state is in `state_dict`; what it draws is a function of seed and step."""

    optimizers: Sequence[torch.optim.Optimizer]

    def step(self, index: int) -> Tensor:
        """Take one training step; the result is its loss."""

    def evaluate(self) -> dict[str, float]:
        """The task's measures now."""

    def weights(self) -> Mapping[str, Tensor]:
        """What is being learned, by name."""

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs: tensors, numbers, strings and containers of them."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task; its fields are its settings."""

    title: ClassVar[str]  # as a table calls it,
    titles: ClassVar[Mapping[str, str]] = {}  # unless a scale is called otherwise
    score: ClassVar[Measure]  # what the learning-rate search goes by; never of test data
    measure: ClassVar[Measure]  # what is reported
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {"mini": {}}
    published: ClassVar[
        Mapping[str, tuple[float, float]]
    ] = {}  # the paper's mean and std by optimizer, at scale `paper`
    extra: ClassVar[str] = "lab"  # what to install: pip install 'aimopt[extra]'

    lr: float  # η₀, the middle of the search
    steps: int  # of the whole schedule
    search_steps: int  # of a run of the search: the schedule's beginning
    evaluate_every: int
    log_every: int
    grid: tuple[float, ...] = (0.1, 0.5, 1.0, 5.0, 10.0)  # of the search, in units of η₀
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    @classmethod
    def at(cls, scale: str, settings: Mapping[str, Any] | None = None) -> Self:
        """The task at a scale, with some settings overridden."""
        if scale not in cls.scales:
            raise ValueError(f"{cls.__name__} has no scale {scale!r}; {suggestion(scale, cls.scales)}")
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
            usual = cls(**cls.scales[scale])
            for name, value in (settings or {}).items():
                kind = _kinds(cls)[name]
                if not fits(value, kind):
                    raise ValueError(f"{name} must be {_described(kind, getattr(usual, name))}, got {value!r}")
            return dataclasses.replace(usual, **(settings or {}))

    @classmethod
    def title_at(cls, scale: str) -> str:
        """What a table calls the task at a scale."""
        return cls.titles.get(scale, cls.title)

    def options(self, optimizer: str) -> dict[str, Any]:
        """The options an optimizer is given on this task, if it has them, unless a study says otherwise."""
        return {}

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.name in COUNTS and (type(value) is not int or value < 1):
                raise ValueError(f"{f.name} must be a whole number from 1, got {value!r}")
            if f.name in NOT_NEGATIVE and not (fits(value, float) and value >= 0):
                raise ValueError(f"{f.name} must be a number ≥ 0, got {value!r}")
            if f.name in POSITIVE and value is not None and not (fits(value, float) and value > 0):
                raise ValueError(f"{f.name} must be a number > 0, got {value!r}")
        if self.lr is None:
            raise ValueError("lr must be a number > 0, got None")
        check_protocol(self.seeds, self.grid)
        if self.search_steps > self.steps:
            raise ValueError(
                f"search_steps={self.search_steps} must be at most steps={self.steps}: "
                "the search trains the beginning of the schedule"
            )

    @property
    def steady_from(self) -> int:
        """The step from which on all steps cost alike."""
        return 1

    def prepare(self) -> None:
        """Fetch the data, so that a run finds it; does nothing when it is there."""
        return

    @abstractmethod
    def checksum(self) -> str:
        """The checksum of the data a run would use."""

    @abstractmethod
    def start(self, context: Context) -> Training:
        """Begin a run."""


@functools.cache
def _kinds(task: type[Task]) -> dict[str, Any]:
    """What the fields of a task declare."""
    return typing.get_type_hints(task)


def _described(kind: Any, usual: Any) -> str:
    """What a setting must be, for a message."""
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, typing.get_args(kind)))}"
    return f"such as {usual!r}" if usual is not None else f"{kind}, such as None"


def fits(value: Any, kind: Any) -> bool:
    """Whether a setting is of the kind that its field declares; kinds that are not a setting's usual fit anything."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin is tuple and isinstance(value, tuple):
        kinds = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return len(kinds) == len(value) and all(map(fits, value, kinds))
    if kind is float or (kind is int and type(value) is int):
        return is_number(value)
    if kind in (int, bool, str, types.NoneType):
        return type(value) is kind
    return not isinstance(origin or kind, type) or isinstance(value, origin or kind)


def check_protocol(seeds: Sequence[Any], grid: Sequence[Any]) -> None:
    """Refuse what cannot be the final seeds and the learning rates of a search."""
    if not all(fits(seed, int) and seed >= 0 for seed in seeds):
        raise ValueError(f"seeds must be whole numbers from 0, got {seeds}")
    if not all(fits(rate, float) and rate > 0 for rate in grid):
        raise ValueError(f"grid must be positive numbers, got {grid}")
    for what, values in (("seeds", seeds), ("grid", grid)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{what} must be different numbers, at least one; got {values}")
