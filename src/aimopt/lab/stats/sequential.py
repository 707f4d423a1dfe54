"""Verdicts that come in looks: seeds are added in blocks until a contender is decided.

    looks = (5, 10, 20, 40)
    decide({"Mine": gains}, looks, margin=0.005)["Mine"]      Decision("better", seeds=10, low=0.008, high=0.031)
    decide({"Mine": gains[:5]}, looks, margin=0.005)["Mine"]  Decision("open", seeds=5, …): 10 seeds are needed now

`gains` are paired differences from the reference in the order of the seeds; positive is better. They are relative
(`relative_gains`): a gain of 0.01 is a loss that is 1 % smaller. `margin` is the difference that counts: the task
states it before anything is run.

The rule. At each look a contender that is not decided yet gets one of four verdicts:

    better      the gain is above +margin, by a one-sided t-test at the level of the look
    worse       the gain is below −margin, likewise
    equal       the gain is inside ±margin, by two one-sided t-tests at the level of the look
    undecided   none of these at the last look; "open" before it

The level of a look is 5 % / 2 / number of looks / number of contenders, so that the probability of any false "better"
or "worse" in a table is at most 5 %, whatever the correlations are (Bonferroni). The same holds for any false "equal".
With few seeds the t-test relies on its assumptions, so every seed must agree: as long as sign flips cannot reach the
level, all gains must be on the same side of the margin; afterwards the sign-flip test must reach it too.

Why a margin for better and worse. The search chooses a slightly wrong rate now and then. The final runs then differ
although the contenders do not, and with enough seeds any test detects it. A difference below what the search can
resolve is therefore no verdict; tests/lab/stats/test_whole_procedure.py measures how often one is given.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from aimopt.lab.stats.paired import LEVEL, sign_flip_p
from aimopt.lab.stats.values import Better, Floats, to_scores

LOOKS = (5, 10, 20, 40)
Outcome = Literal["better", "worse", "equal", "identical", "undecided", "open"]


class Decision(NamedTuple):
    """The verdict on one contender, and the interval of its gain at the look that gave it."""

    outcome: Outcome
    seeds: int  # number of paired seeds at the last look that was taken
    low: float  # repeated confidence interval: it holds for all looks and all contenders together
    high: float
    margin: float
    std: float = math.nan  # of the gains at this look

    @property
    def decided(self) -> bool:
        """Whether no more seeds are needed, or none are left."""
        return self.outcome != "open"

    @property
    def verdict(self) -> str:
        """The verdict as tables show it."""
        if self.outcome == "equal":
            return f"equal within ±{100 * self.margin:g} %"
        if self.outcome == "undecided":
            return f"undecided with {self.seeds} seeds"
        return f"open after {self.seeds} seeds" if self.outcome == "open" else self.outcome


def relative_gains(contender: Sequence[float], reference: Sequence[float], better: Better) -> Floats:
    """Paired gains: differences of logarithms for positive values of which lower is better.

    Other values, such as returns, are divided by the mean size of the reference. ±∞ where one of the two diverged, 0
    where both did.
    """
    pair = np.array([contender, reference], dtype=np.float64)
    finite = np.isfinite(pair)
    if better == "lower" and (pair[finite] > 0).all():
        pair = np.log(pair, where=finite, out=np.full_like(pair, math.inf))
    elif finite[1].any():
        pair /= np.abs(pair[1][finite[1]]).mean() or 1.0
    with np.errstate(invalid="ignore"):
        gains = to_scores(pair[0], better) - to_scores(pair[1], better)
    return np.nan_to_num(gains, nan=0.0, posinf=math.inf, neginf=-math.inf)


def gains_by_margin(contender: Sequence[float], reference: Sequence[float], better: Better) -> Floats:
    """Relative gains for a comparison with a margin.

    A share of zero is zero: if the reference is, every difference is infinite. NaN where both diverged: a zero would be
    a difference that is known to be small.
    """
    gains = relative_gains(contender, reference, better)
    finite = np.isfinite(reference)
    if finite.any() and not np.asarray(reference)[finite].any():
        gains = np.where(gains == 0, 0.0, np.copysign(math.inf, gains))
    return np.where(finite | np.isfinite(contender), gains, math.nan)


def decide(
    gains: Mapping[str, Sequence[float] | Floats], looks: Sequence[int], margin: float, contenders: int | None = None
) -> dict[str, Decision]:
    """The decision on every contender. Contenders without a difference on any seed do not count.

    A gain is NaN where both diverged. If it is on all seeds of the first look, more of them would not help.
    `contenders` is the number of contenders of the table, if some have no gains yet.
    """
    values = {label: np.asarray(by_seed, dtype=np.float64) for label, by_seed in gains.items()}
    equal = {
        label for label, by_seed in values.items() if len(by_seed) >= looks[0] and not np.nan_to_num(by_seed).any()
    }
    hopeless = {label for label in equal if np.isnan(values[label]).all()}
    identical = equal - hopeless
    family = max(1, (len(values) if contenders is None else contenders) - len(equal))
    level = LEVEL / 2 / len(looks) / family
    unknown = Decision("undecided", looks[0], -math.inf, math.inf, margin)
    return {
        label: Decision("identical", len(by_seed), 0.0, 0.0, margin)
        if label in identical
        else unknown
        if label in hopeless
        else _decide_in_looks(by_seed, looks, margin, level)
        for label, by_seed in values.items()
    }


def _decide_in_looks(gains: Floats, looks: Sequence[int], margin: float, level: float) -> Decision:
    decision = Decision("open", 0, -math.inf, math.inf, margin)
    for look in looks:
        if len(gains) < look:
            return decision
        decision = _decide_at_look(gains[:look], margin, level)
        if decision.outcome != "open":
            return decision
    return decision._replace(outcome="undecided")


def _decide_at_look(gains: Floats, margin: float, level: float) -> Decision:
    """The decision from these seeds alone; "open" if they decide nothing."""
    low, high = _t_interval(gains, level)
    outcome: Outcome = "open"
    if low > margin and _flips_agree(gains - margin, level):
        outcome = "better"
    elif high < -margin and _flips_agree(gains + margin, level):
        outcome = "worse"
    elif -margin < low and high < margin:
        outcome = "equal"
    std = float(gains.std(ddof=1)) if np.isfinite(gains).all() else math.nan
    return Decision(outcome, len(gains), low, high, margin, std)


def _flips_agree(gains: Floats, level: float) -> bool:
    """Whether the sign flips reach the level; if they cannot, whether every seed agrees."""
    smallest = 2.0 ** (1 - len(gains))  # the smallest two-sided p
    return bool(sign_flip_p(gains) <= max(2 * level, smallest * (1 + 1e-9)))


def _t_interval(gains: Floats, level: float) -> tuple[float, float]:
    """The interval that one-sided t-tests at this level do not reject.

    A diverged run has no number for a t-test. If there is one, the contender that diverged less often is ahead if every
    seed agrees and their number reaches the level, or if one diverged on every seed and the other on none.
    """
    if not np.isfinite(gains).all():
        same_side = abs(np.sign(np.nan_to_num(gains)).sum()) == len(gains)
        if same_side and (2.0 ** -len(gains) <= level or np.isinf(gains).all()):
            return (math.inf, math.inf) if gains[0] > 0 else (-math.inf, -math.inf)
        return -math.inf, math.inf
    from scipy import special  # slow to import, and only a report needs it

    mean, error = float(gains.mean()), float(gains.std(ddof=1)) / math.sqrt(len(gains))
    half = float(special.stdtrit(len(gains) - 1, 1 - level)) * error
    return mean - half, mean + half
