"""The expected best of k trials, against the mean over all sets of k trials."""

import itertools
import math

import numpy as np
import pytest

from aimopt.lab.stats.tuning_budget import expected_best
from aimopt.lab.stats.values import Better


@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_the_expected_best_is_the_mean_over_all_sets_of_trials(count: int, better: Better) -> None:
    scores = np.random.default_rng(count).normal(size=count).round(1).tolist()  # rounded: some are equal
    best = min if better == "lower" else max
    for drawn, expected in enumerate(expected_best(scores, better), start=1):
        enumerated = [best(chosen) for chosen in itertools.combinations(scores, drawn)]
        assert expected == pytest.approx(np.mean(enumerated), abs=1e-12)


def test_a_diverged_trial_is_the_worst_value_until_another_one_is_certain() -> None:
    assert expected_best([0.2, math.inf, 0.4, math.nan], "lower") == pytest.approx([math.inf, math.inf, 0.25, 0.2])
    assert expected_best([-math.inf, 3.0], "higher") == [-math.inf, 3.0]
    assert expected_best([math.inf], "lower") == [math.inf]


def test_more_trials_are_never_worse_and_all_of_them_give_the_best() -> None:
    scores = np.random.default_rng(0).lognormal(size=60).tolist()
    curve = expected_best(scores, "lower")
    assert (np.diff(curve) <= 0).all()
    assert curve[0] == pytest.approx(np.mean(scores))
    assert curve[-1] == min(scores)


def test_no_trial_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="pass one score per trial"):
        expected_best([], "lower")
