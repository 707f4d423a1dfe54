"""The noise of a test set against scipy and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from aimopt.lab.stats.example_noise import jackknife_error, noise_share


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=30)
    without_one = [float(np.delete(values, i).mean()) for i in range(30)]
    assert jackknife_error(without_one) == pytest.approx(stats.sem(values))
    assert math.isnan(jackknife_error([1.0]))


def test_the_share_of_the_noise_by_hand() -> None:
    assert noise_share([3.0, 4.0, math.nan], [10.0, math.nan, 5.0, 20.0, 0.0]) == pytest.approx(math.sqrt(12.5) / 10)
    assert noise_share([], [1.0]) is None
    assert noise_share([1.0], [math.nan, 0.0]) is None
