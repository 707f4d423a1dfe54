"""The step at which a curve reaches its target, and the learning rate that a search selects."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimopt.lab.stats.targets import steps_to_target
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
