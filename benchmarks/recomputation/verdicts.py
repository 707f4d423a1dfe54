"""The verdicts on archived runs, by numpy and scipy alone.

verdicts({"RADAR": …, "AdamW": …}, "AdamW", "lower")              {"RADAR": "better"}: five seeds, one test
decisions({"RADAR": gains}, looks=(5, 10, 20, 40), margin=0.005)  {"RADAR": Decision("better", 10, 0.021, …)}

A gain is positive if the contender is better, of losses and of returns.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.05
ENOUGH_SEEDS = 5
ALL_FLIPS = 1 << 16


class Decision(NamedTuple):
    """The verdict at the look that gave it, or at the last one."""

    verdict: str
    seeds: int
    gain: float  # mean of the relative gains
    low: float  # the interval that holds for all looks and contenders together
    high: float


def verdicts(values: Mapping[str, Mapping[int, float]], reference: str, better: str) -> dict[str, str]:
    """Per contender: better, worse, identical or cannot tell.

    The t-test with Holm's correction and the sign flips must agree. A contender that equals the reference on every seed
    is not tested, and so does not count in Holm's family.
    """
    gains = {label: _gains(by_seed, values[reference], better) for label, by_seed in values.items()}
    tested = {label: gain for label, gain in gains.items() if label != reference and gain.any()}
    t_p = {label: float(stats.ttest_1samp(gain, 0).pvalue) for label, gain in tested.items()}
    corrected = holm(t_p)
    verdict_of = {label: "identical" for label in gains if label not in tested and label != reference}
    for label, gain in tested.items():
        least = max(LEVEL, 2 / 2 ** len(gain))
        sure = len(gain) >= ENOUGH_SEEDS and corrected[label] < LEVEL and sign_flip_p(gain) <= least * (1 + 1e-9)
        verdict_of[label] = ("better" if gain.mean() > 0 else "worse") if sure else "cannot tell"
    return verdict_of


def _gains(values: Mapping[int, float], reference: Mapping[int, float], better: str) -> np.ndarray:
    shared = [seed for seed in reference if seed in values]
    gains = np.array([reference[seed] - values[seed] for seed in shared]) * (1 if better == "lower" else -1)
    if not np.isfinite(gains).all():
        raise ValueError("a run diverged; the verdict of such a table is not recomputed here")
    return gains


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down correction."""
    corrected, largest = {}, 0.0
    for position, label in enumerate(sorted(p, key=lambda name: p[name])):
        largest = max(largest, (len(p) - position) * p[label])
        corrected[label] = min(1.0, largest)
    return corrected


def sign_flip_p(gains: np.ndarray) -> float:
    """The permutation test of scipy of the mean of paired differences: exact up to 16 seeds, else with random flips."""
    test = stats.permutation_test(
        (gains,),
        lambda x, axis: x.mean(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=ALL_FLIPS,
        batch=4096,
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


def mean(by_seed: Mapping[int, float]) -> float:
    return float(np.mean([*by_seed.values()]))


def deviation(by_seed: Mapping[int, float]) -> float:
    return float(np.std([*by_seed.values()], ddof=1))


def ranks(means: Mapping[str, float], better: str) -> dict[str, int]:
    """1 is the best; equal means share the better rank."""
    sign = 1 if better == "lower" else -1
    order = stats.rankdata([sign * mean for mean in means.values()], method="min")
    return dict(zip(means, map(int, order), strict=True))


def average_ranks(means: Mapping[str, Mapping[str, float]], better: Mapping[str, str]) -> dict[str, float]:
    """Per contender, the mean over the tasks of its rank; equal means share the mean of their ranks."""
    rows = []
    for task, by_label in means.items():
        sign = 1 if better[task] == "lower" else -1
        rows.append(dict(zip(by_label, stats.rankdata([sign * value for value in by_label.values()]), strict=True)))
    return {label: float(np.mean([row[label] for row in rows])) for label in rows[0]}


class Together(NamedTuple):
    """A contender against a reference, over all pairs of task and seed."""

    tasks: int
    pairs: int
    ahead: int  # pairs on which the contender is better
    mean: float  # of its gains in units of each task
    p: float  # before Holm's correction


def together(gains_by_task: Sequence[np.ndarray]) -> Together:
    """The sign-flip test of all pairs, in which every task counts the same."""
    units = [gains / np.sqrt(np.mean(gains**2)) / len(gains) for gains in gains_by_task]
    pairs = np.concatenate(units)
    return Together(len(units), len(pairs), int((pairs > 0).sum()), pairs.sum() / len(units), sign_flip_p(pairs))


def relative_gains(values: Mapping[int, float], reference: Mapping[int, float], better: str) -> np.ndarray:
    """Paired gains in the order of the seeds: of losses in their logarithm, of returns relative to the reference's."""
    shared = [seed for seed in reference if seed in values]
    pair = np.array([[values[seed] for seed in shared], [reference[seed] for seed in shared]])
    if not np.isfinite(pair).all():
        raise ValueError("a run diverged; the verdict of such a table is not recomputed here")
    return (
        -np.diff(np.log(pair[::-1]), axis=0)[0] if better == "lower" else (pair[0] - pair[1]) / np.abs(pair[1]).mean()
    )


def decisions(gains: Mapping[str, np.ndarray], looks: Sequence[int], margin: float) -> dict[str, Decision]:
    """Per contender the verdict in looks; one that equals the reference on every seed does not count."""
    family = sum(bool(by_seed.any()) for by_seed in gains.values())
    level = LEVEL / 2 / len(looks) / max(1, family)
    return {label: _decision(by_seed, looks, margin, level) for label, by_seed in gains.items()}


def _decision(gains: np.ndarray, looks: Sequence[int], margin: float, level: float) -> Decision:
    if not gains.any():
        return Decision("identical", len(gains), 0.0, 0.0, 0.0)
    for look in looks:
        if len(gains) < look:
            raise LookupError(f"there are {len(gains)} paired seeds, which decide nothing; {look} are needed")
        seen = gains[:look]
        low, high = stats.t.interval(1 - 2 * level, look - 1, seen.mean(), stats.sem(seen))
        verdict = ""
        if low > margin and _flips_reach(seen - margin, level):
            verdict = "better"
        elif high < -margin and _flips_reach(seen + margin, level):
            verdict = "worse"
        elif -margin < low and high < margin:
            verdict = f"equal within ±{100 * margin:g} %"
        if verdict or look == looks[-1]:
            return Decision(verdict or f"undecided with {look} seeds", look, float(seen.mean()), low, high)
    raise ValueError("a study in looks has at least one look")


def _flips_reach(gains: np.ndarray, level: float) -> bool:
    """Whether the sign flips reach the level; if they cannot, whether every seed agrees."""
    if 2.0 ** (1 - len(gains)) > 2 * level:
        return bool(abs(np.sign(gains).sum()) == len(gains))
    return sign_flip_p(gains) <= 2 * level
