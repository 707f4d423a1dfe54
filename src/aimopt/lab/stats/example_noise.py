"""The noise of a test set: how much a difference would change with other test examples.

    jackknife_error([0.31, 0.29, 0.33])            from estimates that leave out one part of the examples each
    gain_error(contender, reference, "lower")      0.0011: the error of a mean gain, from the examples alone

Verdicts are about seeds: all contenders have the same test set, and it is never resampled. If its own noise is not well
below the spread of the seeds, a verdict says more about these examples than about the task. What counts is the noise of
a difference: an example that is hard for one network is hard for the other too, and that part cancels.
"""

import math
from collections.abc import Sequence

import numpy as np

from aimopt.lab.stats.sequential import relative_gains
from aimopt.lab.stats.values import Better

ENOUGH_SHARE = 1 / 3  # of the seeds' standard deviation: the noise of the test set should be below it


def jackknife_error(estimates: Sequence[float]) -> float:
    """The standard error of a statistic, from its values without each of several parts of equal size (Tukey, 1958)."""
    values = np.asarray(estimates, dtype=np.float64)
    if len(values) < 2:
        return math.nan
    return math.sqrt((len(values) - 1) / len(values) * float(((values - values.mean()) ** 2).sum()))


def gain_error(contender: Sequence[Sequence[float]], reference: Sequence[Sequence[float]], better: Better) -> float:
    """The standard error of the mean relative gain over the seeds that comes from the test examples.

    Both have a row per seed, in the same order: the results without each part of the test set, the same parts in every
    row.
    """
    by_part = zip(np.transpose(contender), np.transpose(reference), strict=True)
    return jackknife_error([float(relative_gains(own, other, better).mean()) for own, other in by_part])
