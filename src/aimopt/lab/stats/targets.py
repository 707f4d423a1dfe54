"""The step at which a curve reaches a target, and how sure it is.

    steps_to_target([0, 100, 200], [2.0, 1.0, 0.5], target=0.75, better="lower")     150.0
    steps_to_target([0, 100, 200], [2.0, 1.0, 0.5], target=0.25, better="lower")     None
    resampled_steps(steps, own_curves, reference_curves, "lower")                     both steps, in 2000 resamples
    resampled_median(1.05, quartiles=(1.02, 1.08), rounds=15)                         a measured ratio, as draws
    percentile_interval(0.8, ratios)                                                  0.80 [0.71, 0.92]

Intervals combine what is resampled: the product of a resampled ratio of steps and a resampled ratio of step times is a
resampled ratio of times.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from aimopt.lab.stats.bootstrap import Interval
from aimopt.lab.stats.paired import LEVEL
from aimopt.lab.stats.seed_resampling import REPETITIONS
from aimopt.lab.stats.values import Better, Floats, to_scores

QUARTILES = 1.3489795  # the distance of a normal distribution's quartiles, in standard deviations
MEDIAN_ERROR = math.sqrt(math.pi / 2)  # the standard error of a median, relative to that of a mean


def steps_to_target(steps: Sequence[float], values: Sequence[float], target: float, better: Better) -> float | None:
    """The first step at which the curve is as good as the target; None if it never is.

    Between two evaluations the curve is interpolated linearly. After an evaluation that was not finite there is nothing
    to interpolate from: the result is then the step of the first good evaluation.
    """
    if len(steps) != len(values):
        raise ValueError(f"{len(steps)} steps and {len(values)} values; pass one step per value")
    if not len(steps):
        return None
    step = float(steps_to_targets(steps, np.array([values], dtype=np.float64), [target], better)[0])
    return step if math.isfinite(step) else None


def steps_to_targets(steps: Sequence[float] | Floats, curves: Floats, targets: ArrayLike, better: Better) -> Floats:
    """`steps_to_target` for many curves, one per row, each with its own target; infinity if it is never reached."""
    scores, goals, at = to_scores(curves, better), to_scores(targets, better), np.asarray(steps, dtype=np.float64)
    reached = np.isfinite(scores) & (scores >= goals[:, None])
    rows, first = np.arange(len(scores)), reached.argmax(1)
    before = np.maximum(first - 1, 0)
    here, previous = scores[rows, first], scores[rows, before]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        between = at[before] + (goals - previous) / (here - previous) * (at[first] - at[before])
    crossed = np.where((first > 0) & np.isfinite(previous), between, at[first])
    return np.where(reached.any(1), crossed, np.inf)


def resampled_steps(
    steps: Sequence[float] | Floats, own: Floats, reference: Floats, better: Better, repetitions: int = REPETITIONS
) -> tuple[Floats, Floats]:
    """In resamples of the seeds, the steps of both mean curves to the final mean of the reference.

    `own` and `reference` have one row per seed, the same seeds in the same order, and one column per step. A resample
    draws the same seeds for both. The target is resampled, too: it is a mean of seeds.
    """
    if own.shape != reference.shape or own.shape[1:] != (len(steps),):
        raise ValueError(
            f"curves of the shapes {own.shape} and {reference.shape} over {len(steps)} steps; pass one row per seed "
            "that both have and one column per step"
        )
    seeds = len(own)
    generator = np.random.default_rng(0)
    counts = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=repetitions)
    own_means, reference_means = _weighted_means(counts, own), _weighted_means(counts, reference)
    targets = reference_means[:, -1]
    return (
        steps_to_targets(steps, own_means, targets, better),
        steps_to_targets(steps, reference_means, targets, better),
    )


def _weighted_means(counts: np.ndarray, curves: Floats) -> Floats:
    """Mean curves; NaN at steps at which a drawn curve has no finite value."""
    finite = np.isfinite(curves)
    means = counts @ np.where(finite, curves, 0.0) / len(curves)
    return np.where(counts @ ~finite > 0, np.nan, means)


def resampled_median(
    median: float, quartiles: tuple[float, float], rounds: int | None, repetitions: int = REPETITIONS
) -> Floats:
    """Draws of the median of positive numbers, of which only the quartiles and their number are known.

    The logarithms are taken to be normally distributed. If the number is not known, the draws are those of one round:
    the interval is then too wide, not too narrow.
    """
    deviation = math.log(quartiles[1] / quartiles[0]) / QUARTILES
    error = deviation * (MEDIAN_ERROR / math.sqrt(rounds) if rounds else 1.0)
    return median * np.exp(error * np.random.default_rng(1).standard_normal(repetitions))


def percentile_interval(value: float, draws: Floats) -> Interval:
    """A value and the 95 % interval of its draws: order statistics, since next to infinity nothing is interpolated."""
    ordered = np.sort(draws)
    low, high = math.floor(LEVEL / 2 * len(ordered)), math.ceil((1 - LEVEL / 2) * len(ordered)) - 1
    return Interval(value, float(ordered[low]), float(ordered[high]))
