"""Interquartile mean, probability of improvement and their bootstrap, compared with scipy and with rliable."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from aimopt.lab.stats.bootstrap import _draw_rows, interquartile_mean, probability_of_improvement, stratified_bootstrap

INF, NAN = math.inf, math.nan
SHAPES = [(1, 1), (3, 1), (5, 3), (10, 2), (4, 6)]


def scores(runs: int, tasks: int, seed: int = 0) -> Any:
    """Whole numbers, so that some of them tie."""
    return np.random.default_rng(seed).integers(-5, 5, (runs, tasks)).astype(float)


RLIABLE = json.loads((Path(__file__).parents[2] / "data" / "rliable.json").read_text())


@pytest.mark.parametrize("figures", RLIABLE["figures"])
def test_rliable_agrees(figures: dict[str, Any]) -> None:
    """The figures are stored, because rliable needs 150 MB of packages; data/make_rliable_figures.py made them."""
    x, y = figures["x"], figures["y"]
    assert interquartile_mean(x) == pytest.approx(figures["interquartile_mean"])
    improvement = probability_of_improvement(x, y, repetitions=1).value
    assert improvement == pytest.approx(figures["probability_of_improvement"])


def test_the_stored_figures_are_those_of_rliable_1_2() -> None:
    assert RLIABLE["rliable"] == "1.2.0"
    assert [np.shape(figures["x"]) for figures in RLIABLE["figures"]] == SHAPES


@pytest.mark.parametrize("shape", SHAPES)
def test_interquartile_mean_is_a_trimmed_mean(shape: tuple[int, int]) -> None:
    x = scores(*shape)
    assert interquartile_mean(x) == pytest.approx(scipy_stats.trim_mean(x, 0.25, axis=None))


def test_a_diverged_run_is_the_lowest_score() -> None:
    assert interquartile_mean([[1.0], [2.0], [4.0], [NAN]]) == 1.5
    assert interquartile_mean([[1.0], [INF], [4.0], [NAN]]) == -INF
    assert probability_of_improvement([[NAN]], [[0.0]]).value == 0
    assert probability_of_improvement([[NAN]], [[INF]]).value == 0.5


@pytest.mark.parametrize("shape", SHAPES)
def test_probability_of_improvement_is_mann_whitneys(shape: tuple[int, int]) -> None:
    x, y = scores(*shape), scores(shape[0] + 2, shape[1], seed=1)
    u = [scipy_stats.mannwhitneyu(a, b).statistic for a, b in zip(x.T, y.T, strict=True)]
    assert probability_of_improvement(x, y).value == pytest.approx(np.mean(u) / (len(x) * len(y)))


@pytest.mark.parametrize(
    "statistic", [np.mean, interquartile_mean, lambda x: x.mean(0).max()], ids=["mean", "IQM", "best task"]
)
def test_bootstrap_draws_within_tasks(statistic: Any) -> None:
    """scipy's bootstrap draws from each of several samples by itself: each task is one."""
    x = np.random.default_rng(0).normal([0, 10, 3], [1, 0.1, 3], (8, 3))
    got = stratified_bootstrap(x, statistic, repetitions=4000)
    expected = scipy_stats.bootstrap(
        tuple(x.T), lambda *tasks: statistic(np.stack(tasks, 1)), n_resamples=4000, method="percentile",
        vectorized=False, rng=1,
    ).confidence_interval  # fmt: skip
    assert got.value == statistic(x)
    assert (got.low, got.high) == pytest.approx(tuple(expected), abs=0.07 * (expected.high - expected.low))


def test_interval_of_the_probability_of_improvement() -> None:
    x, y = np.random.default_rng(0).normal([[0.5], [0.0]], size=(2, 10))[..., None]
    got = probability_of_improvement(x, y, repetitions=4000)
    expected = scipy_stats.bootstrap(
        (x[:, 0], y[:, 0]), lambda a, b: np.mean(a[:, None] > b), n_resamples=4000, method="percentile",
        vectorized=False, rng=1,
    ).confidence_interval  # fmt: skip
    assert (got.low, got.high) == pytest.approx(tuple(expected), abs=0.03)


def test_the_same_seed_gives_the_same_interval() -> None:
    x = np.random.default_rng(0).normal(size=(5, 2))
    first, again, other = (stratified_bootstrap(x, np.mean, 200, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_batch_draws_the_same_rows_as_single_draws() -> None:
    samples, one_by_one = [np.zeros((34, 2)), np.ones((34, 2))], np.random.default_rng(3)
    batch = _draw_rows(np.random.default_rng(3), samples, 50)
    for repetition in range(50):
        for sample, rows in zip(samples, batch, strict=True):
            assert (rows[repetition] == one_by_one.integers(len(sample), size=sample.shape)).all()


def test_an_interval_may_reach_the_diverged_run() -> None:
    got = stratified_bootstrap([[NAN], [1.0], [2.0], [3.0], [4.0]], interquartile_mean)
    assert got.value == 2
    assert got.low == -INF
    assert 2 < got.high <= 4


@given(st.lists(st.lists(st.integers(-3, 3) | st.just(NAN), min_size=2, max_size=2), min_size=2, max_size=5))
@settings(deadline=None)
def test_the_two_probabilities_of_improvement_add_up_to_one(pairs: list[list[float]]) -> None:
    x, y = np.array(pairs)[:, :1], np.array(pairs)[:, 1:]
    ours, theirs = (probability_of_improvement(a, b, repetitions=40) for a, b in ((x, y), (y, x)))
    assert ours.value + theirs.value == pytest.approx(1)
    assert 0 <= ours.low <= ours.high <= 1


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\); pass one row per run"):
        stratified_bootstrap([1.0, 2.0, 3.0], np.mean)
    with pytest.raises(ValueError, match="x has 1 tasks and y has 2"):
        probability_of_improvement([[1.0]], [[1.0, 2.0]])
