"""What a study found, as numbers: the one object that every form of the report reads.

Nothing here is formatted. A value that is not there yet is None; a run that diverged has the worst value, ±∞.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from aimopt.lab.overhead import Cost, Overhead
from aimopt.lab.runs import Run, Status
from aimopt.lab.stats import Difference, Interval, Spread
from aimopt.lab.study import Cell, Study
from aimopt.lab.tasks import Measure

Level = Literal["ok", "warning", "problem"]


class Outcome(NamedTuple):
    """What came of a run that the study asks for."""

    lr: float
    seed: int
    status: Status | Literal["missing"]
    value: float  # of what it is judged by; the worst if it diverged, not a number until it is over
    reason: str = ""

    @property
    def settled(self) -> bool:
        """Whether it has its value."""
        return self.status in ("finished", "diverged")


class Point(NamedTuple):
    """A step of a curve: the mean of the seeds, and the lowest and the highest of them."""

    step: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """A number over the steps.

    The band is taken over the runs that are over, or over all while none is, and ends where the first of them ends: a
    mean of the seeds that survived would flatter an optimizer whose other seeds diverged.
    """

    by_seed: Mapping[int, tuple[tuple[float, float], ...]]
    band: tuple[Point, ...]


@dataclass(frozen=True)
class Curves:
    """A number over the steps, for every contender that has some."""

    measure: Measure
    by_contender: Mapping[str, Curve]


class Target(NamedTuple):
    """What the others are to reach: the mean with which the reference ends, in what the search goes by."""

    measure: Measure
    value: float


class ToTarget(NamedTuple):
    """When the mean curve of a contender reaches the target; None if it never does."""

    steps: float | None
    ratio: float | None  # to the reference's steps
    seconds: float | None  # steps times the seconds of a step measured alone
    seconds_ratio: float | None  # the ratio of the steps times that of a step, which was measured in pairs


class Published(NamedTuple):
    """The paper's result for a contender, at the paper's scale."""

    mean: float
    std: float
    rank: int


class Returns(NamedTuple):
    """As Agarwal et al. (2021) ask of reinforcement learning: interquartile means and chances to beat the reference."""

    last: Interval
    best: Interval  # of the best of the last tenth of the evaluations
    last_improvement: Interval | None
    best_improvement: Interval | None


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One contender."""

    label: str
    optimizer: str
    options: Mapping[str, Any]  # all of them
    usual_lr: float
    lr: float | None  # chosen; None while the search goes on
    edge: Literal["lowest", "highest"] | None  # of the rates tried, if that was chosen
    trials: tuple[Outcome, ...]  # the search, by rising rate
    finals: tuple[Outcome, ...]
    untuned: tuple[Outcome, ...]
    spread: Spread | None
    untuned_spread: Spread | None
    rank: int | None  # by the mean; 1 is the best
    difference: Difference | None  # to the reference, on the seeds that both have
    to_target: ToTarget | None
    published: Published | None
    returns: Returns | None
    cost: Cost | None

    @property
    def diverged(self) -> int:
        """How many final runs diverged."""
        return sum(outcome.status == "diverged" for outcome in self.finals)


@dataclass(frozen=True)
class Sweep:
    """The contenders of a sensitivity study as a grid over their options."""

    axes: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]  # of each axis, in order if they have one
    labels: Mapping[tuple[Any, ...], str]  # the contender at a place
    default: tuple[Any, ...]  # where the reference is, not necessarily on the grid; None is an option left out


def has_order(values: Iterable[Any]) -> bool:
    """Whether the values of an axis are numbers, not texts or yes and no."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


class Remark(NamedTuple):
    """Something that a careful reader would ask about."""

    level: Level
    text: str


class Progress(NamedTuple):
    """How much of the study is done, in runs."""

    settled: int
    running: int
    failed: int
    total: int

    @property
    def complete(self) -> bool:
        """Whether every run is over."""
        return self.settled == self.total


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Everything that a report says of a study."""

    study: Study
    title: str  # of the task
    measure: Measure  # what is reported
    score: Measure  # what the search goes by
    standings: tuple[Standing, ...]
    curves: tuple[Curves, ...]
    target: Target | None
    sweep: Sweep | None
    overhead: Overhead | None
    audit: tuple[Remark, ...]
    provenance: Mapping[str, Mapping[str, int]]  # "versions.torch" -> {"2.13.0": 120 runs}
    progress: Progress
    cells: tuple[tuple[Cell, Run | None], ...]

    @property
    def reference(self) -> Standing:
        """Whom the others are compared with."""
        return self.standing(self.study.reference)

    def standing(self, label: str) -> Standing:
        """The contender of a label."""
        return next(standing for standing in self.standings if standing.label == label)

    @property
    def at_paper_setting(self) -> bool:
        """Whether the paper's numbers are of the same setting."""
        return self.study.scale == "paper" and not self.study.settings

    @property
    def ranked(self) -> list[Standing]:
        """Those with a result, the best first."""
        with_result = [standing for standing in self.standings if standing.rank is not None]
        return sorted(with_result, key=lambda standing: standing.rank or math.inf)
