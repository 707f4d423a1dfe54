"""How soon a run gets there: the step at which its curve reaches a target.

steps_to_target([0, 100, 200], [2.0, 1.0, 0.5], target=0.75, better="lower")     150.0
"""

from collections.abc import Sequence

import numpy as np

from aimopt.lab.stats.values import Better, oriented


def steps_to_target(steps: Sequence[float], values: Sequence[float], target: float, better: Better) -> float | None:
    """The first step at which the curve is as good as the target, on a line between evaluations; None if it never is.

    After an evaluation that was not finite there is no line, and the step is that of the evaluation itself.
    """
    if len(steps) != len(values):
        raise ValueError(f"{len(steps)} steps and {len(values)} values; give the step of each evaluation")
    scores, goal = oriented(values, better), float(oriented(target, better))
    reached = np.flatnonzero(np.isfinite(scores) & (scores >= goal))
    if not reached.size:
        return None
    first = int(reached[0])
    if first == 0 or not np.isfinite(scores[first - 1]):
        return float(steps[first])
    return float(np.interp(goal, scores[first - 1 : first + 1], steps[first - 1 : first + 1]))
