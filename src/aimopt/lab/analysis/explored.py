"""What an exploration found: how far each contender came, and the comparison that would confirm the best.

print(explored.table())                  one row per contender, one column per rung
explored.best()                          the labels of the best two
explored.confirmation()                  "aimopt compare … --optimizers …", on other tasks and seeds
"""

import contextlib
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from aimopt.lab.defaults import SCALE
from aimopt.lab.protocol import tasks
from aimopt.lab.protocol.exploration import Exploration
from aimopt.lab.results.run import Run
from aimopt.lab.stats.halving import Entry, Rung
from aimopt.lab.stats.values import to_scores
from aimopt.messages.text_table import text_table

PROVES_NOTHING = (
    "An exploration proves nothing: the best of many is partly the luckiest. "
    "Confirm it on tasks and seeds that it did not touch:"
)


@dataclass(frozen=True)
class Explored:
    """An exploration, its rungs so far, and the runs that failed."""

    exploration: Exploration
    rungs: Sequence[Rung]
    failed: Sequence[Run] = ()

    def standings(self) -> list[tuple[str, list[Entry]]]:
        """Per contender its best point on every rung that it reached; those that came furthest first, best first."""
        better = self.exploration.study.facts.score.better
        reached = {
            contender.label: [e for rung in self.rungs if (e := rung.best_of(contender.label, better)) is not None]
            for contender in self.exploration.study.contenders
        }

        def place(label: str) -> tuple[float, ...]:
            last = reached[label][-1].score if reached[label] else None
            return -len(reached[label]), -float(to_scores([math.nan if last is None else last], better)[0])

        return [(label, reached[label]) for label in sorted(reached, key=place)]

    def best(self, count: int = 2) -> list[str]:
        """The labels of the best contenders that have a score, without the reference, best first."""
        reference = self.exploration.study.reference
        scored = [label for label, entries in self.standings() if entries and _is_score(entries[-1].score)]
        return [label for label in scored if label != reference][:count]

    def table(self) -> str:
        """One row per contender: its best learning rate on the last rung that it reached, and a score per rung."""
        study = self.exploration.study
        counts = [f"{seeds} seed{'s' * (seeds > 1)}" for seeds in self.exploration.rungs]
        rows = [("optimizer", "learning rate", *counts)]
        for label, entries in self.standings():
            scores = [_shown(entry.score) for entry in entries] + [""] * (len(counts) - len(entries))
            rows.append((label, self._rate(label, entries[-1]) if entries else "", *scores))
        return f"{study.facts.title}: {study.facts.score.label} at the best rate, mean over seeds\n{text_table(rows)}"

    def _rate(self, label: str, entry: Entry) -> str:
        tried = [rate.rate for rate in self.rungs[0].entries if rate.candidate == label]
        at_edge = len(tried) > 1 and entry.rate in (min(tried), max(tried))
        return f"{entry.rate:g}" + (" (at the edge)" if at_edge else "")

    def confirmation(self) -> str:
        """The command that compares the best two with the reference on other tasks, with the seeds of comparisons."""
        study = self.exploration.study
        if not self.best():
            return f"nothing to confirm: no optimizer other than {study.reference} has a score; explore others"
        at_scales = [(scale, _other_tasks(study.task, scale)) for scale in (study.scale, SCALE)]
        scale, others = next((found for found in at_scales if found[1]), (study.scale, ["OTHER_TASK"]))
        chosen = [*self.best(), study.reference]
        return shlex.join(["aimopt", "compare", *others, "--scale", scale, "--optimizers", *chosen])


def _is_score(score: float | None) -> bool:
    """Whether it is known, and neither that of a divergence nor that of a failure."""
    return score is not None and math.isfinite(score)


def _shown(score: float | None) -> str:
    assert score is not None
    return "failed" if math.isnan(score) else f"{score:.4g}" if math.isfinite(score) else "diverged"


def _other_tasks(task: str, scale: str) -> list[str]:
    """The installed tasks at this scale, of which higher or lower is better as on this one."""
    better = tasks.find(task).measure.better
    found = []
    for name in tasks.available():
        with contextlib.suppress(ValueError):  # a task of another package that cannot be loaded
            other = tasks.find(name)
            if name != task and scale in other.scales and other.measure.better == better:
                found.append(name)
    return found
