"""The search: the list of points, and which trials follow from which scores."""

import math
from collections.abc import Callable

import pytest
from scipy.stats import qmc

from aimopt.lab.stats.tuning import FINALISTS, MAX_EXTENSIONS, Point, SearchPlan, plan_search, points, radical_inverse

SEEDS = (1, 2, 3)


def search(start: list[Point], loss: Callable[[Point, int], float]) -> tuple[SearchPlan, int]:
    """Run a search to its end, with losses that are known only after their trial was asked for; count the rounds."""
    known: dict[tuple[Point, int], float] = {}
    for rounds in range(1, 20):
        plan = plan_search(start, SEEDS, lambda point, seed: known.get((point, seed)), "lower")
        assert len(set(plan.trials)) == len(plan.trials)
        if plan.choice is not None:
            assert known.keys() == set(plan.trials)
            return plan, rounds
        new = [trial for trial in plan.trials if trial not in known]
        assert new, "a search without a choice must ask for trials"
        known.update({trial: loss(*trial) for trial in new})
    raise AssertionError("the search does not end")


def bowl(best_rate: float) -> Callable[[Point, int], float]:
    return lambda point, seed: math.log2(point.rate / best_rate) ** 2 + 0.001 * seed


def test_the_list_is_haltons_sequence() -> None:
    spans = {"a": lambda u: u, "b": lambda u: u}
    expected = qmc.Halton(3, scramble=False).random(20)[1:]
    for point, row in zip(points(19, 1.0, spans), expected, strict=True):
        assert math.isclose(point.rate, 16 ** (2 * row[0] - 1), rel_tol=1e-11)
        assert [value for _, value in point.options] == pytest.approx(row[1:])
    assert [radical_inverse(6, 2), radical_inverse(5, 3)] == [3 / 8, 2 / 3 + 1 / 9]


def test_seven_points_are_a_grid_of_factors_of_two_that_starts_at_the_usual_rate() -> None:
    rates = [point.rate for point in points(7, 1e-3, {})]
    assert rates[0] == 1e-3
    assert sorted(rates) == pytest.approx([1e-3 * 2.0**k for k in range(-3, 4)])


def test_contenders_with_more_options_get_the_same_rates() -> None:
    alone, together = points(7, 1.0, {}), points(7, 1.0, {"beta1": lambda u: 1 - u})
    assert [p.rate for p in alone] == [p.rate for p in together]
    assert len({p.options for p in together}) == 7


@pytest.mark.parametrize("best_rate", [0.3, 1.0, 1.5, 3.9])
def test_the_choice_is_refined_by_the_root_of_two(best_rate: float) -> None:
    plan, rounds = search(points(7, 1.0, {}), bowl(best_rate))
    assert plan.choice is not None
    assert abs(math.log2(plan.choice.point.rate / best_rate)) <= 0.25 + 1e-9
    assert not plan.choice.at_edge
    assert len(plan.trials) == 7 + (FINALISTS + 2) * 3 - FINALISTS
    assert rounds == 4


@pytest.mark.parametrize("best_rate", [50.0, 1 / 50])
def test_a_winner_at_the_edge_extends_the_list(best_rate: float) -> None:
    plan, _ = search(points(7, 1.0, {}), bowl(best_rate))
    assert plan.choice is not None
    assert abs(math.log2(plan.choice.point.rate / best_rate)) <= 0.5 + 1e-9
    assert not plan.choice.at_edge


def test_the_extensions_end_and_say_so() -> None:
    plan, _ = search(points(7, 1.0, {}), bowl(1e9))
    assert plan.choice is not None
    assert plan.choice.at_edge
    assert plan.choice.point.rate == pytest.approx(8 * 2 ** (MAX_EXTENSIONS + 1))


def test_the_best_of_one_seed_can_lose_on_three() -> None:
    def loss(point: Point, seed: int) -> float:
        lucky = seed == SEEDS[0] and point.rate == 2.0
        return bowl(1.0)(point, seed) - 1.5 * lucky

    plan, _ = search(points(7, 1.0, {}), loss)
    assert plan.choice is not None
    assert plan.choice.point.rate == 1.0


def test_other_options_are_chosen_together_with_the_rate() -> None:
    def loss(point: Point, seed: int) -> float:
        return bowl(2.0)(point, seed) + 100 * abs(dict(point.options)["beta1"] - 0.2)

    plan, _ = search(points(7, 1.0, {"beta1": lambda u: u}), loss)
    assert plan.choice is not None
    assert dict(plan.choice.point.options)["beta1"] == pytest.approx(2 / 9)  # of the list's, the closest to 0.2
    tried = [point.rate for point, _ in plan.trials if point.options == plan.choice.point.options]
    assert min(tried) < plan.choice.point.rate < max(tried)


def test_diverged_trials_lose_and_a_search_that_only_diverges_says_so() -> None:
    def loss(point: Point, seed: int) -> float:
        return math.inf if point.rate > 0.5 else bowl(1.0)(point, seed)

    plan, _ = search(points(7, 1.0, {}), loss)
    assert plan.choice is not None
    assert (plan.choice.point.rate, plan.choice.diverged) == (0.5, False)
    plan, _ = search(points(7, 1.0, {}), lambda point, seed: math.nan)
    assert plan.choice is not None
    assert plan.choice.diverged


def test_too_many_options_are_refused() -> None:
    with pytest.raises(ValueError, match="4 options cannot be searched besides the rate; at most 3 can"):
        points(7, 1.0, {name: lambda u: u for name in "abcd"})
