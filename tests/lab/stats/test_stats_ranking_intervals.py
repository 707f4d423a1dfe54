"""Ranks and profiles with intervals: by hand, against scipy's bootstrap, and with unequal numbers of seeds."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from aimopt.lab.stats.pooled import SeedValues
from aimopt.lab.stats.ranking import average_rank, performance_profile
from aimopt.lab.stats.ranking_intervals import profile_intervals, rank_intervals
from aimopt.lab.stats.values import Better

BETTER: dict[str, Better] = {"digits": "lower", "cheetah": "higher"}


def table(draw: np.random.Generator, seeds: int, **centres: float) -> dict[str, dict[int, float]]:
    return {name: dict(enumerate(draw.normal(centre, 1.0, seeds))) for name, centre in centres.items()}


def test_the_observed_ranks_and_profile_are_those_without_intervals() -> None:
    draw = np.random.default_rng(0)
    values: dict[str, SeedValues] = {
        "digits": table(draw, 5, a=0, b=0.5, c=1),
        "cheetah": table(draw, 5, a=1, b=0.5, c=0),
    }
    means = {task: {name: float(np.mean([*v.values()])) for name, v in row.items()} for task, row in values.items()}
    got = rank_intervals(values, BETTER)
    assert {name: rank.value for name, rank in got.items()} == average_rank(means, BETTER)
    assert all(rank.low <= rank.value <= rank.high for rank in got.values())
    thresholds = [0, 0.5, 1, 2]
    by_seed = {(task, s): {n: values[task][n][s] for n in "abc"} for task in values for s in range(5)}
    plain = performance_profile(by_seed, {key: BETTER[key[0]] for key in by_seed}, thresholds)
    bands = profile_intervals(values, BETTER, thresholds)
    for name, band in bands.items():
        assert band.shares == pytest.approx(plain[name])
        assert (band.low <= band.shares + 1e-12).all()
        assert (band.shares <= band.high + 1e-12).all()


def test_intervals_are_those_of_scipy() -> None:
    """One task, two contenders: the rank is 1 + [the mean difference is negative], and scipy resamples the pairs."""
    draw = np.random.default_rng(4)
    own, other = draw.normal(0.15, 1.0, 20), draw.normal(0, 1.0, 20)
    values: dict[str, SeedValues] = {"cheetah": {"own": dict(enumerate(own)), "other": dict(enumerate(other))}}

    def wins(x: Any, y: Any, axis: int) -> Any:
        return (x > y).mean(axis)

    expected = stats.bootstrap((own, other), wins, paired=True, vectorized=True, method="percentile", rng=0)
    band = profile_intervals(values, BETTER, [0])["own"]
    ends = expected.confidence_interval
    assert (band.low[0], band.high[0]) == pytest.approx((ends.low, ends.high), abs=0.051)  # one pair of twenty
    resamples = draw.integers(20, size=(20_000, 20))
    chance = np.mean((own - other)[resamples].mean(1) > 0)
    rank = rank_intervals(values, BETTER, repetitions=4000)["own"]
    assert (rank.low, rank.high) == (1.0, 2.0)
    assert 0.03 < chance < 0.97  # so both ends are in the interval


def test_far_apart_contenders_have_sure_ranks() -> None:
    draw = np.random.default_rng(0)
    values: dict[str, SeedValues] = {task: table(draw, 5, a=0, b=100) for task in BETTER}
    ranks = rank_intervals(values, BETTER)
    assert ranks["a"] == (1.5, 1.5, 1.5)  # the best on one task and the last on the other
    assert ranks["b"] == (1.5, 1.5, 1.5)


def test_contenders_with_fewer_seeds_keep_their_number() -> None:
    """Forty seeds of a and five of b: the interval is that of these means, with the shared seeds drawn together."""
    draw = np.random.default_rng(1)
    noise = draw.normal(0, 1.0, 40)
    values: dict[str, SeedValues] = {
        "digits": {"a": dict(enumerate(noise)), "b": dict(enumerate(noise[:5] + 10)), "c": dict(enumerate(noise + 20))}
    }
    assert [rank_intervals(values, BETTER)[name] for name in "abc"] == [(1, 1, 1), (2, 2, 2), (3, 3, 3)]
    bands = profile_intervals(values, BETTER, [0.0])
    assert bands["a"].shares.tolist() == bands["a"].low.tolist() == [1.0]


def test_identical_contenders_share_their_rank_in_every_resample() -> None:
    draw = np.random.default_rng(2)
    values: dict[str, SeedValues] = {"digits": table(draw, 7, a=0, b=0.3)}
    twins: dict[str, SeedValues] = {"digits": {**values["digits"], "twin": dict(values["digits"]["a"])}}
    ranks = rank_intervals(twins, BETTER)
    assert ranks["a"] == ranks["twin"]


def test_diverged_runs_are_the_worst() -> None:
    values: dict[str, SeedValues] = {
        "digits": {"a": {0: math.inf, 1: 1.0}, "b": {0: 2.0, 1: 2.0}, "c": {0: 1e300, 1: 1.7e308}}
    }
    ranks = rank_intervals(values, BETTER)
    assert ranks["a"].value == 3
    assert ranks["a"].low == 1  # a resample without the diverged seed
    assert profile_intervals(values, BETTER, [0.0])["a"].shares.tolist() == [0.5]


def test_tasks_count_equally_and_may_lack_shared_seeds() -> None:
    values: dict[str, SeedValues] = {
        "digits": {"a": dict.fromkeys(range(30), 0.0), "b": dict.fromkeys(range(30), 1.0)},
        "cheetah": {"a": {0: 0.0}, "b": {0: 1.0}},
    }
    assert profile_intervals(values, BETTER, [0.0])["a"].shares.tolist() == [0.5]
    apart: dict[str, SeedValues] = {"digits": {"a": {0: 1.0}, "b": {1: 2.0}}}
    assert profile_intervals(apart, BETTER, [0.0]) == {}
    assert rank_intervals(apart, BETTER)["a"] == (1, 1, 1)


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match="no tasks"):
        rank_intervals({}, BETTER)
    with pytest.raises(ValueError, match=r"'cheetah' has values of \['b'\].*pass at least one value"):
        profile_intervals({"digits": {"a": {0: 1.0}}, "cheetah": {"b": {0: 1.0}}}, BETTER, [1])
