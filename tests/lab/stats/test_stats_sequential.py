"""Verdicts in looks: levels, intervals and outcomes against scipy and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from aimopt.lab.stats.sequential import LOOKS, Decision, decide, relative_gains


def gains(mean: float, std: float = 1.0, seeds: int = 40) -> list[float]:
    """Numbers with exactly this mean and standard deviation in every block of five."""
    block = np.array([-1.5, -0.5, 0.0, 0.5, 1.5])
    return list(np.tile(mean + std * block / block.std(ddof=1), seeds // 5))


def only(values: list[float], margin: float = 0.5, contenders: int = 1) -> Decision:
    return decide({"Mine": values}, LOOKS, margin, contenders)["Mine"]


def test_outcomes() -> None:
    assert only(gains(9.0)).outcome == "better"
    assert only(gains(-9.0)).outcome == "worse"
    assert only(gains(0.0, std=0.1)).outcome == "equal"
    assert only(gains(0.5)).outcome == "undecided"
    assert only([0.0] * 5).outcome == "identical"
    assert only(gains(0.5, seeds=10)).outcome == "open"
    assert only([1.0, 2.0])[:5] == ("open", 0, -math.inf, math.inf, 0.5)


def test_a_contender_stops_at_the_first_look_that_decides() -> None:
    assert [only(gains(mean)).seeds for mean in (9.0, 2.0, 1.2, 1.0)] == [5, 10, 20, 40]
    late = [*gains(9.0, seeds=5), *[-100.0] * 35]
    assert only(late)[:2] == ("better", 5)


def test_verdicts_as_texts() -> None:
    texts = [only(values, margin=0.005).verdict for values in (gains(9.0), gains(0.0, 0.001), gains(0.0), [0.0] * 10)]
    assert texts == ["better", "equal within ±0.5 %", "undecided with 40 seeds", "identical"]
    assert only(gains(0.0, seeds=10)).verdict == "open after 10 seeds"


@pytest.mark.parametrize("contenders", [1, 7])
def test_the_interval_is_the_t_interval_at_the_level_of_a_look(contenders: int) -> None:
    values = gains(0.4, seeds=20)
    decision = only(values, margin=0.5, contenders=contenders)
    level = 1 - 0.05 / 4 / contenders
    expected = stats.t.interval(level, 19, np.mean(values), stats.sem(values))
    assert (decision.low, decision.high) == pytest.approx(expected)


def test_more_contenders_need_more_and_identical_ones_do_not_count() -> None:
    near = gains(2.0, seeds=10)
    assert decide({"a": near}, LOOKS, 0.5)["a"].outcome == "better"
    crowd = {str(i): gains(0.5, seeds=10) for i in range(40)}
    assert decide({"a": near, **crowd}, LOOKS, 0.5)["a"].outcome == "open"
    twins = {str(i): [0.0] * 10 for i in range(40)}
    assert decide({"a": near, **twins}, LOOKS, 0.5)["a"].outcome == "better"


def test_with_five_seeds_every_seed_must_be_beyond_the_margin() -> None:
    assert only([3.0, 3.1, 2.9, 3.0, 3.05]).outcome == "better"
    assert only([3.0, 3.1, 2.9, 3.0, 0.4], margin=0.5).outcome == "open"


def test_diverged_runs_leave_only_signs() -> None:
    assert only([math.inf] * 5).outcome == "better"
    assert only([-math.inf] * 5).outcome == "worse"
    assert only([-math.inf, *[-1.0] * 4]).outcome == "open"
    assert only([-math.inf, *[-1.0] * 9]).outcome == "worse"
    assert only([-math.inf, *[1.0] * 39]).outcome == "undecided"


def test_relative_gains() -> None:
    assert relative_gains([1.0, 2.0], [2.0, 1.0], "lower") == pytest.approx([math.log(2), -math.log(2)])
    assert relative_gains([150.0, 90.0], [50.0, 150.0], "higher") == pytest.approx([1.0, -0.6])
    diverged = relative_gains([math.nan, 1.0, math.inf], [1.0, math.inf, math.nan], "lower")
    assert diverged.tolist() == [-math.inf, math.inf, 0.0]
    assert relative_gains([-1.0], [1.0], "lower").tolist() == [2.0]  # a negative loss has no logarithm
