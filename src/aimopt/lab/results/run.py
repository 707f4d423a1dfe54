"""A run as a value: its config, its status and what was recorded so far.

    run.status                          "finished", "diverged", "failed" or "running"
    run.final(task.measure)             the last value of a measure; the worst value if the run diverged
    run.curve("train_loss")             [(100, 2.31), (200, 1.97), …]

A diverged run is a result: every value that is derived from it is the worst value of its measure, ±∞. This is stated
here once, in `Run.final`, `Run.score` and `Run.best_of_last`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.task import Measure
from aimopt.messages.clean_text import one_line

# `running` includes runs that were interrupted and wait to be resumed. Only `failed` runs are tried again.
Status = Literal["finished", "diverged", "failed", "running"]
LARGEST = 1e300  # a larger loss or measure counts as divergence: sums of such numbers are infinite
SCORED = 3  # the score of a learning rate is the mean of this many last values


def is_settled(status: str) -> bool:
    """Whether a run of this status has its result."""
    return status in ("finished", "diverged")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run: its config, its result and its provenance."""

    config: RunConfig
    status: Status
    reason: str = ""  # why it diverged or failed
    # One record per logged step: step, train_loss, lr, seconds of training so far, and the measures if evaluated.
    history: Sequence[Mapping[str, float]] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # parameters, state_bytes, peak_bytes, checksums of weights
    sessions: Sequence[Mapping[str, Any]] = ()  # provenance: one entry per process that worked on it
    notes: Sequence[str] = ()  # events that a reader of the result should know

    @property
    def settled(self) -> bool:
        """Whether the run has its result: it finished or diverged, and is never trained again."""
        return is_settled(self.status)

    def failure(self) -> str:
        """The config and the reason of a failed run, in one line."""
        return one_line(f"failed: {self.config}: {self.reason}")

    def curve(self, key: str) -> list[tuple[int, float]]:
        """The steps at which a number was recorded, and its values."""
        return [(int(record["step"]), record[key]) for record in self.history if key in record]

    def final(self, measure: Measure) -> float:
        """The last value of a measure; the worst value if the run diverged."""
        return self._mean_of_last(1, measure)

    def score(self, measure: Measure) -> float:
        """The mean of the last three values of a measure; the worst value if the run diverged."""
        return self._mean_of_last(SCORED, measure)

    def best_of_last(self, share: float, measure: Measure) -> float:
        """The best value of a measure in the last share of the steps; the worst value if the run diverged."""
        values = [value for step, value in self.curve(measure.key) if step > (1 - share) * self.config.steps]
        if self.status == "diverged" or not values:
            return measure.worst
        return min(values) if measure.better == "lower" else max(values)

    def _mean_of_last(self, count: int, measure: Measure) -> float:
        values = [value for _, value in self.curve(measure.key)][-count:]
        if self.status == "diverged" or not values or not all(map(math.isfinite, values)):
            return measure.worst
        return sum(values) / len(values)
