"""Successive halving: who goes on, with which rates, and what a simulation says of the rule."""

import math

import numpy as np
import pytest

from aimopt.lab.stats.halving import Entry, Rung, plan_rungs, survivors
from aimopt.lab.stats.values import Better

RATES = [1.0, 2.0, 4.0]


def rung(**scores: list[float]) -> Rung:
    entries = [Entry(name, rate, score) for name, of in scores.items() for rate, score in zip(RATES, of, strict=True)]
    return Rung((7,), tuple(entries))


def test_a_third_goes_on_each_with_a_third_of_its_rates() -> None:
    complete = rung(a=[3, 1, 3], b=[2, 2, 2], c=[0.5, 9, 9], d=[4, 4, 4])
    assert survivors(complete, "lower") == {"c": [1.0], "a": [2.0]}
    assert survivors(complete, "lower", keep=("d",)) == {"c": [1.0], "a": [2.0], "d": [1.0]}
    assert survivors(complete, "higher") == {"c": [2.0], "d": [1.0]}


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_what_diverged_or_failed_comes_last(better: Better) -> None:
    worst = math.inf if better == "lower" else -math.inf
    complete = rung(diverged=3 * [worst], failed=3 * [math.nan], good=[worst, 5.0, math.nan])
    assert survivors(complete, better) == {"good": [2.0]}


def test_a_rung_waits_for_all_of_its_trials_and_earlier_trials_count() -> None:
    known = {("a", 1.0, 10): 1.0, ("b", 1.0, 10): 2.0, ("c", 1.0, 10): 3.0, ("d", 1.0, 10): 4.0}
    scores: dict[tuple[str, float, int], float] = {}

    def plan() -> list[Rung]:
        return plan_rungs(
            {name: [1.0] for name in "abcd"}, (10, 11, 12), (1, 3), lambda *trial: scores.get(trial), "lower"
        )

    assert [(r.seeds, [e.candidate for e in r.entries], r.is_complete) for r in plan()] == [((10,), [*"abcd"], False)]
    scores |= known
    assert [[e.candidate for e in r.entries] for r in plan()] == [[*"abcd"], ["a", "b"]]
    assert [e.score for e in plan()[1].entries] == [None, None]
    scores |= {("a", 1.0, 11): 4.0, ("a", 1.0, 12): 4.0, ("b", 1.0, 11): 2.5, ("b", 1.0, 12): 3.0}
    assert [e.score for e in plan()[1].entries] == [3.0, 2.5]
    best = plan()[1].best_of("b", "lower")
    assert best is not None
    assert best.score == 2.5


def test_the_best_of_many_is_found_more_often_than_with_the_same_number_of_trials_for_all() -> None:
    """18 candidates half a standard deviation of a trial apart: 18 + 12 + 12 trials, or 42 spread over all."""
    generator, names = np.random.default_rng(0), [f"{i:02}" for i in range(18)]
    hits = {"halving": 0, "equal": 0}
    for _ in range(300):
        values = {name: 0.5 * i + generator.standard_normal(9) for i, name in enumerate(names)}
        plan = plan_rungs(
            {name: [1.0] for name in names},
            range(9),
            (1, 3, 9),
            lambda name, _, seed, values=values: float(values[name][seed]),  # type: ignore[misc]
            "lower",
        )
        assert [len(r.entries) for r in plan] == [18, 6, 2]
        last = [entry for entry in plan[-1].entries if entry.score is not None]
        hits["halving"] += min(last, key=lambda entry: entry.score or 0.0).candidate == "00"
        hits["equal"] += min(names, key=lambda name: values[name][:2].mean()) == "00"
    assert hits["halving"] > 1.15 * hits["equal"] > 60
