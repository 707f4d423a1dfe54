"""Curves over the steps: by seed, their band, and when they reach a target."""

import math
from collections.abc import Mapping, Sequence

from aimopt.lab.analysis.findings import Curve, Curves, Point, Target, ToTarget
from aimopt.lab.facts import Facts
from aimopt.lab.overhead import Cost
from aimopt.lab.runs import Run
from aimopt.lab.stats import steps_to_target
from aimopt.lab.tasks import Measure

POINTS = 200  # a longer curve is shown as the means of so many parts
TRAINING = Measure("train_loss", "training loss")
Runs = Mapping[int, Run]  # by seed


def curves(facts: Facts, finals: Mapping[str, Runs]) -> tuple[Curves, ...]:
    """Training loss, what the search goes by, and what is reported; each once, and only if there is some of it."""
    measures = {measure.key: measure for measure in (TRAINING, facts.score, facts.measure)}
    found = []
    for measure in measures.values():
        by_contender = {label: _curve(measure, runs) for label, runs in finals.items()}
        known = {label: curve for label, curve in by_contender.items() if curve.by_seed}
        if known:
            found.append(Curves(measure, known))
    return tuple(found)


def target_of(score: Measure, reference: Runs) -> Target | None:
    """The mean with which the reference ends; none before it has, and none if a seed of it diverged."""
    ended = _settled(reference)
    if not ended or any(run.status == "diverged" for run in ended.values()):
        return None
    band = _band(score, ended)
    return Target(score, band[-1].mean) if band else None


def to_target(
    score: Measure, finals: Mapping[str, Runs], reference: str, costs: Mapping[str, Cost]
) -> dict[str, ToTarget]:
    """When the mean curve of each contender reaches the target.

    The mean curve, because the target is a mean: about half of the reference's own seeds never reach it. What the
    search goes by, not test data, because a step read off test data is chosen with knowledge of the answer. Seconds are
    steps times those of a step measured with nothing beside it: those of the runs depend on their neighbours.
    """
    target = target_of(score, finals[reference])
    if target is None:
        return {}
    steps: dict[str, float | None] = {}
    for label, runs in finals.items():
        ended = _settled(runs)
        band = _band(score, ended)
        if ended:
            steps[label] = steps_to_target([p.step for p in band], [p.mean for p in band], target.value, score.better)
    theirs = steps[reference]
    assert theirs is not None  # its mean curve ends at the target

    def reached(label: str, count: float | None) -> ToTarget:
        cost = costs.get(label)
        if count is None:
            return ToTarget(None, None, None, None)
        ratio = count / theirs if theirs else math.nan
        if cost is None:
            return ToTarget(count, ratio, None, None)
        slower = 1.0 if label == reference else cost.ratio[0]  # that of the reference to itself is noise
        return ToTarget(count, ratio, count * cost.step_seconds, ratio * slower)

    return {label: reached(label, count) for label, count in steps.items()}


def _settled(runs: Runs) -> dict[int, Run]:
    return {seed: run for seed, run in runs.items() if run.settled}


def _curve(measure: Measure, runs: Runs) -> Curve:
    by_seed = {seed: run.curve(measure.key) for seed, run in runs.items()}
    begun = {
        seed: tuple((step, value) for step, value in _thinned(points)) for seed, points in by_seed.items() if points
    }
    return Curve(begun, tuple(Point(*row) for row in _thinned(_band(measure, _settled(runs) or runs))))


def _band(measure: Measure, runs: Runs) -> list[Point]:
    """Mean, lowest and highest at the steps at which every run has a finite value."""
    by_run = [dict(run.curve(measure.key)) for run in runs.values()]
    points = []
    for step in by_run[0] if by_run else ():
        values = [own.get(step, math.nan) for own in by_run]
        if all(map(math.isfinite, values)):
            points.append(Point(step, sum(values) / len(values), min(values), max(values)))
    return points


def _thinned(rows: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """At most so many rows, each the mean of as many neighbours."""
    size = max(1, math.ceil(len(rows) / POINTS))
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [tuple(sum(column) / len(part) for column in zip(*part, strict=True)) for part in parts]
