"""The whole procedure by simulation: search, looks and verdicts on contenders that are one and the same rule.

A table of twins has five contenders with the same loss curve over the rate and independent noise in every run. The
search of each chooses its own rate, so their final runs differ by what a wrong choice costs. Units: the standard
deviation of a paired difference of seeds is 1. `docs/lab.md` shows the numbers that this file prints when it is run:

    python tests/lab/stats/test_whole_procedure.py
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from aimopt.lab.stats.sequential import LOOKS, decide
from aimopt.lab.stats.tuning import Point, plan_search, points

Noise = Callable[[np.random.Generator], float]
NOISES: dict[str, Noise] = {
    "normal": lambda draw: draw.normal() / math.sqrt(2),
    "skewed": lambda draw: (draw.exponential() - 1) / math.sqrt(2),
    "heavy-tailed": lambda draw: draw.standard_t(3) / math.sqrt(6),
}
CURVATURES = (0.3, 1.0, 3.0, 10.0)  # the loss at half and at twice the best rate
TUNING_SEEDS = (1, 2, 3)
CONTENDERS = 5  # the reference is one of them


def chosen_loss(draw: np.random.Generator, noise: Noise, curvature: float, best: float) -> float:
    """The true loss at the rate that one search chooses."""
    known: dict[tuple[Point, int], float] = {}

    def loss(point: Point) -> float:
        return curvature * (math.log2(point.rate) - best) ** 2

    while True:
        plan = plan_search(points(7, 1.0, {}), TUNING_SEEDS, lambda point, seed: known.get((point, seed)), "lower")
        if plan.choice is not None:
            return loss(plan.choice.point)
        known.update({trial: loss(trial[0]) + noise(draw) for trial in plan.trials if trial not in known})


def outcomes(
    tables: int, noise: Noise, curvature: float, margin: float, gain: float = 0.0
) -> Iterator[dict[str, tuple[str, int]]]:
    """Per table, the outcome and the number of seeds of every contender, which is better by `gain`."""
    draw = np.random.default_rng(0)
    for _ in range(tables):
        best = draw.uniform(-1, 1)
        reference, *others = (
            chosen_loss(draw, noise, curvature, best) + np.array([noise(draw) for _ in range(LOOKS[-1])])
            for _ in range(CONTENDERS)
        )
        gains = {str(i): reference - values + gain for i, values in enumerate(others)}
        yield {label: decision[:2] for label, decision in decide(gains, LOOKS, margin).items()}


def false_verdicts(tables: int, noise: Noise, curvature: float, margin: float) -> float:
    """The share of tables of twins with any verdict that is not true."""
    wrong = [any(o in ("better", "worse") for o, _ in t.values()) for t in outcomes(tables, noise, curvature, margin)]
    return sum(wrong) / tables


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("curvature", CURVATURES)
def test_false_verdicts_on_twins_are_rare(noise: str, curvature: float) -> None:
    """With a margin of 1/2: at most 5 %, and two standard errors of the simulation."""
    tables = 250
    assert false_verdicts(tables, NOISES[noise], curvature, 0.5) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / tables)


def test_without_a_margin_the_search_would_give_false_verdicts() -> None:
    """So the test above can fail: the final runs alone cannot know that a search chose wrongly."""
    assert false_verdicts(100, NOISES["normal"], 3.0, 1e-9) > 0.2


def test_a_difference_of_the_margin_is_not_called_equal() -> None:
    """Averaged over wrong choices of both searches."""
    found = [o for table in outcomes(150, NOISES["normal"], 1.0, 1.0, gain=1.0) for o, _ in table.values()]
    assert found.count("equal") / len(found) < 0.05


def test_power() -> None:
    found = [o for table in outcomes(100, NOISES["normal"], 1.0, 1.0, gain=2.0) for o, _ in table.values()]
    assert found.count("better") / len(found) > 0.6
    assert "worse" not in found


def main() -> None:
    """Print the tables of docs/lab.md."""
    tables = 2000
    for margin in (0.5, 0.75, 1.0):
        for name, noise in NOISES.items():
            shares = [false_verdicts(tables, noise, curvature, margin) for curvature in CURVATURES]
            print(f"| {margin} | {name} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |", flush=True)
    for gain in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0):
        found = [pair for table in outcomes(500, NOISES["normal"], 1.0, 1.0, gain) for pair in table.values()]
        counts = Counter(outcome for outcome, _ in found)
        texts = [f"{100 * counts[outcome] / len(found):.0f} %" for outcome in ("better", "equal", "undecided", "worse")]
        print(f"| {gain} | {' | '.join(texts)} | {np.mean([seeds for _, seeds in found]):.0f} |", flush=True)


if __name__ == "__main__":
    main()
