"""The step at which a curve reaches its target, and the learning rate that a search selects."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimopt.lab.stats.targets import (
    percentile_interval,
    resampled_median,
    resampled_steps,
    steps_to_target,
    steps_to_targets,
)
from aimopt.lab.stats.tuning import RateChoice, select_rate

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("values", "target", "step"),
    [
        ([2.0, 1.0, 0.5], 0.75, 150),
        ([2.0, 1.0, 0.5], 1.0, 100),
        ([2.0, 1.0, 0.5], 5.0, 0),
        ([2.0, 1.0, 0.5], 0.5, 200),
        ([2.0, 1.0, 0.5], 0.4, None),
        ([2.0, 0.5, 2.0], 1.0, 200 / 3),  # the first time counts, also if it does not last
        ([2.0, NAN, 0.5], 1.0, 200),
        ([NAN, INF, -INF], 1.0, None),
        ([NAN, 0.5, 0.1], 1.0, 100),
        ([NAN, 0.5, 0.1], INF, 100),  # a target that diverged is reached by whatever did not
        ([], 1.0, None),
    ],
)
def test_steps_to_target(values: list[float], target: float, step: float | None) -> None:
    steps = [0, 100, 200][: len(values)]
    expected = step if step is None else pytest.approx(step)
    assert steps_to_target(steps, values, target, "lower") == expected
    assert steps_to_target(steps, [-x for x in values], -target, "higher") == expected


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=8), st.floats(-10, 10), st.floats(0, 5))
def test_a_harder_target_takes_no_fewer_steps(values: list[float], target: float, harder: float) -> None:
    steps = range(len(values))
    easy, hard = (steps_to_target(steps, values, goal, "higher") for goal in (target, target + harder))
    assert hard is None or (easy is not None and easy <= hard + 1e-9)


def test_many_curves_are_each_curve_alone() -> None:
    generator = np.random.default_rng(0)
    curves, targets = generator.normal(size=(50, 6)), generator.normal(1, 1, 50)
    curves[generator.random(curves.shape) < 0.2] = NAN
    got = steps_to_targets(range(6), curves, targets, "higher")
    alone = [steps_to_target(range(6), curve, target, "higher") for curve, target in zip(curves, targets, strict=True)]
    assert got.tolist() == [INF if step is None else step for step in alone]
    assert 5 < sum(step is None for step in alone) < 45


def test_resampled_steps_are_those_of_the_mean_curves() -> None:
    """Straight lines: the step of a mean curve is a closed form of the drawn seeds."""
    steps, slopes, heights = np.arange(0.0, 101.0, 10.0), np.array([1.0, 2.0, 4.0]), np.array([0.5, 1.0, 3.0])
    own = -2 * slopes[:, None] * steps - heights[:, None]
    reference = -slopes[:, None] * steps - 2 * heights[:, None]
    got, reference_steps = resampled_steps(steps, own, reference, "lower")
    assert (reference_steps == 100).all()
    counts = np.random.default_rng(0).multinomial(3, [1 / 3] * 3, size=2000)
    assert got == pytest.approx(50 + (counts @ heights) / (2 * counts @ slopes))
    with pytest.raises(ValueError, match="one row per seed that both have"):
        resampled_steps(steps, own[:2], reference, "lower")


def test_a_resample_with_a_diverged_seed_does_not_reach_the_target() -> None:
    steps, reference = [0, 1, 2], np.array([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    own = np.array([[3.0, 1.0, 0.5], [3.0, NAN, NAN]])
    got, _ = resampled_steps(steps, own, reference, "lower")
    assert set(got) == {1.0, INF}
    assert percentile_interval(1.0, got) == (1.0, 1.0, INF)


def test_the_interval_of_a_ratio_of_steps_covers_the_true_one() -> None:
    """Loss = level of the seed − rate·steps: the contender needs 80 steps for what the reference has after 100."""
    generator, steps, covered = np.random.default_rng(0), np.arange(0.0, 101.0, 5.0), 0
    for _ in range(100):
        levels, noise = generator.normal(0, 3.0, (12, 1)), generator.normal(0, 0.05, (2, 12, 1))
        own = levels - (1.25 + noise[0]) * steps
        reference = levels - (1 + noise[1]) * steps
        got, reference_steps = resampled_steps(steps, own, reference, "lower", repetitions=500)
        interval = percentile_interval(0.8, got / reference_steps)
        covered += interval.low <= 0.8 <= interval.high
    assert 85 <= covered <= 99


def test_the_median_of_measured_ratios_is_resampled_from_its_quartiles() -> None:
    """Against medians of real samples of fifteen; without their number, the draws are as wide as the sample."""
    generator = np.random.default_rng(0)
    medians = np.median(np.exp(generator.normal(0.1, 0.05, (4000, 15))), axis=1)
    quartiles = (math.exp(0.1 - 0.6745 * 0.05), math.exp(0.1 + 0.6745 * 0.05))
    draws = resampled_median(math.exp(0.1), quartiles, rounds=15)
    assert np.log(draws).std() == pytest.approx(np.log(medians).std(), rel=0.08)
    assert np.median(draws) == pytest.approx(np.median(medians), rel=2e-3)
    alone = resampled_median(math.exp(0.1), quartiles, rounds=None)
    assert np.log(alone).std() == pytest.approx(0.05, rel=0.05)
    assert (resampled_median(1.0, (1.0, 1.0), 15) == 1).all()


@pytest.mark.parametrize(
    ("scores", "choice"),
    [
        ({1e-4: 0.9, 1e-3: 0.3, 1e-2: NAN}, RateChoice(1e-3, 0.3, False, False)),
        ({1e-3: 0.3, 1e-2: 0.3, 1e-4: 0.9}, RateChoice(1e-3, 0.3, False, False)),
        ({1e-2: 0.1, 1e-4: 0.9, 1e-3: 0.3}, RateChoice(1e-2, 0.1, True, False)),
        ({1e-4: 0.1, 1e-3: INF}, RateChoice(1e-4, 0.1, True, False)),
        ({1e-3: 0.3}, RateChoice(1e-3, 0.3, False, False)),
        ({1e-2: INF, 1e-3: NAN, 1e-1: -INF}, RateChoice(1e-3, INF, True, True)),
        ({1e-3: NAN}, RateChoice(1e-3, INF, False, True)),
    ],
)
def test_select_rate(scores: dict[float, float], choice: RateChoice) -> None:
    assert select_rate(scores, "lower") == choice
    assert select_rate({rate: -score for rate, score in scores.items()}, "higher") == choice._replace(
        score=-choice.score
    )


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match="no learning rate"):
        select_rate({}, "lower")
    with pytest.raises(ValueError, match="2 steps and 1 values"):
        steps_to_target([0, 1], [1.0], 0.5, "lower")
