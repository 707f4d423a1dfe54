"""Successive halving: many candidates with few trials each, then the best of them with more.

    plan_rungs({"A": rates, "B": rates}, seeds, (1, 3, 9), score, "lower")      the rungs so far, and what they decided

The rule (Jamieson & Talwalkar 2016, with thirds instead of halves):

1. On the first rung every candidate is tried at each of its learning rates, with the first seed.
2. A point, which is a candidate at a rate, counts by its mean over the seeds of the rung, and a candidate by its best
   point.
3. The best third of the candidates go on to the next rung, each with the best third of its rates (both rounded up), and
   with more seeds. Candidates to keep always go on.

The rungs differ in seeds, and every trial has the whole schedule. The usual rungs are longer and longer trials. Both
kinds of shorter trial would mislead here. The beginning of a schedule has not annealed its learning rate: it favours
low rates and what is fast at first. A short schedule of its own is a fair comparison at another length, and the best
rate, the best momentum and the order of optimizers depend on length. With seeds, a trial estimates without bias what is
asked at the end, a rung only takes noise away, and its trials count on the next rung: none is thrown away.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from aimopt.lab.stats.values import Better, score_sign, to_scores

KEPT = 3  # one in this many candidates goes on, and one in this many of its rates
Score = Callable[[str, float, int], float | None]  # of a candidate at a rate with a seed; None while there is none


class Entry(NamedTuple):
    """A candidate at a learning rate. Its score is the mean over the seeds of a rung; None while one is missing."""

    candidate: str
    rate: float
    score: float | None


class Rung(NamedTuple):
    """The points that reached a rung."""

    seeds: tuple[int, ...]
    entries: tuple[Entry, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every point has a score."""
        return all(entry.score is not None for entry in self.entries)

    def best_of(self, candidate: str, better: Better) -> Entry | None:
        """The best point of a candidate that has a score so far."""
        scored = [entry for entry in self.entries if entry.candidate == candidate and entry.score is not None]
        return min(scored, key=lambda entry: (-_gain(entry, better), entry.rate), default=None)


def plan_rungs(
    rates: Mapping[str, Sequence[float]],
    seeds: Sequence[int],
    rungs: Sequence[int],
    score: Score,
    better: Better,
    keep: Collection[str] = (),
) -> list[Rung]:
    """The rungs that the scores so far decide; of these only the last may be incomplete. The module gives the rule."""
    plan: list[Rung] = []
    going_on = {candidate: list(of_candidate) for candidate, of_candidate in rates.items()}
    for count in rungs:
        entries = [
            Entry(candidate, rate, _mean([score(candidate, rate, seed) for seed in seeds[:count]], better))
            for candidate, of_candidate in going_on.items()
            for rate in of_candidate
        ]
        plan.append(Rung(tuple(seeds[:count]), tuple(entries)))
        if not plan[-1].is_complete:
            break
        going_on = survivors(plan[-1], better, keep)
    return plan


def survivors(rung: Rung, better: Better, keep: Collection[str] = ()) -> dict[str, list[float]]:
    """The candidates that go on from a complete rung, best first, each with the rates that it keeps."""
    points: dict[str, list[Entry]] = {}
    for entry in sorted(rung.entries, key=lambda entry: (-_gain(entry, better), entry.candidate, entry.rate)):
        points.setdefault(entry.candidate, []).append(entry)
    count = third(len(points))
    chosen = [candidate for place, candidate in enumerate(points) if place < count or candidate in keep]
    return {c: sorted(entry.rate for entry in points[c][: third(len(points[c]))]) for c in chosen}


def third(count: int) -> int:
    """How many of `count` go on: a third, rounded up."""
    return -(-count // KEPT)


def _mean(scores: Sequence[float | None], better: Better) -> float | None:
    """The mean of the scores; the worst value if a run diverged, NaN if one failed, None while one is missing."""
    known = [score for score in scores if score is not None]
    if len(known) == len(scores) and any(map(math.isnan, known)):
        return math.nan
    return score_sign(better) * float(to_scores(known, better).mean()) if len(known) == len(scores) else None


def _gain(entry: Entry, better: Better) -> float:
    assert entry.score is not None
    return float(to_scores([entry.score], better)[0])
