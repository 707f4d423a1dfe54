"""What a search would have found with fewer trials: the expected best score after 1, 2, …, n of its n trials.

    expected_best([0.9, 0.3, 0.6], "lower")         [0.6, 0.4, 0.3]
    expected_best([0.2, math.inf], "lower")         [inf, 0.2]: one of the two trials diverged

k trials are drawn from the n without replacement, each set of k with the same probability. Let the scores be sorted,
the worst first. The trial at place i is the best of k if the other k − 1 are among the i − 1 before it, so

    expected best of k  =  Σᵢ scoreᵢ · C(i − 1, k − 1) / C(n, k)

This needs no simulation, and with k = n it is the best score of the search. Drawing with replacement, as in Dodge et
al. (2019, Show Your Work), would still be off the best score at k = n.
"""

import math
from collections.abc import Sequence

from aimopt.lab.stats.values import Better, score_sign, to_scores


def expected_best(scores: Sequence[float], better: Better) -> list[float]:
    """The expected best score of 1, 2, …, n trials; the worst value, ±∞, as long as all of them may have diverged."""
    if not scores:
        raise ValueError("expected_best() got no score; pass one score per trial, infinity for a diverged one")
    gains, sign = sorted(to_scores(scores, better).tolist()), score_sign(better)
    count = len(gains)

    def expected(drawn: int) -> float:
        sets = math.comb(count, drawn)
        # The first drawn − 1 trials are never the best: their weight is 0, and 0 times infinity is not a number.
        return sum(gain * (math.comb(i, drawn - 1) / sets) for i, gain in enumerate(gains) if i >= drawn - 1)

    return [sign * expected(drawn) for drawn in range(1, count + 1)]
