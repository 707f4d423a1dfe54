"""Across tasks: who is usually ahead, and how far behind the best one usually is.

    results = {"digits": {"RADAR": 0.11, "AdamW": 0.12}, "cheetah": {"RADAR": 9000.0, "AdamW": 8700.0}}
    better = {"digits": "lower", "cheetah": "higher"}
    average_rank(results, better)                                {"RADAR": 1.0, "AdamW": 2.0}
    performance_profile(results, better, [0, 1])["AdamW"]        [0.0, 1.0]

A task may be any key, also a pair of task and seed.

The profile follows Dolan and Moré (2002): of a contender, the share of tasks on which it is within τ of the best. They
measure by the ratio to the best, which means nothing for returns of either sign nor for losses with a floor. Here the
unit of a task is the median gap to the best one among those who are behind it and did not diverge. So the profile does
not depend on the scale and the zero of the values, and one hopeless contender does not make all others look alike.
τ = 0 is being the best, τ = 1 is being no further behind than is usual on that task. With two contenders the loser is
always at τ = 1: the profile then only counts who won.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from aimopt.lab.stats.values import Better, Floats, oriented

Task = TypeVar("Task", bound=Hashable)


def average_rank(results: Mapping[Task, Mapping[str, float]], better: Mapping[Task, Better]) -> dict[str, float]:
    """The mean over tasks of the rank of each contender, 1 the best; ties, also of diverged runs, share their ranks."""
    from scipy.stats import rankdata  # slow to import, and only a report ranks

    contenders, scores = _scores(results, better)
    ranks = rankdata(-scores, axis=1).mean(0)
    return dict(zip(contenders, ranks.tolist(), strict=True))


def performance_profile(
    results: Mapping[Task, Mapping[str, float]], better: Mapping[Task, Better], thresholds: Sequence[float]
) -> dict[str, Floats]:
    """For each contender and threshold τ, the share of tasks on which it is within τ; a diverged run never is."""
    contenders, scores = _scores(results, better)
    gaps = np.stack([_normalized_gaps(task) for task in scores])
    within = gaps[:, :, None] <= np.asarray(thresholds, dtype=np.float64)
    return dict(zip(contenders, within.mean(0), strict=True))


def _normalized_gaps(scores: Floats) -> Floats:
    finished = np.isfinite(scores)
    gaps = np.full_like(scores, np.nan)  # within no threshold, also not within infinity
    if finished.any():
        gaps[finished] = scores.max() - scores[finished]
        behind = gaps[gaps > 0]
        with np.errstate(over="ignore"):  # a loss may be finite and hopeless
            gaps /= np.median(behind) if behind.size else 1.0
    return gaps


def _scores(results: Mapping[Task, Mapping[str, float]], better: Mapping[Task, Better]) -> tuple[list[str], Floats]:
    """The contenders, and their scores as tasks × contenders."""
    if not results:
        raise ValueError("there are no tasks to compare on; give the results of at least one")
    contenders = list(next(iter(results.values())))
    for task, values in results.items():
        if set(values) != set(contenders):
            raise ValueError(
                f"task {task!r} has results of {sorted(values)}, and the first task of {sorted(contenders)}; every "
                "contender needs a result on every task, infinity where it diverged"
            )
    rows = [oriented([values[name] for name in contenders], better[task]) for task, values in results.items()]
    return contenders, np.stack(rows)
