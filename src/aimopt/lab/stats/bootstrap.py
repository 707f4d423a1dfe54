"""Scores of a few runs on a few tasks, summarized as Agarwal et al. (2021) ask of reinforcement learning.

    interquartile_mean(scores)                            the mean of the middle half of all runs
    stratified_bootstrap(scores, interquartile_mean)      the same with its 95 % interval
    probability_of_improvement(ours, theirs)              that a run of ours beats a run of theirs on the same task

`scores` are runs × tasks, the higher the better, on a scale the tasks share; what is not finite is the worst, −∞.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from aimopt.lab.stats.values import Floats, oriented


class Interval(NamedTuple):
    """A statistic, and its 95 % percentile interval of the bootstrap."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: ArrayLike) -> float:
    """The mean of what is left after a quarter of all scores is cut off at each end, whatever their tasks."""
    ordered = np.sort(oriented(scores, "higher"), axis=None)
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def stratified_bootstrap(
    scores: ArrayLike, statistic: Callable[[Floats], float], repetitions: int = 2000, seed: int = 0
) -> Interval:
    """A statistic of runs × tasks and its interval: runs are drawn again within each task, tasks are kept."""
    return _interval([_runs_by_tasks(scores)], lambda samples: float(statistic(samples[0])), repetitions, seed)


def probability_of_improvement(x: ArrayLike, y: ArrayLike, repetitions: int = 2000, seed: int = 0) -> Interval:
    """The share of pairs of runs of a task in which x is ahead of y, a tie counting half, averaged over tasks."""
    ours, theirs = _runs_by_tasks(x), _runs_by_tasks(y)
    if ours.shape[1] != theirs.shape[1]:
        raise ValueError(f"x has {ours.shape[1]} tasks and y has {theirs.shape[1]}; give both the same tasks, in order")
    return _interval([ours, theirs], lambda samples: _ahead(*samples), repetitions, seed)


def _ahead(x: Floats, y: Floats) -> float:
    above, at_least = (np.count_nonzero(compare(x[:, None], y)) for compare in (np.greater, np.greater_equal))
    return (above + at_least) / (2 * len(x) * y.size)


def _runs_by_tasks(scores: ArrayLike) -> Floats:
    matrix = oriented(scores, "higher")
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"scores have the shape {matrix.shape}; give a row a run and a column a task")
    return matrix


def _interval(
    samples: list[Floats], statistic: Callable[[list[Floats]], float], repetitions: int, seed: int
) -> Interval:
    generator = np.random.default_rng(seed)
    columns = np.arange(samples[0].shape[1])

    def redrawn(sample: Floats) -> Floats:
        return sample[generator.integers(len(sample), size=sample.shape), columns]

    # order statistics, no interpolation: between −∞ and a number there is nothing
    ordered = sorted(statistic([redrawn(sample) for sample in samples]) for _ in range(repetitions))
    low, high = ordered[math.floor(0.025 * repetitions)], ordered[math.ceil(0.975 * repetitions) - 1]
    return Interval(statistic(samples), low, high)
