"""Within one task: the spread of a contender's seeds, and whether it differs from the reference.

    spread([0.31, 0.29, 0.33])                                             mean, standard deviation, 95 % interval
    paired_differences({"Mine": …, "Other": …}, "Other", "lower")         one `Difference` per contender
    differences_on_shared_seeds({"Mine": {0: …}, "Other": {0: …, 1: …}}, "Other", "lower")     while runs are missing

All contenders use the same seeds, which means the same initial weights and the same order of the data. They are
therefore compared seed by seed. A difference is a gain: it is positive if the contender is better, both for losses and
for returns.

The verdict. It needs at least five paired seeds, whatever the p values are: two seeds that happen to be similar can
give the t-test a p of 0.001, while the sign-flip test cannot go below 0.5. In addition, two tests must agree. With five
paired seeds the sign-flip p cannot be below 2/2⁵ = 0.0625, so this test alone would never decide, however large the
difference is. The t-test alone assumes that five numbers are normally distributed. The rule: a contender is "better" or
"worse" if its paired-t p, with Holm's correction, is below 0.05, and its sign-flip p is at most 0.05 or, with five
seeds, the smallest possible one, which means that every seed agrees. It is "identical" if no seed differs.

A diverged run has no number for a t-test. If there is one, only the sign of each seed counts: the contender that did
not diverge is ahead, and if both diverged the seed is a tie. The verdict then needs a Holm-corrected p of these signs
below 0.05, which takes more than five seeds. Five seeds are enough if one contender diverged on every seed and the
other one on none.

Holm's correction is applied in one place, `differences_on_shared_seeds`. The family of tests are all contenders of the
table except the reference; a contender without a result yet counts too, so a p does not get worse when it arrives. A
contender that is identical to the reference (two names of one rule, the default values in a sweep of them) does
not count: its p is 1 under every flip of signs, so its hypothesis cannot be rejected, and a hypothesis that cannot be
rejected need not be paid for (Tarone, 1990).
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aimopt.lab.stats.values import Better, Floats, score_sign, to_scores

LEVEL = 0.05
ENOUGH_SEEDS = 5  # the number of paired seeds that a verdict needs
EXACT_SEEDS = 16  # up to here all flips are tried; 2¹⁶ take a millisecond
RANDOM_FLIPS = 100_000


class Spread(NamedTuple):
    """The seeds of one contender. If one diverged, the mean is the worst value, ±∞, and the others are NaN."""

    mean: float
    std: float  # sample standard deviation, ddof 1
    low: float  # 95 % t-interval of the mean
    high: float
    diverged: int
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the seeds, in which a diverged run is the worst value; NaN in the middle of ∞ and a number."""
        with np.errstate(invalid="ignore"):
            return float(np.median(self.values))


class Difference(NamedTuple):
    """A contender against the reference, seed by seed. A positive number means that the contender is better.

    If a run diverged, `low`, `high`, `effect` and `t_p` are NaN, and `p` is computed from the signs alone.
    """

    differences: tuple[float, ...]  # ±∞ where one of the two diverged, 0 where both did
    mean: float
    low: float  # 95 % t-interval of the mean, without correction for the other contenders
    high: float
    effect: float  # mean/std of the differences (Cohen's d_z) with Hedges' correction; needs three seeds
    p: float  # sign-flip test of the mean
    t_p: float  # paired t-test
    holm_p: float  # p and t_p with Holm's correction for all contenders of the table
    holm_t_p: float
    # The verdict of a study with looks, `sequential.py`; empty: the rule of this module.
    verdict_in_looks: str = ""

    @property
    def too_few_seeds(self) -> bool:
        """Whether there are too few paired seeds for a verdict; an early look of a study with looks may give one."""
        decided = self.verdict_in_looks.startswith(("better", "worse", "equal", "identical"))
        return len(self.differences) < ENOUGH_SEEDS and not decided

    @property
    def verdict(self) -> str:
        """Either "better", "worse", "identical", or "cannot tell" with the reason; the module gives the rule."""
        seeds, signs = len(self.differences), [np.sign(d) for d in self.differences if d]
        if self.verdict_in_looks:
            return self.verdict_in_looks
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
    """The mean of the seeds with its interval. `better` only decides which infinity stands for a diverged run."""
    scores = to_scores(values, better)
    if not scores.size:
        raise ValueError("spread() got no value; pass one value per seed, infinity for a diverged run")
    sign = score_sign(better)
    mean, std, *ends = _summary(scores)
    low, high = sorted(sign * end + 0.0 for end in ends)  # −0 + 0 is 0: a loss of zero has no sign
    return Spread(sign * mean + 0.0, std, low, high, int(np.isinf(scores).sum()), tuple((sign * scores + 0.0).tolist()))


def paired_differences(values: Mapping[str, Sequence[float]], reference: str, better: Better) -> dict[str, Difference]:
    """Every contender against the reference. All contenders have the same seeds, in the same order."""
    if reference not in values:
        raise ValueError(f"the reference {reference!r} is none of the contenders {list(values)}")
    for name, contender_values in values.items():
        if len(contender_values) != len(values[reference]):
            raise ValueError(
                f"{name} has {len(contender_values)} values and the reference {reference} has {len(values[reference])};"
                " they are compared seed by seed, so run both with the same seeds and pass infinity for a diverged run"
            )
    if not len(values[reference]):
        raise ValueError("there is no seed to compare on; pass one value per seed, infinity for a diverged run")
    by_seed = {name: dict(enumerate(contender_values)) for name, contender_values in values.items()}
    differences = differences_on_shared_seeds(by_seed, reference, better)
    return {name: difference for name, difference in differences.items() if difference is not None}


def differences_on_shared_seeds(
    values: Mapping[str, Mapping[int, float]], reference: str, better: Better
) -> dict[str, Difference | None]:
    """Every contender against the reference, on the seeds that both have; None if they share no seed."""
    uncorrected: dict[str, Difference | None] = {}
    for name, by_seed in values.items():
        if name != reference:
            shared = [seed for seed in values[reference] if seed in by_seed]
            pair = [[by_seed[seed] for seed in shared], [values[reference][seed] for seed in shared]]
            uncorrected[name] = _difference(pair[0], pair[1], better) if shared else None
    family = {name: d for name, d in uncorrected.items() if d is None or any(d.differences)}
    holm_p = holm([d.p if d else math.nan for d in family.values()])
    holm_t_p = holm([d.t_p if d else math.nan for d in family.values()])
    corrected = {
        name: difference and difference._replace(holm_p=p, holm_t_p=t_p)
        for (name, difference), p, t_p in zip(family.items(), holm_p, holm_t_p, strict=True)
    }
    return uncorrected | corrected


def _difference(contender: Sequence[float], reference: Sequence[float], better: Better) -> Difference:
    """One contender against the reference, without Holm's correction."""
    with np.errstate(invalid="ignore", over="ignore"):  # ∞ − ∞: two diverged runs are a tie
        gains = to_scores(contender, better) - to_scores(reference, better)
    mean, std, low, high = _summary(gains)
    p, t_p = sign_flip_p(gains), _t_p(mean, std, len(gains))
    differences = tuple(np.where(np.isnan(gains), 0.0, gains).tolist())
    return Difference(differences, mean, low, high, _effect(mean, std, len(gains)), p, t_p, p, t_p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the k-th smallest of m p values is multiplied by m−k+1. A NaN counts in m and stays NaN."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(np.nan_to_num(p, nan=1.0), kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(np.nan_to_num(p, nan=1.0)[order] * np.arange(len(p), 0, -1))
    return np.where(np.isnan(p), np.nan, np.minimum(corrected, 1.0)).tolist()


def sign_flip_p(differences: ArrayLike) -> float:
    """The share of sign flips with a mean at least as far from zero. If a run diverged, only the signs are used.

    If the two contenders do not differ, swapping them on a seed only changes the sign of its difference. For up to 16
    seeds all flips are tried, for more seeds 10⁵ random flips and the observed one (Phipson and Smyth, 2010).
    """
    gains = np.asarray(differences, dtype=np.float64)
    if not np.isfinite(gains).all():
        gains = np.nan_to_num(np.sign(gains))
    shares = gains / (np.abs(gains).max() or 1.0)  # scaled, so that sums cannot overflow
    sizes = np.sort(np.abs(shares))  # sorted, so that the order of the seeds does not change the rounding
    exact = len(sizes) <= EXACT_SEEDS
    if exact:
        totals = np.zeros(1)
        for size in sizes:
            totals = np.concatenate([totals + size, totals - size])
    else:
        totals = np.zeros(RANDOM_FLIPS)
        for size, positive in zip(sizes, _random_flips(len(sizes)), strict=True):
            totals += size * (2 * np.unpackbits(positive, count=RANDOM_FLIPS).view(np.int8) - 1)
    # equal sums may differ by rounding
    extreme = np.abs(totals) >= abs(shares.sum()) - 1e-12 * sizes.sum()
    return float(extreme.mean()) if exact else float((1 + extreme.sum()) / (1 + RANDOM_FLIPS))


@functools.lru_cache(maxsize=4)
def _random_flips(seeds: int) -> list[NDArray[np.uint8]]:
    """Per seed, one bit per random flip: whether it keeps the sign. All contenders of a table use the same flips."""
    generator = np.random.default_rng(0)
    return [np.packbits(generator.choice((-1.0, 1.0), RANDOM_FLIPS) > 0) for _ in range(seeds)]


def _summary(values: Floats) -> tuple[float, float, float, float]:
    """Mean, standard deviation and the 95 % t-interval of the mean. NaN, a tie of two diverged runs, counts as 0."""
    count = len(values)
    if not np.isfinite(values).all():
        with np.errstate(invalid="ignore", over="ignore"):  # +∞ and −∞ together have no mean
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
    """Cohen's d_z, unbiased by the exact factor of Hedges (1981), which is finite from three seeds on."""
    from scipy import special

    if count < 3:
        return math.nan
    if std == 0:
        return math.copysign(math.inf, mean) if mean else 0.0
    half = (count - 1) / 2
    return mean / std * math.exp(special.gammaln(half) - special.gammaln(half - 0.5)) / math.sqrt(half)
