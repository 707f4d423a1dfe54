"""All tasks together: whether a contender is ahead of a reference, over every pair of task and seed.

    gains = pooled_differences({"images": {"Mine": {0: 0.11, …}, "Other": {…}}, "robot": …}, "Other", better)["Mine"]
    gains.ahead, gains.pairs          32 of 35 pairs of task and seed
    gains.p                           of a stratified sign-flip test, the tasks are the strata

On one task, five seeds decide little. The same small lead on seven tasks is 35 pairs, which do. The test asks one
question, whether the contender is ahead on an average task. It does not say on which one.

The statistic. The gain of a pair is relative (`sequential.relative_gains`): the logarithm of a ratio if all values are
positive and lower ones are better, else a difference. The gains of a task are divided by their root mean square, which
no flip of signs changes, so no task counts more because its values are large or vary much. The statistic is the mean
over the tasks of the mean over the seeds: every task has equal weight, with 5 seeds or with 40. If a run of a task
diverged, only the signs of this task count, as in `paired.py`.

The p value. Without a difference, swapping contender and reference on a pair only changes the sign of its gain. So p is
the share of all sign flips, made independently for all pairs, with a statistic at least as far from zero. Holm's
correction is over the contenders; one that is identical to the reference on every pair does not count (`paired.py`).

The seeds must not be chosen by their results. In a study with looks a contender stops when it is decided, so only the
seeds of the first look, which every contender has, may be passed: with all seeds, seven tasks and one rival, 5 % become
7 % in a simulation.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from aimopt.lab.stats.bootstrap import Interval
from aimopt.lab.stats.paired import LEVEL, holm, sign_flip_p
from aimopt.lab.stats.seed_resampling import REPETITIONS
from aimopt.lab.stats.sequential import relative_gains
from aimopt.lab.stats.values import Better, Floats

SeedValues = Mapping[str, Mapping[int, float]]  # contender -> seed -> value


class PooledDifference(NamedTuple):
    """A contender against a reference, over all tasks that have seeds of both."""

    tasks: tuple[str, ...]
    left_out: tuple[str, ...]  # tasks without a seed of both
    pairs: int  # of task and seed
    ahead: int  # pairs on which the contender is better
    ties: int
    mean: float  # the statistic: the mean standardized gain, between −1 and 1
    gain: Interval | None  # mean over the tasks of 1 − contender/reference, in logarithms; None if no task has ratios
    p: float
    holm_p: float
    all_diverged: bool = False  # both diverged on every pair: nothing was compared

    @property
    def verdict(self) -> str:
        """Ahead, behind, identical or cannot tell."""
        if self.ties == self.pairs:
            return "cannot tell" if self.all_diverged else "identical"
        if self.holm_p >= LEVEL:
            return "cannot tell"
        return "ahead" if self.mean > 0 else "behind"


def pooled_differences(
    values: Mapping[str, SeedValues], reference: str, better: Mapping[str, Better]
) -> dict[str, PooledDifference]:
    """Every contender against the reference, on the tasks and seeds that both have; `values` are by task.

    A contender that shares no seed with the reference on any task has no entry.
    """
    contenders = dict.fromkeys(name for task in values.values() for name in task if name != reference)
    uncorrected = {}
    for name in contenders:
        gains = {task: _gains(by_name, name, reference, better[task]) for task, by_name in values.items()}
        known = {task: gain for task, gain in gains.items() if gain is not None}
        if known:
            left_out = tuple(task for task in values if task not in known)
            uncorrected[name] = _pooled(known, left_out)
    family = {name: pooled for name, pooled in uncorrected.items() if pooled.ties < pooled.pairs}
    corrected = holm([pooled.p for pooled in family.values()])
    holm_p = dict(zip(family, corrected, strict=True))
    return {name: pooled._replace(holm_p=holm_p.get(name, pooled.p)) for name, pooled in uncorrected.items()}


class _Gains(NamedTuple):
    """The gains of a contender on one task, one per seed."""

    gains: Floats
    as_ratios: bool  # they are logarithms of ratios
    all_diverged: bool = False  # both diverged on every seed


def _gains(values: SeedValues, name: str, reference: str, better: Better) -> _Gains | None:
    if name not in values or reference not in values:
        return None
    shared = [seed for seed in values[reference] if seed in values[name]]
    if not shared:
        return None
    own, others = ([values[label][seed] for seed in shared] for label in (name, reference))
    gains = relative_gains(own, others, better)
    if not np.isfinite(gains).all():
        return _Gains(np.sign(gains), as_ratios=False)
    if not np.isfinite([*own, *others]).any():
        return _Gains(gains, as_ratios=False, all_diverged=True)
    return _Gains(gains, as_ratios=better == "lower" and min(*own, *others) > 0)


def _pooled(by_task: Mapping[str, _Gains], left_out: tuple[str, ...]) -> PooledDifference:
    """Without Holm's correction."""
    weighted = np.concatenate([_standardized(gains.gains) / len(gains.gains) for gains in by_task.values()])
    p = sign_flip_p(weighted)  # the sum of the weighted gains is the statistic, times the number of tasks
    return PooledDifference(
        tasks=tuple(by_task),
        left_out=left_out,
        pairs=len(weighted),
        ahead=int((weighted > 0).sum()),
        ties=int((weighted == 0).sum()),
        mean=float(weighted.sum()) / len(by_task),
        gain=_mean_gain([gains.gains for gains in by_task.values() if gains.as_ratios]),
        p=p,
        holm_p=p,
        all_diverged=all(gains.all_diverged for gains in by_task.values()),
    )


def _standardized(gains: Floats) -> Floats:
    scale = float(np.abs(gains).max()) or 1.0  # a gain of 1e200 is finite, its square is not
    shares = gains / scale
    return shares / (math.sqrt(float((shares**2).mean())) or 1.0)


def _mean_gain(log_ratios: list[Floats]) -> Interval | None:
    """The relative gain on an average task; seeds are resampled within the tasks."""
    if not log_ratios:
        return None
    generator = np.random.default_rng(0)
    means = np.zeros(REPETITIONS)
    for gains in log_ratios:
        means += gains[generator.integers(len(gains), size=(REPETITIONS, len(gains)))].mean(1)
    low, high = np.quantile(means / len(log_ratios), (LEVEL / 2, 1 - LEVEL / 2))
    value = float(np.mean([gains.mean() for gains in log_ratios]))
    return Interval(*(-math.expm1(-x) for x in (value, float(low), float(high))))
