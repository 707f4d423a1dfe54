"""Average ranks and performance profiles, computed by hand, and unchanged by scale and orientation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimopt.lab.stats.ranking import average_rank, performance_profile
from aimopt.lab.stats.values import Better

INF, NAN = math.inf, math.nan
BETTER: dict[str, Better] = {"digits": "lower", "cheetah": "higher"}
RESULTS = {
    "digits": {"a": 1.0, "b": 2.0, "c": 3.0, "d": 5.0},
    "cheetah": {"d": -5.0, "c": 20.0, "b": 30.0, "a": NAN},
}


def test_ranks_by_hand() -> None:
    assert average_rank(RESULTS, BETTER) == {"a": 2.5, "b": 1.5, "c": 2.5, "d": 3.5}


def test_equal_values_and_diverged_runs_share_a_rank() -> None:
    table = {"digits": {"a": 0.1, "b": 0.1, "c": INF, "d": NAN}}
    assert average_rank(table, BETTER) == {"a": 1.5, "b": 1.5, "c": 3.5, "d": 3.5}


def test_profile_by_hand() -> None:
    """Gaps 0, 1, 2, 4 in units of 2, and diverged, 0, 10, 35 in units of 22.5."""
    got = performance_profile(RESULTS, BETTER, [0, 0.5, 1, 1.6, 2, INF])
    expected = {
        "a": [0.5, 0.5, 0.5, 0.5, 0.5, 0.5],
        "b": [0.5, 1, 1, 1, 1, 1],
        "c": [0, 0.5, 1, 1, 1, 1],
        "d": [0, 0, 0, 0.5, 1, 1],
    }
    assert {name: shares.tolist() for name, shares in got.items()} == expected


@pytest.mark.parametrize(
    ("values", "shares"),
    [
        ({"a": 1.0, "b": 1.0}, {"a": 1, "b": 1}),
        ({"a": INF, "b": NAN}, {"a": 0, "b": 0}),
        ({"a": INF, "b": 1.0}, {"a": 0, "b": 1}),
        ({"a": 1.0, "b": 1.0, "c": 1.1}, {"a": 1, "b": 1, "c": 0}),
        ({"a": 1e-300, "b": 2e-300, "c": 3e-300, "d": 1e300}, {"a": 1, "b": 0, "c": 0, "d": 0}),
    ],
)
def test_the_share_of_tasks_on_which_a_contender_is_best(values: dict[str, float], shares: dict[str, float]) -> None:
    got = performance_profile({"digits": values}, BETTER, [0])
    assert {name: share[0] for name, share in got.items()} == shares


@given(
    st.lists(st.integers(-100, 100) | st.just(INF), min_size=1, max_size=6),
    st.sampled_from([0.25, 1.0, 8.0]),
    st.integers(-1000, 1000),
)
def test_scale_zero_and_orientation_do_not_matter(values: list[float], scale: float, zero: float) -> None:
    """Powers of two and whole numbers: nothing is rounded."""
    thresholds = [0, 0.5, 1, 2, 5]
    plain = {("task", 0): {str(i): x for i, x in enumerate(values)}}
    moved = {key: {name: -(scale * x + zero) for name, x in row.items()} for key, row in plain.items()}
    lower: dict[tuple[str, int], Better] = dict.fromkeys(plain, "lower")
    higher: dict[tuple[str, int], Better] = dict.fromkeys(plain, "higher")
    assert average_rank(plain, lower) == average_rank(moved, higher)
    expected, got = performance_profile(plain, lower, thresholds), performance_profile(moved, higher, thresholds)
    assert {name: shares.tolist() for name, shares in got.items()} == {n: s.tolist() for n, s in expected.items()}
    assert all((np.diff(shares) >= 0).all() for shares in got.values())


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match="no tasks"):
        average_rank({}, BETTER)
    with pytest.raises(ValueError, match=r"'cheetah' has results of \['b'\].*pass one result per contender"):
        performance_profile({"digits": {"a": 1.0}, "cheetah": {"b": 1.0}}, BETTER, [1])
