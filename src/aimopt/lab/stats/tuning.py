"""Select the learning rate after a search, and report whether it is at the edge of the rates tried.

select_rate({1e-4: 0.9, 1e-3: 0.3, 1e-2: nan}, "lower")     RateChoice(0.001, 0.3, at_edge=False, diverged=False)
select_rate({1e-4: 0.3, 1e-3: 0.9}, "lower").at_edge        True: a smaller rate may be better
"""

from collections.abc import Mapping
from typing import NamedTuple

from aimopt.lab.stats.values import Better, score_sign, to_scores


class RateChoice(NamedTuple):
    """The best learning rate of a search."""

    rate: float
    score: float
    at_edge: bool  # it is the lowest or the highest rate tried: a better rate may lie outside
    diverged: bool  # every rate diverged; the lowest one is selected


def select_rate(scores: Mapping[float, float], better: Better) -> RateChoice:
    """The learning rate with the best score; of equal scores, the lowest rate."""
    if not scores:
        raise ValueError("there is no learning rate to select from; pass the score of every rate tried")
    rates = sorted(scores)
    gains = to_scores([scores[rate] for rate in rates], better)
    best = int(gains.argmax())  # the first one of equal scores
    at_edge = len(rates) > 1 and best in (0, len(rates) - 1)
    return RateChoice(rates[best], score_sign(better) * float(gains[best]), at_edge, bool(gains[best] == -float("inf")))
