"""The pooled test against full enumeration, scipy and the binomial test; its level, and what it leaves out."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from aimopt.lab.stats.paired import holm
from aimopt.lab.stats.pooled import PooledDifference, SeedValues, pooled_differences
from aimopt.lab.stats.values import Better

INF = math.inf


def by_seed(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def against_zero(gains: dict[str, list[float]]) -> PooledDifference:
    """A contender with these gains, on tasks where higher is better."""
    values = {task: {"own": by_seed(*g), "reference": by_seed(*[0.0] * len(g))} for task, g in gains.items()}
    return pooled_differences(values, "reference", dict.fromkeys(gains, "higher"))["own"]


def statistic(gains: list[np.ndarray]) -> float:
    return float(np.mean([g.mean() / math.sqrt((g**2).mean()) for g in gains]))


@pytest.mark.parametrize("sizes", [(5,), (3, 4), (2, 3, 5)])
def test_p_is_the_share_of_all_flips_that_are_as_extreme(sizes: tuple[int, ...]) -> None:
    generator = np.random.default_rng(len(sizes))
    gains = [generator.normal(0.4, 10.0**k, n) for k, n in enumerate(sizes)]
    count = sum(sizes)
    ends = np.cumsum(sizes)[:-1]
    statistics = []
    for flips in itertools.product((-1, 1), repeat=count):
        flipped = np.split(np.array(flips) * np.concatenate(gains), ends)
        statistics.append(abs(statistic(flipped)))
    expected = np.mean(np.array(statistics) >= abs(statistic(gains)) - 1e-12)
    got = against_zero({str(k): g.tolist() for k, g in enumerate(gains)})
    assert got.p == pytest.approx(expected)
    assert got.mean == pytest.approx(statistic(gains))
    assert got.pairs == count


def test_one_task_is_the_permutation_test_of_scipy() -> None:
    gains = np.random.default_rng(0).normal(0.5, 1.0, 8)
    test = stats.permutation_test((gains,), np.mean, permutation_type="samples", n_resamples=1000)
    assert against_zero({"t": gains.tolist()}).p == pytest.approx(test.pvalue)


def test_equal_sizes_are_the_binomial_test() -> None:
    """Gains of one size on tasks with as many seeds: only their number counts, as in the sign test."""
    gains = {"a": [1.0] * 7, "b": [3.0] * 6 + [-3.0]}
    got = against_zero(gains)
    assert got.p == pytest.approx(stats.binomtest(13, 14).pvalue)
    assert (got.ahead, got.ties, got.pairs) == (13, 0, 14)


def test_every_task_has_equal_weight() -> None:
    """Forty seeds of a task without a lead do not outvote the lead on two others."""
    many = np.random.default_rng(0).normal(0, 1.0, 40)
    many -= many.mean()
    lead = [1.0, 1.1, 0.9, 1.0, 1.05]
    got = against_zero({"a": lead, "b": lead, "many": many.tolist()})
    assert got.verdict == "ahead"
    assert got.p < 0.002
    weightless = stats.permutation_test(
        (np.concatenate([lead, lead, many]),), np.mean, permutation_type="samples", n_resamples=9999, rng=0
    )
    assert weightless.pvalue > 0.05


def test_positive_losses_are_compared_as_ratios() -> None:
    values: dict[str, SeedValues] = {
        "a": {"own": by_seed(0.9, 1.8), "reference": by_seed(1.0, 2.0)},
        "b": {"own": by_seed(80.0), "reference": by_seed(100.0)},
    }
    better: dict[str, Better] = {"a": "lower", "b": "lower"}
    got = pooled_differences(values, "reference", better)["own"]
    assert got.gain is not None
    assert got.gain.value == pytest.approx(1 - math.sqrt(0.9 * 0.8))
    assert got.gain.low <= got.gain.value <= got.gain.high
    negative: dict[str, SeedValues] = {"a": {"own": by_seed(-0.9), "reference": by_seed(1.0)}}
    assert pooled_differences(negative, "reference", better)["own"].gain is None
    assert pooled_differences(negative, "reference", better)["own"].ahead == 1


def test_the_interval_of_the_gain_covers_the_true_one() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        ratios = generator.normal(0.05, 0.1, (3, 20))
        values: dict[str, SeedValues] = {
            str(k): {"own": by_seed(*np.exp(-row)), "reference": by_seed(*[1.0] * 20)} for k, row in enumerate(ratios)
        }
        gain = pooled_differences(values, "reference", dict.fromkeys(values, "lower"))["own"].gain
        assert gain is not None
        covered += gain.low <= 1 - math.exp(-0.05) <= gain.high
    assert covered >= 87


def test_diverged_runs_count_by_their_signs() -> None:
    diverged = {"t": {"own": by_seed(1.0, 1.0, 1.0), "reference": by_seed(INF, 2.0, INF)}}
    got = pooled_differences(diverged, "reference", {"t": "lower"})["own"]
    assert (got.ahead, got.pairs, got.gain) == (3, 3, None)
    assert got.p == 0.25
    both = {"t": {"own": by_seed(INF, 1.0), "reference": by_seed(INF, 2.0)}}
    assert pooled_differences(both, "reference", {"t": "lower"})["own"].ties == 1


def test_two_contenders_that_always_diverge_are_not_called_identical() -> None:
    values = {task: {"own": by_seed(INF, INF), "reference": by_seed(INF, INF)} for task in ("a", "b")}
    better: dict[str, Better] = {"a": "lower", "b": "lower"}
    assert pooled_differences(values, "reference", better)["own"].verdict == "cannot tell"
    values["b"] = {"own": by_seed(1.0, INF), "reference": by_seed(1.0, INF)}
    assert pooled_differences(values, "reference", better)["own"].verdict == "identical"


def test_contenders_are_pooled_over_the_tasks_that_they_have() -> None:
    values: dict[str, SeedValues] = {
        "a": {"reference": by_seed(2.0, 2.0), "own": by_seed(1.0, 1.1, 1.2), "part": {7: 1.0}},
        "b": {"reference": by_seed(2.0, 2.0, 2.0), "own": by_seed(1.0)},
        "c": {"own": by_seed(1.0), "part": by_seed(1.0)},
    }
    got = pooled_differences(values, "reference", dict.fromkeys(values, "lower"))
    assert [*got] == ["own"]
    assert (got["own"].tasks, got["own"].left_out, got["own"].pairs) == (("a", "b"), ("c",), 3)


def test_holm_is_over_the_contenders_that_differ() -> None:
    generator = np.random.default_rng(0)
    reference = by_seed(*generator.normal(0, 1, 6))
    table = {"a": by_seed(*generator.normal(2, 1, 6)), "b": by_seed(*generator.normal(1, 1, 6))}
    values: dict[str, SeedValues] = {"t": {"reference": reference, "same": dict(reference), **table}}
    got = pooled_differences(values, "reference", {"t": "higher"})
    assert [got[name].holm_p for name in table] == holm([got[name].p for name in table])
    assert (got["same"].verdict, got["same"].p, got["same"].holm_p) == ("identical", 1, 1)


@pytest.mark.parametrize("noise", ["normal", "heavy-tailed", "skewed"])
def test_false_verdicts_are_rare(noise: str) -> None:
    """Two contenders of the same distribution, whatever it is: their differences are symmetric, and p is exact."""
    generator = np.random.default_rng(3)
    draws: dict[str, Callable[..., Any]] = {
        "normal": generator.normal,
        "heavy-tailed": lambda size: generator.standard_t(2, size),
        "skewed": lambda size: generator.lognormal(0, 1.5, size),
    }
    draw, p = draws[noise], []
    for _ in range(400):
        own, reference = draw(size=(4, 4)), draw(size=(4, 4))
        values: dict[str, SeedValues] = {
            str(k): {"own": by_seed(*own[k]), "reference": by_seed(*reference[k])} for k in range(4)
        }
        p.append(pooled_differences(values, "reference", dict.fromkeys(values, "higher"))["own"].p)
    assert sum(x < 0.05 for x in p) <= stats.binom.ppf(0.999, 400, 0.05)
