"""The step at which a curve reaches a target.

steps_to_target([0, 100, 200], [2.0, 1.0, 0.5], target=0.75, better="lower")     150.0
steps_to_target([0, 100, 200], [2.0, 1.0, 0.5], target=0.25, better="lower")     None
"""

from collections.abc import Sequence

import numpy as np

from aimopt.lab.stats.values import Better, to_scores


def steps_to_target(steps: Sequence[float], values: Sequence[float], target: float, better: Better) -> float | None:
    """The first step at which the curve is as good as the target; None if it never is.

    Between two evaluations the curve is interpolated linearly. After an evaluation that was not finite there is nothing
    to interpolate from: the result is then the step of the first good evaluation.
    """
    if len(steps) != len(values):
        raise ValueError(f"{len(steps)} steps and {len(values)} values; pass one step per value")
    scores, target_score = to_scores(values, better), float(to_scores(target, better))
    reached = np.flatnonzero(np.isfinite(scores) & (scores >= target_score))
    if not reached.size:
        return None
    first = int(reached[0])
    if first == 0 or not np.isfinite(scores[first - 1]):
        return float(steps[first])
    return float(np.interp(target_score, scores[first - 1 : first + 1], steps[first - 1 : first + 1]))
