"""Average ranks and performance profiles with intervals: seeds are resampled within each task, the tasks stay fixed.

    values = {"images": {"Mine": {0: 0.11, 1: 0.12}, "Other": {0: 0.12, 1: 0.10}}, "robot": …}
    rank_intervals(values, better)["Mine"]                       1.5 [1.0, 2.0]
    profile_intervals(values, better, [0, 1])["Mine"].shares     how often Mine is the best, and within one median gap

The intervals say how much the seeds matter. They say nothing about other tasks.

A resample draws the same seeds for all contenders of a task (`seed_resampling.py`). Ranks are those of the means over
all seeds of a contender; contenders may have different numbers of seeds. The profile needs seeds that all contenders
have, and gives every task equal weight.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from aimopt.lab.stats.bootstrap import Interval
from aimopt.lab.stats.paired import LEVEL
from aimopt.lab.stats.pooled import SeedValues
from aimopt.lab.stats.ranking import performance_profile
from aimopt.lab.stats.seed_resampling import REPETITIONS, resampled_means
from aimopt.lab.stats.values import Better, Floats


class ProfileBand(NamedTuple):
    """The profile of a contender: per threshold a share, and its 95 % interval."""

    shares: Floats
    low: Floats
    high: Floats


def rank_intervals(
    values: Mapping[str, SeedValues], better: Mapping[str, Better], repetitions: int = REPETITIONS
) -> dict[str, Interval]:
    """The average rank of each contender over the tasks; equal means share a rank. All tasks have all contenders."""
    contenders = _contenders(values)
    generator = np.random.default_rng(0)
    observed, resampled = np.zeros(len(contenders)), np.zeros((repetitions, len(contenders)))
    for task, by_name in values.items():
        means, draws = resampled_means([by_name[name] for name in contenders], better[task], repetitions, generator)
        observed += _ranks(means[None])[0]
        resampled += _ranks(draws)
    low, high = _ends(resampled / len(values))
    centre = observed / len(values)
    return {name: Interval(*map(float, (centre[i], low[i], high[i]))) for i, name in enumerate(contenders)}


def profile_intervals(
    values: Mapping[str, SeedValues],
    better: Mapping[str, Better],
    thresholds: Sequence[float],
    repetitions: int = REPETITIONS,
) -> dict[str, ProfileBand]:
    """The performance profile of each contender; empty if no task has a seed that all contenders have."""
    contenders = _contenders(values)
    generator = np.random.default_rng(0)
    shape = len(contenders) * len(thresholds)
    observed, resampled, tasks = np.zeros(shape), np.zeros((repetitions, shape)), 0
    for task, by_name in values.items():
        shared = [seed for seed in by_name[contenders[0]] if all(seed in by_name[name] for name in contenders)]
        if shared:
            within = _within(by_name, contenders, shared, better[task], thresholds).reshape(len(shared), shape)
            counts = generator.multinomial(len(shared), np.full(len(shared), 1 / len(shared)), size=repetitions)
            observed += within.mean(0)
            resampled += counts @ within / len(shared)
            tasks += 1
    if not tasks:
        return {}
    bands = np.stack([observed / tasks, *_ends(resampled / tasks)]).reshape(3, len(contenders), len(thresholds))
    return {name: ProfileBand(*bands[:, i]) for i, name in enumerate(contenders)}


def _contenders(values: Mapping[str, SeedValues]) -> list[str]:
    """The contenders, which must have a value on every task."""
    if not values:
        raise ValueError("there are no tasks to compare on; pass the values of at least one task")
    contenders = list(next(iter(values.values())))
    for task, by_name in values.items():
        missing = [name for name in contenders if not by_name.get(name)]
        if missing or len(by_name) != len(contenders):
            raise ValueError(
                f"task {task!r} has values of {sorted(by_name)}, but the first task of {sorted(contenders)}; "
                "pass at least one value per contender and task, infinity for a diverged run"
            )
    return contenders


def _ranks(scores: Floats) -> Floats:
    from scipy.stats import rankdata  # slow to import, and only a report needs it

    mantissa, exponent = np.frexp(scores)
    rounded = np.ldexp(np.round(mantissa, 12), exponent)  # identical contenders share a rank, whatever BLAS rounds
    return rankdata(-rounded, axis=1)


def _ends(statistics: Floats) -> tuple[Floats, Floats]:
    low, high = np.quantile(statistics, (LEVEL / 2, 1 - LEVEL / 2), axis=0)
    return low, high


def _within(
    by_name: SeedValues, contenders: Sequence[str], seeds: Sequence[int], better: Better, thresholds: Sequence[float]
) -> Floats:
    """Per seed, contender and threshold, 1 if the contender is within the threshold of the best one, else 0."""
    rows = []
    for seed in seeds:
        by_seed = {seed: {name: by_name[name][seed] for name in contenders}}
        profile = performance_profile(by_seed, {seed: better}, thresholds)
        rows.append([profile[name] for name in contenders])
    return np.array(rows, dtype=np.float64)
