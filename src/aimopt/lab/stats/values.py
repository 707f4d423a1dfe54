"""Values become scores: a higher score is better, and a diverged run has the score −∞.

    to_scores([0.3, nan, inf], "lower")     [-0.3, -inf, -inf]
    to_scores([9000.0, nan], "higher")      [9000.0, -inf]

This is the one rule for diverged runs in the statistics: a value that is not finite is the worst value.
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Better = Literal["lower", "higher"]
Floats = NDArray[np.float64]


def score_sign(better: Better) -> float:
    """The factor that turns a value into a score, and a score into a value."""
    if better not in get_args(Better):
        raise ValueError(f"better is {better!r}; use 'lower' for losses or 'higher' for returns")
    return -1.0 if better == "lower" else 1.0


def to_scores(values: ArrayLike, better: Better) -> Floats:
    """Values as scores. A higher score is better; a value that is not finite becomes −∞."""
    scores = score_sign(better) * np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(scores), scores, -np.inf)
