"""Equivalent steps against closed forms, scikit-learn's isotonic regression and simulated seeds."""

import math

import numpy as np
import pytest
from sklearn.isotonic import isotonic_regression

from aimopt.lab.stats.equivalent_steps import _isotonic, equivalent_steps
from aimopt.lab.stats.seed_resampling import resampled_means


def power_law(steps: float, a: float = 2.0, b: float = 30.0, c: float = 0.5) -> float:
    return a + b * steps**-c


def by_seed(value: float) -> dict[int, float]:
    return {0: value, 1: value}


@pytest.mark.parametrize("c", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("truth", [620, 1000, 1330, 1900])
def test_a_power_law_is_inverted(c: float, truth: int) -> None:
    """Loss = a + b·steps^−c; the contender's loss is that of the reference after `truth` steps."""
    reference = {n: by_seed(power_law(n, c=c)) for n in (500, 710, 1000, 1410, 2000)}
    got = equivalent_steps(reference, by_seed(power_law(truth, c=c)), 1000, "lower")
    assert got is not None
    assert got.steps.value == pytest.approx(truth, rel=3e-3)
    assert got.saved.value == pytest.approx(1 - 1000 / truth, abs=3e-3)
    assert got.side == ""
    three = equivalent_steps(
        {n: reference[n] for n in (500, 1000, 2000)}, by_seed(power_law(truth, c=c)), 1000, "lower"
    )
    assert three is not None
    assert three.steps.value == pytest.approx(truth, rel=0.03)  # three lengths are enough for a few percent
    returns = {n: {seed: -loss for seed, loss in values.items()} for n, values in reference.items()}
    higher = equivalent_steps(returns, by_seed(-power_law(truth, c=c)), 1000, "higher")
    assert higher is not None
    assert higher.steps.value == pytest.approx(got.steps.value)


def test_values_at_the_lengths_are_met_exactly() -> None:
    reference = {n: by_seed(power_law(n)) for n in (250, 1000, 4000)}
    for n in reference:
        got = equivalent_steps(reference, reference[n], 1000, "lower")
        assert got is not None
        assert got.steps == pytest.approx((n, n, n))
        assert got.side == ""


def test_nothing_is_extrapolated() -> None:
    reference = {n: by_seed(power_law(n)) for n in (500, 1000, 2000)}
    better, worse = (equivalent_steps(reference, by_seed(power_law(n)), 1000, "lower") for n in (2100, 400))
    assert better is not None
    assert worse is not None
    assert (better.side, better.steps.value, better.saved.value) == ("above", 2000, 0.5)
    assert (worse.side, worse.steps.value, worse.saved.value) == ("below", 500, -1.0)
    assert (better.shortest, better.longest) == (500, 2000)


def test_a_longer_schedule_that_ends_behind_is_averaged() -> None:
    reference = {500: by_seed(3.0), 1000: by_seed(2.0), 2000: by_seed(2.2), 4000: by_seed(1.0)}
    got = equivalent_steps(reference, by_seed(1.55), 1000, "lower")
    flat = equivalent_steps({**reference, 1000: by_seed(2.1), 2000: by_seed(2.1)}, by_seed(1.55), 1000, "lower")
    assert got == flat
    assert got is not None
    assert 2000 < got.steps.value < 4000


def test_isotonic_regression_is_that_of_scikit_learn() -> None:
    scores = np.random.default_rng(0).normal(size=(100, 6)) + np.arange(6) * 0.3
    assert _isotonic(scores) == pytest.approx(np.stack([isotonic_regression(row) for row in scores]))


def test_the_interval_covers_the_truth() -> None:
    """Seeds with a level of their own, and noise per run: 25 % fewer steps in truth."""
    generator, covered = np.random.default_rng(0), 0
    lengths, truth = (500, 1000, 2000), 1000 / 0.75
    exact = equivalent_steps({n: by_seed(power_law(n)) for n in lengths}, by_seed(power_law(truth)), 1000, "lower")
    assert exact is not None
    for _ in range(100):
        levels = generator.normal(0, 0.05, 15)
        noise = generator.normal(0, 0.01, (4, 15))
        reference = {n: dict(enumerate(power_law(n) + levels + noise[i])) for i, n in enumerate(lengths)}
        contender = dict(enumerate(power_law(truth) + levels + noise[3]))
        got = equivalent_steps(reference, contender, 1000, "lower", repetitions=400)
        assert got is not None
        covered += got.saved.low <= exact.saved.value <= got.saved.high
    assert 85 <= covered <= 99


def test_shared_seeds_are_resampled_together() -> None:
    """A level that all runs of a seed share cancels; seeds that only one length has do not change this."""
    levels = dict(enumerate(np.random.default_rng(0).normal(0, 0.5, 10)))
    reference = {n: {seed: power_law(n) + x for seed, x in levels.items()} for n in (500, 1000, 2000)}
    contender = {seed: power_law(1300) + x for seed, x in levels.items()}
    got = equivalent_steps(reference, contender, 1000, "lower")
    assert got is not None
    assert got.steps.high - got.steps.low < 1e-6 * got.steps.value
    fewer = equivalent_steps({**reference, 2000: {0: power_law(2000)}}, contender, 1000, "lower")
    assert fewer is not None
    assert fewer.steps.low < fewer.steps.high


def test_diverged_runs() -> None:
    reference = {n: by_seed(power_law(n)) for n in (500, 1000, 2000)}
    diverged = {0: math.inf, 1: 2.0}
    assert equivalent_steps(reference, diverged, 1000, "lower") is None
    without = equivalent_steps({**reference, 4000: diverged}, by_seed(power_law(900)), 1000, "lower")
    assert without == equivalent_steps(reference, by_seed(power_law(900)), 1000, "lower")
    assert equivalent_steps({500: diverged, 1000: by_seed(2.0)}, by_seed(2.0), 1000, "lower") is None
    assert equivalent_steps(reference, {}, 1000, "lower") is None
    with pytest.raises(ValueError, match="at least one step, got 0"):
        equivalent_steps({**reference, 0: by_seed(9.0)}, by_seed(2.0), 1000, "lower")


def test_means_are_resampled_like_scipy_would() -> None:
    """The standard deviation of a resampled mean is that of the seeds, divided by √n; columns keep their seeds."""
    values = np.random.default_rng(1).normal(size=30)
    observed, draws = resampled_means([dict(enumerate(values)), dict(enumerate(values[:10]))], "higher", 20_000)
    assert observed == pytest.approx([values.mean(), values[:10].mean()])
    # two strata of 10 and 20 seeds
    variance = (10 * values[:10].var() + 20 * values[10:].var()) / 30**2
    assert draws[:, 0].std() == pytest.approx(math.sqrt(variance), rel=0.03)
    assert draws[:, 1].std() == pytest.approx(values[:10].std() / math.sqrt(10), rel=0.03)
