"""A difference in steps: how long the reference must train to end where a contender ends.

    by_length = {500: {0: 2.31, …}, 1000: {0: 2.12, …}, 2000: {0: 2.01, …}}      final losses of the reference, by seed
    found = equivalent_steps(by_length, contender={0: 2.07, …}, steps=1000, better="lower")
    found.steps           1330 [1210, 1480]: the reference reaches the contender's final loss in this many steps
    found.saved           0.25 [0.17, 0.32]: the contender needs 25 % fewer steps
    found.side            "" inside the range; "above" if even the longest schedule of the reference ends behind

Every length is a complete schedule, from warm-up to its end, so this differs from the step at which a curve first
reaches a value (`targets.py`): in the middle of a schedule the learning rate is still high.

The final values are interpolated monotonically over the logarithm of the steps (Fritsch and Carlson, 1980). If noise
makes a longer schedule end behind a shorter one, their values are averaged first (isotonic regression). Outside the
range of the lengths nothing is extrapolated: the result is the end of the range, and `side` says so. An end of the
interval that is at an end of the range means "or beyond it", too.
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from aimopt.lab.stats.bootstrap import Interval
from aimopt.lab.stats.seed_resampling import REPETITIONS, resampled_means
from aimopt.lab.stats.targets import percentile_interval, steps_to_targets
from aimopt.lab.stats.values import Better, Floats

GRID = 513  # points between the shortest and the longest schedule, at which the interpolation is evaluated
Side = Literal["", "above", "below"]


class EquivalentSteps(NamedTuple):
    """How many steps of the reference a contender's final value is worth."""

    steps: Interval
    saved: Interval  # 1 − own steps/equivalent steps; negative if the contender needs more steps
    side: Side  # "above": it is worth more than the longest schedule; "below": less than the shortest
    shortest: int
    longest: int


def equivalent_steps(
    reference: Mapping[int, Mapping[int, float]],
    contender: Mapping[int, float],
    steps: int,
    better: Better,
    repetitions: int = REPETITIONS,
) -> EquivalentSteps | None:
    """The length of the reference that ends where a contender ends after `steps`.

    `reference` has the final values by length and seed, `contender` its final values by seed. None if a run of the
    contender diverged, or if less than two lengths are left without those at which a run of the reference diverged.
    """
    lengths = sorted(n for n, by_seed in reference.items() if by_seed and all(map(math.isfinite, by_seed.values())))
    if len(lengths) < 2 or not contender or not all(map(math.isfinite, contender.values())):
        return None
    if lengths[0] < 1:
        raise ValueError(f"a schedule has at least one step, got {lengths[0]}")
    observed, draws = resampled_means([*(reference[n] for n in lengths), contender], better, repetitions)
    low, high = lengths[0], lengths[-1]
    at = float(_crossing(lengths, observed[None])[0])
    behind_shortest = observed[-1] < _isotonic(observed[None, :-1])[0, 0] - 1e-12 * np.abs(observed).max()
    side: Side = "above" if math.isinf(at) else "below" if behind_shortest else ""
    resampled = np.clip(_crossing(lengths, draws), low, high)
    equivalent = percentile_interval(min(max(at, low), high), resampled)
    saved = Interval(*(1 - steps / x for x in equivalent))
    return EquivalentSteps(equivalent, saved, side, low, high)


def _crossing(lengths: list[int], scores: Floats) -> Floats:
    """Per row, the length at which the interpolated scores of the reference reach the score in the last column."""
    from scipy.interpolate import PchipInterpolator  # slow to import, and only a report needs it

    at = np.log(lengths)
    grid = np.linspace(at[0], at[-1], GRID)
    curves = PchipInterpolator(at, _isotonic(scores[:, :-1]), axis=1)(grid)
    rounding = 1e-12 * np.abs(scores).max(1)  # a value as good as that of the longest schedule is not beyond it
    return np.exp(steps_to_targets(grid, curves, scores[:, -1] - rounding, "higher"))


def _isotonic(scores: Floats) -> Floats:
    """Per row, the closest scores that do not fall from one length to the next (the max–min formula)."""
    count = scores.shape[1]
    sums = np.concatenate([np.zeros((len(scores), 1)), scores.cumsum(1)], axis=1)
    fitted = np.full_like(scores, -np.inf)
    for start in range(count):
        lowest = np.full(len(scores), np.inf)
        for i in reversed(range(start, count)):  # the lowest mean of start..k for every k ≥ i
            lowest = np.minimum(lowest, (sums[:, i + 1] - sums[:, start]) / (i + 1 - start))
            fitted[:, i] = np.maximum(fitted[:, i], lowest)
    return fitted
