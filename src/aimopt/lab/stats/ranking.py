"""Across tasks: average ranks, and how far each contender usually is behind the best one.

    results = {"images": {"Mine": 0.11, "Other": 0.12}, "robot": {"Mine": 9000.0, "Other": 8700.0}}
    better = {"images": "lower", "robot": "higher"}
    average_rank(results, better)                                {"Mine": 1.0, "Other": 2.0}
    performance_profile(results, better, [0, 1])["Other"]        [0.0, 1.0]

A task may be any key, for example a pair of task and seed.

The performance profile follows Dolan and Moré (2002): the share of tasks on which a contender is within τ of the best
one. They measure the distance as a ratio to the best value, which has no meaning for returns of both signs and for
losses with a lower bound above zero. Here the unit of a task is the median gap to the best value, taken over the
contenders that are behind it and did not diverge. The profile therefore does not depend on the scale or the zero of
the values, and one very bad contender does not make all others look equal.
τ = 0 means that the contender is the best. τ = 1 means that it is at most one median gap behind. With two contenders
the second one is always at τ = 1: the profile then only counts how often each one was the best.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from aimopt.lab.stats.values import Better, Floats, to_scores

Task = TypeVar("Task", bound=Hashable)


def average_rank(results: Mapping[Task, Mapping[str, float]], better: Mapping[Task, Better]) -> dict[str, float]:
    """The mean rank of each contender over the tasks; 1 is the best. Equal values, also diverged ones, share a rank."""
    from scipy.stats import rankdata  # slow to import, and only a report needs it

    contenders, scores = _scores(results, better)
    ranks = rankdata(-scores, axis=1).mean(0)
    return dict(zip(contenders, ranks.tolist(), strict=True))


def performance_profile(
    results: Mapping[Task, Mapping[str, float]], better: Mapping[Task, Better], thresholds: Sequence[float]
) -> dict[str, Floats]:
    """Per contender and threshold τ, the share of tasks on which it is within τ. A diverged run is within no τ."""
    contenders, scores = _scores(results, better)
    gaps = np.stack([_normalized_gaps(task) for task in scores])
    within = gaps[:, :, None] <= np.asarray(thresholds, dtype=np.float64)
    return dict(zip(contenders, within.mean(0), strict=True))


def _normalized_gaps(scores: Floats) -> Floats:
    finished = np.isfinite(scores)
    gaps = np.full_like(scores, np.nan)  # not a number is within no threshold, not even infinity
    if finished.any():
        gaps[finished] = scores.max() - scores[finished]
        behind = gaps[gaps > 0]
        with np.errstate(over="ignore"):  # a loss may be finite and very large
            gaps /= np.median(behind) if behind.size else 1.0
    return gaps


def _scores(results: Mapping[Task, Mapping[str, float]], better: Mapping[Task, Better]) -> tuple[list[str], Floats]:
    """The contenders, and a matrix of scores with one row per task and one column per contender."""
    if not results:
        raise ValueError("there are no tasks to compare on; pass the results of at least one task")
    contenders = list(next(iter(results.values())))
    for task, values in results.items():
        if set(values) != set(contenders):
            raise ValueError(
                f"task {task!r} has results of {sorted(values)}, but the first task of {sorted(contenders)}; "
                "pass one result per contender and task, infinity for a diverged run"
            )
    rows = [to_scores([values[name] for name in contenders], better[task]) for task, values in results.items()]
    return contenders, np.stack(rows)
