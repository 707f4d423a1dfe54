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
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor

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
            raise ValueError(f"{cls.__name__} has no scale {scale!r}; choose one of {', '.join(cls.scales)}")
        known = [f.name for f in dataclasses.fields(cls)]
        unknown = [name for name in settings or {} if name not in known]
        if unknown:
            raise ValueError(f"{cls.__name__} has no setting {unknown[0]!r}; it has {', '.join(known)}")
        usual = cls(**cls.scales[scale])
        for name, value in (settings or {}).items():
            _check_kind(name, value, getattr(usual, name))
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


def _check_kind(name: str, value: Any, usual: Any) -> None:
    """A setting must be of the kind that it usually is; one that is usually nothing may be anything."""
    kinds = (int, float) if isinstance(usual, float) else type(usual)
    if usual is not None and value is not None and not isinstance(value, kinds):
        raise ValueError(f"{name} must be such as {usual!r}, got {value!r}")
    if isinstance(value, bool) and not isinstance(usual, bool):
        raise ValueError(f"{name} must be such as {usual!r}, got {value!r}")
