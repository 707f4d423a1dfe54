"""A gain in steps: how much longer the reference must train to end where a contender ends, by numpy and scipy alone.

fewer_steps({250: …, 500: …, 1000: …}, {0: 23.6, …}, 500, "lower")     [14.0, " % [", 3.0, ", ", 24.0, "]"]

The final values of the reference are interpolated over the logarithm of its steps. The interval is the middle 95 % of
what resamples of the seeds give; runs with the same seed are drawn together.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq, isotonic_regression

from recomputation.pages import Text

RESAMPLES = 2000
MIDDLE = (0.025, 0.975)
BySeed = Mapping[int, float]


def fewer_steps(reference: Mapping[int, BySeed], contender: BySeed, steps: int, better: str) -> Text:
    """The share of steps that a contender saves, in per cent, as the page prints it; beyond the lengths, a bound."""
    lengths = sorted(reference)
    columns = [*(reference[length] for length in lengths), contender]
    sign = -1 if better == "lower" else 1
    mean = sign * np.array([np.mean([*by_seed.values()]) for by_seed in columns])
    value = _equal_length(lengths, mean)
    ordered = np.sort([_equal_length(lengths, sign * means) for means in _resampled_means(columns)])
    low, high = (ordered[math.floor(MIDDLE[0] * RESAMPLES)], ordered[math.ceil(MIDDLE[1] * RESAMPLES) - 1])
    side = "more than " if mean[-1] > mean[-2] else "less than " if mean[-1] < mean[0] else ""
    saved = [100 * (1 - steps / length) for length in (value, low, high)]
    before_low, before_high = "< " if low <= lengths[0] else "", "> " if high >= lengths[-1] else ""
    return [side, saved[0], " % [", before_low, saved[1], ", ", before_high, saved[2], "]"]


def _equal_length(lengths: Sequence[int], scores: np.ndarray) -> float:
    """The length at which the reference reaches the last score; at an end of the lengths if it is beyond them."""
    at, rising = np.log(lengths), isotonic_regression(scores[:-1]).x
    if scores[-1] <= rising[0]:
        return lengths[0]
    if scores[-1] >= rising[-1]:
        return lengths[-1]
    curve = PchipInterpolator(at, rising)
    return math.exp(brentq(lambda x: float(curve(x)) - scores[-1], at[0], at[-1]))


def _resampled_means(columns: Sequence[BySeed]) -> np.ndarray:
    """One row of means per resample. Seeds that the same columns have are drawn among themselves."""
    seeds = list(dict.fromkeys(seed for by_seed in columns for seed in by_seed))
    known = np.array([[seed in by_seed for by_seed in columns] for seed in seeds])
    values = np.array([[by_seed.get(seed, 0.0) for by_seed in columns] for seed in seeds])
    counts, random = np.zeros((RESAMPLES, len(seeds))), np.random.default_rng(0)
    for pattern in np.unique(known, axis=0):
        alike = np.flatnonzero((known == pattern).all(1))
        counts[:, alike] = random.multinomial(len(alike), [1 / len(alike)] * len(alike), size=RESAMPLES)
    return (counts @ values) / (counts @ known)
