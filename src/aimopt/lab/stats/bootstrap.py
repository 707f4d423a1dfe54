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
from numpy.typing import ArrayLike, NDArray

from aimopt.lab.stats.values import Floats, oriented

AT_ONCE = 1 << 20  # numbers, of the samples that are drawn together


class Interval(NamedTuple):
    """A statistic, and its 95 % percentile interval of the bootstrap."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: ArrayLike) -> float:
    """The mean of what is left after a quarter of all scores is cut off at each end, whatever their tasks."""
    return float(_interquartile_means(oriented(scores, "higher")[None])[0])


def stratified_bootstrap(
    scores: ArrayLike, statistic: Callable[[Floats], float], repetitions: int = 2000, seed: int = 0
) -> Interval:
    """A statistic of runs × tasks and its interval: runs are drawn again within each task, tasks are kept."""

    def of_each(samples: Floats) -> Floats:
        if statistic is interquartile_mean:
            return _interquartile_means(samples)  # of all draws at once: much faster
        return np.array([statistic(sample) for sample in samples])

    return _interval([_runs_by_tasks(scores)], of_each, repetitions, seed)


def probability_of_improvement(x: ArrayLike, y: ArrayLike, repetitions: int = 2000, seed: int = 0) -> Interval:
    """The share of pairs of runs of a task in which x is ahead of y, a tie counting half, averaged over tasks."""
    ours, theirs = _runs_by_tasks(x), _runs_by_tasks(y)
    if ours.shape[1] != theirs.shape[1]:
        raise ValueError(f"x has {ours.shape[1]} tasks and y has {theirs.shape[1]}; give both the same tasks, in order")
    return _interval([ours, theirs], _ahead, repetitions, seed)


def _interquartile_means(samples: Floats) -> Floats:
    ordered = np.sort(samples.reshape(len(samples), -1), axis=1)
    cut = ordered.shape[1] // 4
    return ordered[:, cut : ordered.shape[1] - cut].mean(axis=1)


def _ahead(x: Floats, y: Floats) -> Floats:
    ours, theirs = x[:, :, None], y[:, None]
    return ((ours > theirs).mean(axis=(1, 2, 3)) + (ours >= theirs).mean(axis=(1, 2, 3))) / 2


def _runs_by_tasks(scores: ArrayLike) -> Floats:
    matrix = oriented(scores, "higher")
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"scores have the shape {matrix.shape}; give a row a run and a column a task")
    return matrix


def _draw(generator: np.random.Generator, samples: list[Floats], count: int) -> list[NDArray[np.int64]]:
    """The rows that are drawn of each sample, so many times: of all samples in turn, then of all of them again."""
    if len({s.shape for s in samples}) == 1:  # the same numbers as one by one, in a hundredth of the calls
        return list(generator.integers(len(samples[0]), size=(count, len(samples), *samples[0].shape)).swapaxes(0, 1))
    drawn = [[generator.integers(len(s), size=s.shape) for s in samples] for _ in range(count)]
    return [np.stack(own) for own in zip(*drawn, strict=True)]


def _interval(samples: list[Floats], of_each: Callable[..., Floats], repetitions: int, seed: int) -> Interval:
    """A statistic and its interval; `of_each` takes several draws of each sample at once, one behind the other."""
    generator = np.random.default_rng(seed)
    columns = np.arange(samples[0].shape[1])
    at_once = max(1, AT_ONCE // math.prod(map(len, samples)) // len(columns))
    values: list[float] = []
    while len(values) < repetitions:
        count = min(at_once, repetitions - len(values))
        rows = _draw(generator, samples, count)
        values += of_each(*(s[own, columns] for s, own in zip(samples, rows, strict=True))).tolist()
    # order statistics, no interpolation: between −∞ and a number there is nothing
    ordered = sorted(values)
    low, high = ordered[math.floor(0.025 * repetitions)], ordered[math.ceil(0.975 * repetitions) - 1]
    return Interval(float(of_each(*(s[None] for s in samples))[0]), low, high)
