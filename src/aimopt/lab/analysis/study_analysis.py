"""The analysis of a study as numbers. Every format of the report reads this one object.

    analysis.ranked[0].label                       the contender with the best mean
    analysis.standing("Mine").spread.mean         0.1123
    analysis.progress.complete                     False while runs are missing

Nothing here is formatted. A value that is not known yet is None; a diverged run has the worst value, ±∞.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from aimopt.lab.protocol.schedule import Cell, Role
from aimopt.lab.protocol.study import Study
from aimopt.lab.protocol.task import Measure
from aimopt.lab.results.costs import Cost, Overhead
from aimopt.lab.results.run import Run, Status, is_settled
from aimopt.lab.stats.bootstrap import Interval
from aimopt.lab.stats.equivalent_steps import EquivalentSteps
from aimopt.lab.stats.paired import Difference, Spread
from aimopt.lab.stats.sequential import Decision

Level = Literal["ok", "warning", "problem"]
CellRuns = Sequence[tuple[Cell, Run | None]]  # the runs of a study with their roles; None: not started


class RunResult(NamedTuple):
    """The result of one run of the study."""

    lr: float
    seed: int
    status: Status | Literal["missing"]
    value: float  # final value, or score of a search run; ±∞ if it diverged, NaN while it has no result
    reason: str = ""

    @property
    def settled(self) -> bool:
        """Whether the run has its result."""
        return is_settled(self.status)


def judged_value(run: Run, role: Role, score: Measure, measure: Measure) -> float:
    """The value by which a settled run is judged: the score of a search run, the final value of any other run."""
    return run.score(score) if role == "search" else run.final(measure)


class Point(NamedTuple):
    """One step of a curve: the mean of the seeds, the lowest seed and the highest seed."""

    step: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """A number over the steps.

    The band is computed from the runs with a result, or from all runs while there is none. It ends where the first of
    them ends: a mean of the remaining seeds would make an optimizer with diverged seeds look better than it is.
    """

    by_seed: Mapping[int, tuple[tuple[float, float], ...]]
    band: tuple[Point, ...]


@dataclass(frozen=True)
class Curves:
    """A number over the steps, for every contender with records of it."""

    measure: Measure
    by_contender: Mapping[str, Curve]


class Target(NamedTuple):
    """The value that contenders should reach: the final mean of the reference, in the measure of the search."""

    measure: Measure
    value: float


class StepsToTarget(NamedTuple):
    """When the mean curve of a contender reaches the target. All fields are None if it never does.

    There is one ratio of step times, the paired one: seconds are the seconds of the reference times the ratio of times.
    """

    steps: float | None
    ratio: float | None  # relative to the steps of the reference
    seconds: float | None  # of training, at the measured seconds per step of the reference
    seconds_ratio: float | None  # ratio of the steps times the paired ratio of the step time
    ratio_interval: Interval | None = None  # seeds resampled; the upper end is ∞ if some resamples never reach it
    seconds_interval: Interval | None = None  # of seconds_ratio: seeds and step times resampled


class Published(NamedTuple):
    """The published result of a contender, at the scale of its publication."""

    mean: float
    std: float
    rank: int


class Returns(NamedTuple):
    """Interquartile means and probabilities of improvement, as in Agarwal et al. (2021)."""

    last: Interval
    best: Interval  # of the best evaluation in the last tenth of the steps
    last_improvement: Interval | None
    best_improvement: Interval | None


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The results of one contender."""

    label: str
    optimizer: str
    options: Mapping[str, Any]  # all options of the optimizer
    usual_lr: float
    lr: float | None  # the chosen learning rate; None while the search is not complete
    tuned: Mapping[str, float]  # the chosen values of other options that were searched
    edge: Literal["lowest", "highest"] | None  # set if the chosen rate is at the edge of the rates tried
    trials: tuple[RunResult, ...]  # the search runs, lowest rate first
    finals: tuple[RunResult, ...]  # at the chosen rate
    untuned: tuple[RunResult, ...]  # at the usual rate, without search
    spread: Spread | None
    untuned_spread: Spread | None
    rank: int | None  # by the mean; 1 is the best
    difference: Difference | None  # from the reference, on the seeds that both have
    decision: Decision | None  # in a study with looks
    ahead_in_search: tuple[int, int] | None  # on how many of the tuning seeds its best trial is ahead of the reference
    to_target: StepsToTarget | None
    equivalent: EquivalentSteps | None  # the difference in steps, if the store has the reference at other lengths
    published: Published | None
    returns: Returns | None
    cost: Cost | None

    @property
    def diverged(self) -> int:
        """How many final runs diverged."""
        return sum(outcome.status == "diverged" for outcome in self.finals)


@dataclass(frozen=True)
class SensitivityGrid:
    """The contenders of a sensitivity study as a grid over their options."""

    axes: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]  # per axis; sorted if they are numbers
    labels: Mapping[tuple[Any, ...], str]  # option values -> label of the contender
    default: tuple[Any, ...]  # of the reference, not necessarily on the grid; None: the option is not set


def has_order(values: Iterable[Any]) -> bool:
    """Whether the values of an axis are numbers, not texts or booleans."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


class Remark(NamedTuple):
    """One remark of the audit."""

    level: Level
    text: str


class Progress(NamedTuple):
    """How many runs of the study are done."""

    settled: int  # finished or diverged
    running: int
    failed: int
    total: int

    @property
    def complete(self) -> bool:
        """Whether every run has its result."""
        return self.settled == self.total


@dataclass(frozen=True, kw_only=True)
class StudyAnalysis:
    """Everything that a report says about a study."""

    study: Study
    title: str  # of the task
    measure: Measure  # of the reported values
    score: Measure  # of the search
    standings: tuple[Standing, ...]
    curves: tuple[Curves, ...]
    target: Target | None
    sweep: SensitivityGrid | None
    overhead: Overhead | None
    audit: tuple[Remark, ...]
    provenance: Mapping[str, Mapping[str, int]]  # "versions.torch" -> {"2.13.0": 120 runs}
    progress: Progress
    cells: tuple[tuple[Cell, Run | None], ...]

    @property
    def reference(self) -> Standing:
        """The contender with which the others are compared."""
        return self.standing(self.study.reference)

    def standing(self, label: str) -> Standing:
        """The results of the contender with this label."""
        return next(standing for standing in self.standings if standing.label == label)

    @property
    def at_published_setting(self) -> bool:
        """Whether the scale and settings are those of the published results."""
        published = self.study.published
        return published is not None and published.scale == self.study.scale and not self.study.settings

    @property
    def ranked(self) -> list[Standing]:
        """The contenders with a result, the best first."""
        with_result = [standing for standing in self.standings if standing.rank is not None]
        return sorted(with_result, key=lambda standing: standing.rank or math.inf)
