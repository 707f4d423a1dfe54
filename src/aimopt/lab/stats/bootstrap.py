"""Summaries of a few runs on a few tasks, as Agarwal et al. (2021) recommend for reinforcement learning.

    interquartile_mean(scores)                            the mean of the middle half of all runs
    stratified_bootstrap(scores, interquartile_mean)      the same with its 95 % interval
    probability_of_improvement(x, y)                      the probability that a run of x beats a run of y on a task

`scores` has one row per run and one column per task. A higher score is better, all tasks share one scale, and a score
that is not finite counts as −∞, the worst.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aimopt.lab.stats.values import Floats, to_scores

MAX_BATCH_NUMBERS = 1 << 20  # numbers in one batch of resamples; limits the memory


class Interval(NamedTuple):
    """A statistic and its 95 % percentile bootstrap interval."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: ArrayLike) -> float:
    """The mean of all scores without the lowest and the highest quarter; the tasks are pooled."""
    return float(_interquartile_means(to_scores(scores, "higher")[None])[0])


def stratified_bootstrap(
    scores: ArrayLike, statistic: Callable[[Floats], float], repetitions: int = 2000, seed: int = 0
) -> Interval:
    """A statistic of the scores and its interval. Runs are resampled within each task; the tasks stay fixed."""

    def batch_statistic(resamples: Floats) -> Floats:
        if statistic is interquartile_mean:
            return _interquartile_means(resamples)  # one call for the whole batch is much faster
        return np.array([statistic(resample) for resample in resamples])

    return _interval([_runs_by_tasks(scores)], batch_statistic, repetitions, seed)


def probability_of_improvement(x: ArrayLike, y: ArrayLike, repetitions: int = 2000, seed: int = 0) -> Interval:
    """The share of run pairs of a task in which x is ahead of y, averaged over the tasks. A tie counts half."""
    x_scores, y_scores = _runs_by_tasks(x), _runs_by_tasks(y)
    x_tasks, y_tasks = x_scores.shape[1], y_scores.shape[1]
    if x_tasks != y_tasks:
        raise ValueError(f"x has {x_tasks} tasks and y has {y_tasks}; pass the same tasks in the same order")
    return _interval([x_scores, y_scores], _share_ahead, repetitions, seed)


def _interquartile_means(resamples: Floats) -> Floats:
    ordered = np.sort(resamples.reshape(len(resamples), -1), axis=1)
    cut = ordered.shape[1] // 4
    return ordered[:, cut : ordered.shape[1] - cut].mean(axis=1)


def _share_ahead(x: Floats, y: Floats) -> Floats:
    x_runs, y_runs = x[:, :, None], y[:, None]
    return ((x_runs > y_runs).mean(axis=(1, 2, 3)) + (x_runs >= y_runs).mean(axis=(1, 2, 3))) / 2


def _runs_by_tasks(scores: ArrayLike) -> Floats:
    matrix = to_scores(scores, "higher")
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"scores have the shape {matrix.shape}; pass one row per run and one column per task")
    return matrix


def _draw_rows(generator: np.random.Generator, samples: list[Floats], count: int) -> list[NDArray[np.int64]]:
    """Per sample, the row numbers of `count` resamples. The samples take turns: a seed always gives the same rows."""
    if len({sample.shape for sample in samples}) == 1:  # the same numbers as one by one, in a hundredth of the calls
        return list(generator.integers(len(samples[0]), size=(count, len(samples), *samples[0].shape)).swapaxes(0, 1))
    drawn = [[generator.integers(len(sample), size=sample.shape) for sample in samples] for _ in range(count)]
    return [np.stack(rows) for rows in zip(*drawn, strict=True)]


def _interval(samples: list[Floats], batch_statistic: Callable[..., Floats], repetitions: int, seed: int) -> Interval:
    """A statistic and its interval. `batch_statistic` takes a batch of resamples of each sample."""
    generator = np.random.default_rng(seed)
    columns = np.arange(samples[0].shape[1])
    batch_size = max(1, MAX_BATCH_NUMBERS // math.prod(map(len, samples)) // len(columns))
    statistics: list[float] = []
    while len(statistics) < repetitions:
        drawn = _draw_rows(generator, samples, min(batch_size, repetitions - len(statistics)))
        resamples = [sample[rows, columns] for sample, rows in zip(samples, drawn, strict=True)]
        statistics += batch_statistic(*resamples).tolist()
    # Order statistics without interpolation: between −∞ and a number there is nothing to interpolate.
    ordered = sorted(statistics)
    low, high = ordered[math.floor(0.025 * repetitions)], ordered[math.ceil(0.975 * repetitions) - 1]
    return Interval(float(batch_statistic(*(sample[None] for sample in samples))[0]), low, high)
