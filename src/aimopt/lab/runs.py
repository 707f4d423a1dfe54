"""A run as it is known afterwards, or so far."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from aimopt.clean_text import one_line
from aimopt.lab.config import RunConfig
from aimopt.lab.tasks.task import Measure

# `running` also says that it was interrupted and waits to be resumed. Only `failed` is tried again.
Status = Literal["finished", "diverged", "failed", "running"]
SCORED = 3  # measurements whose mean is the score of a learning rate, as in the paper


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run: what it was asked, what came of it, and where."""

    config: RunConfig
    status: Status
    reason: str = ""  # why it diverged or failed
    # One record a logged step: step, train_loss, lr, seconds of training so far, and the measures where evaluated.
    history: Sequence[Mapping[str, float]] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # parameters, state_bytes, peak_bytes, checksums of weights
    sessions: Sequence[Mapping[str, Any]] = ()  # provenance: each process that worked on it
    notes: Sequence[str] = ()  # what happened on the way that a reader of the result should know

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to do."""
        return self.status in ("finished", "diverged")

    def failure(self) -> str:
        """What failed and why, in one line."""
        return one_line(f"failed: {self.config}: {self.reason}")

    def curve(self, key: str) -> list[tuple[int, float]]:
        """A number over the steps."""
        return [(int(record["step"]), record[key]) for record in self.history if key in record]

    def final(self, measure: Measure) -> float:
        """The last value of a measure; the worst if the run diverged."""
        return self._mean_of_last(1, measure)

    def score(self, measure: Measure) -> float:
        """The mean of the last three values of a measure; the worst if the run diverged."""
        return self._mean_of_last(SCORED, measure)

    def _mean_of_last(self, count: int, measure: Measure) -> float:
        values = [value for _, value in self.curve(measure.key)][-count:]
        if self.status == "diverged" or not values or not all(map(math.isfinite, values)):
            return measure.worst
        return sum(values) / len(values)
