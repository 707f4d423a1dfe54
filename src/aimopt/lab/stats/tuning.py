"""Choose the learning rate, and other options, of a contender from the scores of trials.

    select_rate({1e-4: 0.9, 1e-3: 0.3, 1e-2: nan}, "lower")     RateChoice(0.001, 0.3, at_edge=False, diverged=False)
    points(7, usual_rate=1e-3, spans={"beta1": ONE_MINUS})       one list of quasi-random points, the same for everyone
    plan_search(points, seeds, score, "lower")                   the trials that are needed now, and the choice

`select_rate` ends a search with one run per rate of a grid. `plan_search` searches in rounds. It knows no runs: `score`
gives the score of a point on a tuning seed, or None while there is none. Its rule:

1. All points of the list are tried on the first tuning seed.
2. The best three are tried on every tuning seed. From here on, a point counts by its mean over these seeds.
3. The best point is compared with the two rates beside it: √2 times smaller and larger if the list has rates on both
   sides of it, else 2 times. A best point without a rate on one side is at the edge: the search goes on in that
   direction, by factors of 2, until the best point is inside, but at most `MAX_EXTENSIONS` times.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from aimopt.lab.stats.values import Better, score_sign, to_scores

FINALISTS = 3  # points that are tried on every tuning seed
EXTENSION = 2.0  # factor between rates beyond the list
REFINEMENT = math.sqrt(2)  # factor between the best rate of the list and its neighbours
MAX_EXTENSIONS = 4
RATE_SPAN = 16.0  # the list has rates from a sixteenth of the usual rate to sixteen times it


class RateChoice(NamedTuple):
    """The best learning rate of a search."""

    rate: float
    score: float
    at_edge: bool  # it is the lowest or the highest rate tried: a better rate may lie outside
    diverged: bool  # every rate diverged; the lowest one is selected


class Point(NamedTuple):
    """A learning rate, and the values of other options that are searched, by name."""

    rate: float
    options: tuple[tuple[str, float], ...] = ()


class PointChoice(NamedTuple):
    """The best point of a search."""

    point: Point
    score: float  # mean over the tuning seeds
    at_edge: bool  # the extensions ended before a rate on both sides was tried
    diverged: bool  # every point diverged


class SearchPlan(NamedTuple):
    """The trials of a search so far, with or without a score, and the choice when there is nothing more to try."""

    trials: tuple[tuple[Point, int], ...]  # point and tuning seed
    choice: PointChoice | None


Score = Callable[[Point, int], float | None]
Span = Callable[[float], float]  # from a number in [0, 1) to the value of an option


def select_rate(scores: Mapping[float, float], better: Better) -> RateChoice:
    """The learning rate with the best score; of equal scores, the lowest rate."""
    if not scores:
        raise ValueError("there is no learning rate to select from; pass the score of every rate tried")
    rates = sorted(scores)
    gains = to_scores([scores[rate] for rate in rates], better)
    best = int(gains.argmax())  # the first one of equal scores
    at_edge = len(rates) > 1 and best in (0, len(rates) - 1)
    return RateChoice(rates[best], score_sign(better) * float(gains[best]), at_edge, bool(gains[best] == -float("inf")))


def points(count: int, usual_rate: float, spans: Mapping[str, Span]) -> list[Point]:
    """The first points of Halton's sequence: base 2 for the rate, then one prime per option, in the order of `spans`.

    The first point has the usual rate. The first 2ⁿ − 1 rates are evenly spaced in their logarithm: with 7 points, by
    factors of 2 around the usual rate.
    """
    primes = (2, 3, 5, 7)
    if len(spans) >= len(primes):
        raise ValueError(f"{len(spans)} options cannot be searched besides the rate; at most {len(primes) - 1} can")
    chosen = []
    for index in range(1, count + 1):
        rate = usual_rate * RATE_SPAN ** (2 * radical_inverse(index, 2) - 1)
        bases = zip(spans.items(), primes[1:], strict=False)
        options = tuple((name, span(radical_inverse(index, base))) for (name, span), base in bases)
        chosen.append(Point(_rounded(rate), options))
    return chosen


def radical_inverse(index: int, base: int) -> float:
    """The digits of `index` in this base, reversed behind the point: 6 is 110 in base 2, which gives 0.011, or 3/8."""
    inverse, unit = 0.0, 1.0 / base
    while index:
        index, digit = divmod(index, base)
        inverse, unit = inverse + digit * unit, unit / base
    return inverse


def plan_search(start: Sequence[Point], seeds: Sequence[int], score: Score, better: Better) -> SearchPlan:
    """The trials of a search, as far as the scores so far decide them. The module gives the rule."""
    trials = [(point, seeds[0]) for point in start]
    if any(score(*trial) is None for trial in trials):
        return SearchPlan(tuple(trials), None)
    gains = to_scores([_known(score(*trial)) for trial in trials], better)
    order = sorted(range(len(start)), key=lambda i: (-gains[i], start[i]))
    finalists = [start[i] for i in order[:FINALISTS]]
    trials += [(point, seed) for point in finalists for seed in seeds[1:]]
    means: dict[Point, float] = {}
    tried, new, extensions, at_edge = list(start), finalists, 0, False
    while new:
        if any(score(point, seed) is None for point in new for seed in seeds):
            return SearchPlan(tuple(trials), None)
        for point in new:
            by_seed = to_scores([_known(score(point, seed)) for seed in seeds], better)
            means[point] = float(by_seed.mean())
        best = min(means, key=lambda point: (-means[point], point))
        first_round = tried == list(start)
        new, outside = _neighbours(best, tried, first_round)
        if outside and extensions == MAX_EXTENSIONS:
            new, at_edge = [], True
        extensions += outside and not first_round
        tried += new
        trials += [(point, seed) for point in new for seed in seeds]
    choice = PointChoice(best, score_sign(better) * means[best], at_edge, means[best] == -math.inf)
    return SearchPlan(tuple(trials), choice)


def _neighbours(best: Point, tried: Sequence[Point], first_round: bool) -> tuple[list[Point], bool]:
    """The rates to try beside the best point, and whether it has no rate on one side yet."""
    rates = [point.rate for point in tried if point.options == best.options]
    missing = [factor for factor, side in ((1 / EXTENSION, min(rates)), (EXTENSION, max(rates))) if side == best.rate]
    factors = missing or ([1 / REFINEMENT, REFINEMENT] if first_round else [])
    new = [best._replace(rate=_rounded(best.rate * factor)) for factor in factors]
    return [point for point in new if point not in tried], bool(missing)


def _known(score: float | None) -> float:
    assert score is not None
    return score


def _rounded(rate: float) -> float:
    """A rate without the rounding error of a product; as in the config of a run."""
    return float(f"{rate:.12g}")
