"""Within a task: how far a contender's seeds spread, and whether it differs from the reference.

    spread([0.31, 0.29, 0.33])                                mean, standard deviation, 95 % interval
    compare({"RADAR": …, "AdamW": …}, "AdamW", "lower")       a `Difference` for each contender but the reference

Contenders share their seeds, that is initial weights and order of the data, so they are compared seed by seed. A
difference is a gain: positive where the contender is better, whichever way the values are better.

The verdict. It takes at least five paired seeds, whatever p says: two seeds that happen to be alike give the t-test a
p of 0.001, where the sign flips cannot go below 0.5. Then two tests must agree. Five paired seeds cannot give a
sign-flip p below 2/2⁵ = 0.0625, so that test alone would never decide, however far apart the contenders are; the t-test
alone trusts that five numbers are normal. So a contender is "better" or "worse" if its paired-t p, corrected by Holm
for all contenders of the table, is below 0.05, and its sign-flip p is at most 0.05 or, with five seeds, the smallest
there is: then every seed must agree.

A diverged run has no number for a t-test. If there is one, only who is ahead on each seed counts: the one that did not
diverge, and neither if both did. The verdict needs a Holm-corrected p of these signs below 0.05, which takes more than
five seeds; five are enough if one contender diverged on every seed and the other on none.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aimopt.lab.stats.values import Better, Floats, oriented, sign

LEVEL = 0.05
ENOUGH_SEEDS = 5  # paired seeds that a verdict needs
EXACT_SEEDS = 16  # all 2¹⁶ flips take a millisecond
RANDOM_FLIPS = 100_000


class Spread(NamedTuple):
    """The seeds of one contender. With a diverged one, the mean is the worst there is and the rest not a number."""

    mean: float
    std: float  # of the sample, ddof 1
    low: float  # 95 % t-interval of the mean
    high: float
    diverged: int
    values: tuple[float, ...]


class Difference(NamedTuple):
    """A contender against the reference, seed by seed; positive means that the contender is better.

    With a diverged run, `low`, `high`, `effect` and `t_p` are not numbers, and `p` is that of the signs alone.
    """

    differences: tuple[float, ...]  # ±∞ where one of the two diverged, 0 where both did
    mean: float
    low: float  # 95 % t-interval of the mean, for this contender alone
    high: float
    effect: float  # mean/std of the differences (Cohen's d_z), times Hedges' correction; needs three seeds
    p: float  # sign-flip test of the mean
    t_p: float  # paired t-test
    holm_p: float  # both corrected for all contenders of the table
    holm_t_p: float

    @property
    def too_few_seeds(self) -> bool:
        """Whether there are too few paired seeds for any verdict."""
        return len(self.differences) < ENOUGH_SEEDS

    @property
    def verdict(self) -> str:
        """One of "better", "worse" and "identical", or "cannot tell" and why; the module says by which rule."""
        seeds, signs = len(self.differences), [np.sign(d) for d in self.differences if d]
        if self.too_few_seeds:
            return f"cannot tell: too few seeds ({seeds} of at least {ENOUGH_SEEDS})"
        agree = len(set(signs)) == 1
        if math.isnan(self.t_p):
            sure = agree and (self.holm_p < LEVEL or all(map(math.isinf, self.differences)))
        elif not signs:
            return "identical"
        else:
            sure = self.holm_t_p < LEVEL and self.p <= max(LEVEL, 2 / 2**seeds)
        if not sure:
            return f"cannot tell with {seeds} seeds"
        return "better" if self.mean > 0 else "worse"


def spread(values: Sequence[float], better: Better = "lower") -> Spread:
    """The mean of the seeds and how sure it is; `better` matters only for which infinity a diverged run is."""
    scores = oriented(values, better)
    if not scores.size:
        raise ValueError("there is no value to summarize; give one for each seed, infinity for a diverged one")
    way = sign(better)
    mean, std, *ends = _summary(scores)
    low, high = sorted(way * end for end in ends)
    return Spread(way * mean, std, low, high, int(np.isinf(scores).sum()), tuple((way * scores).tolist()))


def compare(values: Mapping[str, Sequence[float]], reference: str, better: Better) -> dict[str, Difference]:
    """Every contender but the reference against it; the values of a contender are in the order of the seeds."""
    if reference not in values:
        raise ValueError(f"the reference {reference!r} is none of the contenders {list(values)}")
    for name, own in values.items():
        if len(own) != len(values[reference]):
            raise ValueError(
                f"{name} has {len(own)} values and the reference {reference} has {len(values[reference])}; "
                "they are compared seed by seed, so run both with the same seeds and pass infinity for a diverged run"
            )
    if not len(values[reference]):
        raise ValueError("there is no seed to compare on; give one value a seed, infinity for a diverged run")
    alone = {name: _difference(own, values[reference], better) for name, own in values.items() if name != reference}
    holm_p = holm([d.p for d in alone.values()])
    holm_t_p = holm([d.t_p for d in alone.values()])
    return {
        name: d._replace(holm_p=p, holm_t_p=t_p)
        for (name, d), p, t_p in zip(alone.items(), holm_p, holm_t_p, strict=True)
    }


def _difference(contender: Sequence[float], reference: Sequence[float], better: Better) -> Difference:
    """One contender against the reference, as if it were the only one of the table."""
    with np.errstate(invalid="ignore", over="ignore"):  # ∞ − ∞ is the tie of two diverged runs
        gains = oriented(contender, better) - oriented(reference, better)
    mean, std, low, high = _summary(gains)
    p, t_p = sign_flip_p(gains), _t_p(mean, std, len(gains))
    differences = tuple(np.where(np.isnan(gains), 0.0, gains).tolist())
    return Difference(differences, mean, low, high, _effect(mean, std, len(gains)), p, t_p, p, t_p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the k-th smallest of m is multiplied by m−k+1. One that is not a number counts, and stays."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(np.nan_to_num(p, nan=1.0), kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(np.nan_to_num(p, nan=1.0)[order] * np.arange(len(p), 0, -1))
    return np.where(np.isnan(p), np.nan, np.minimum(corrected, 1.0)).tolist()


def sign_flip_p(differences: ArrayLike) -> float:
    """The share of sign flips whose mean is at least as far from zero; of the signs alone if a run diverged.

    If the two contenders do not differ, swapping them on a seed changes nothing but the sign of its difference. All
    flips are tried for up to 16 seeds, else 10⁵ random ones and the observed one (Phipson and Smyth, 2010).
    """
    gains = np.asarray(differences, dtype=np.float64)
    if not np.isfinite(gains).all():
        gains = np.nan_to_num(np.sign(gains))
    shares = gains / (np.abs(gains).max() or 1.0)  # their sums cannot overflow
    sizes = np.sort(np.abs(shares))  # sorted: the order of the seeds must not matter
    exact = len(sizes) <= EXACT_SEEDS
    if exact:
        totals = np.zeros(1)
        for size in sizes:
            totals = np.concatenate([totals + size, totals - size])
    else:
        totals = np.zeros(RANDOM_FLIPS)
        for size, positive in zip(sizes, _random_flips(len(sizes)), strict=True):
            totals += size * (2 * np.unpackbits(positive, count=RANDOM_FLIPS).view(np.int8) - 1)
    # equal sums may differ by the rounding of their order
    extreme = np.abs(totals) >= abs(shares.sum()) - 1e-12 * sizes.sum()
    return float(extreme.mean()) if exact else float((1 + extreme.sum()) / (1 + RANDOM_FLIPS))


@functools.lru_cache(maxsize=4)
def _random_flips(seeds: int) -> list[NDArray[np.uint8]]:
    """Per seed, which of the random flips leave its sign: a bit each. All contenders of a table take the same ones."""
    generator = np.random.default_rng(0)
    return [np.packbits(generator.choice((-1.0, 1.0), RANDOM_FLIPS) > 0) for _ in range(seeds)]


def _summary(values: Floats) -> tuple[float, float, float, float]:
    """Mean, standard deviation and the ends of the mean's 95 % t-interval; a tie of diverged runs, nan, counts as 0."""
    count = len(values)
    if not np.isfinite(values).all():
        with np.errstate(invalid="ignore", over="ignore"):  # seeds at +∞ and at −∞ have no mean
            return float(np.nansum(values) / count), math.nan, math.nan, math.nan
    from scipy import special  # slow to import, and only a report needs it

    scale = float(np.abs(values).max()) or 1.0  # a loss of 1e200 is finite, its square is not
    shares = values / scale
    mean = scale * float(shares.mean())
    if count < 2:
        return mean, math.nan, math.nan, math.nan
    std = scale * float(shares.std(ddof=1))
    half = float(special.stdtrit(count - 1, 1 - LEVEL / 2)) * std / math.sqrt(count)
    return mean, std, mean - half, mean + half


def _t_p(mean: float, std: float, count: int) -> float:
    from scipy import special

    if std == 0:
        return 0.0 if mean else 1.0
    return float(2 * special.stdtr(count - 1, -abs(mean) * math.sqrt(count) / std))


def _effect(mean: float, std: float, count: int) -> float:
    """Cohen's d_z without its bias, by the exact factor of Hedges (1981), which is finite from three seeds on."""
    from scipy import special

    if count < 3:
        return math.nan
    if std == 0:
        return math.copysign(math.inf, mean) if mean else 0.0
    half = (count - 1) / 2
    return mean / std * math.exp(special.gammaln(half) - special.gammaln(half - 0.5)) / math.sqrt(half)
