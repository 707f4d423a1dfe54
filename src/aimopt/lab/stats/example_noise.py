"""The noise of a test set: how much a result would change with other test examples.

    jackknife_error([0.31, 0.29, 0.33])       from estimates that leave out one part of the examples each
    noise_share([0.004, 0.005], [0.013, 0.015])      0.32: standard errors, relative to the deviations of the seeds

Verdicts are about seeds: all contenders have the same test set, and it is never resampled. If its own noise is not well
below the spread of the seeds, a verdict says more about these examples than about the task.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

ENOUGH_SHARE = 1 / 3  # of the seeds' standard deviation: the noise of the test set should be below it


def jackknife_error(estimates: Sequence[float]) -> float:
    """The standard error of a statistic, from its values without each of several parts of equal size (Tukey, 1958)."""
    values = np.asarray(estimates, dtype=np.float64)
    if len(values) < 2:
        return math.nan
    return math.sqrt((len(values) - 1) / len(values) * float(((values - values.mean()) ** 2).sum()))


def noise_share(errors: Iterable[float], deviations: Iterable[float]) -> float | None:
    """The root mean square of the standard errors of runs, divided by the median standard deviation of the seeds.

    One error per run, one deviation per contender. None if nothing is known, or if the seeds do not differ.
    """
    known = [error for error in errors if math.isfinite(error)]
    spreads = [deviation for deviation in deviations if math.isfinite(deviation) and deviation > 0]
    if not known or not spreads:
        return None
    return math.sqrt(sum(error**2 for error in known) / len(known)) / float(np.median(spreads))
