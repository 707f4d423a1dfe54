"""One way up: losses and returns become scores, of which the higher is the better and −∞ is a diverged run.

oriented([0.3, nan, inf], "lower")     [-0.3, -inf, -inf]
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Better = Literal["lower", "higher"]
Floats = NDArray[np.float64]


def sign(better: Better) -> float:
    """What a value is multiplied by to become a score, and a score to become a value."""
    if better not in ("lower", "higher"):
        raise ValueError(f"better is {better!r}; say 'lower' for losses or 'higher' for returns")
    return -1.0 if better == "lower" else 1.0


def oriented(values: ArrayLike, better: Better) -> Floats:
    """Values as scores: the higher the better, and whatever is not finite the worst."""
    scores = sign(better) * np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(scores), scores, -np.inf)
