"""The noise of a test set against scipy and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from aimopt.lab.stats.example_noise import gain_error, jackknife_error


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=30)
    without_one = [float(np.delete(values, i).mean()) for i in range(30)]
    assert jackknife_error(without_one) == pytest.approx(stats.sem(values))
    assert math.isnan(jackknife_error([1.0]))


def test_what_two_networks_share_cancels_in_a_difference() -> None:
    """Losses of 400 examples by two networks on three seeds: the error of the mean difference, against scipy."""
    draw = np.random.default_rng(1)
    hardness = draw.normal(10, 3, size=400)
    losses = hardness + draw.normal(0, 0.1, size=(2, 3, 400))
    without_part = [[[float(np.delete(row, i).mean()) for i in range(400)] for row in network] for network in losses]
    own, others = without_part
    error = gain_error(own, others, "lower")
    differences = (losses[1] - losses[0]).mean(0) / 10
    assert error == pytest.approx(stats.sem(differences), rel=0.05)
    assert error < stats.sem(hardness) / 10 / 20
    assert gain_error(own, others, "higher") == pytest.approx(error, rel=0.05)
