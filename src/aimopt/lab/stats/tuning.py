"""The learning rate to keep after a search, and whether the search should go on.

select({1e-4: 0.9, 1e-3: 0.3, 1e-2: nan}, "lower")     Choice(rate=0.001, score=0.3, at_edge=False, diverged=False)
"""

from collections.abc import Mapping
from typing import NamedTuple

from aimopt.lab.stats.values import Better, oriented, sign


class Choice(NamedTuple):
    """The best rate tried. At the edge of those tried, a better one may lie outside."""

    rate: float
    score: float
    at_edge: bool
    diverged: bool  # every rate did; the smallest is chosen


def select(scores: Mapping[float, float], better: Better) -> Choice:
    """The rate with the best score, the smaller one of equals."""
    if not scores:
        raise ValueError("there is no learning rate to choose from; give the score of each one tried")
    rates = sorted(scores)
    gains = oriented([scores[rate] for rate in rates], better)
    best = int(gains.argmax())  # the first of equals
    at_edge = len(rates) > 1 and best in (0, len(rates) - 1)
    return Choice(rates[best], sign(better) * float(gains[best]), at_edge, bool(gains[best] == -float("inf")))
