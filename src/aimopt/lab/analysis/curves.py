"""Curves over the steps: per seed, the band of the seeds, and when the mean reaches a target.

curves(facts, final_runs)[0].by_contender["Mine"].band         [(step, mean, low, high), …]
to_target(score, final_runs, "Other", costs)["Mine"].ratio     0.8: it needs 80 % of the steps of Other
"""

import math
from collections.abc import Mapping, Sequence

from aimopt.lab.analysis.study_analysis import Curve, Curves, Point, StepsToTarget, Target
from aimopt.lab.protocol.facts import Facts
from aimopt.lab.protocol.task import Measure
from aimopt.lab.results.costs import Cost
from aimopt.lab.results.run import Run
from aimopt.lab.stats.targets import steps_to_target

MAX_POINTS = 200  # a longer curve is reduced to the means of this many parts
TRAINING = Measure("train_loss", "training loss")
RunsBySeed = Mapping[int, Run]


def curves(facts: Facts, finals: Mapping[str, RunsBySeed]) -> tuple[Curves, ...]:
    """Curves of the training loss, the measure of the search and the reported measure, if they have several records."""
    measures = {measure.key: measure for measure in (TRAINING, facts.score, facts.measure)}
    known_curves = []
    for measure in measures.values():
        by_contender = {label: _curve(measure, runs) for label, runs in finals.items()}
        known = {
            label: curve
            for label, curve in by_contender.items()
            if max(map(len, curve.by_seed.values()), default=0) > 1
        }
        if known:
            known_curves.append(Curves(measure, known))
    return tuple(known_curves)


def target_of(score: Measure, reference: RunsBySeed) -> Target | None:
    """The final mean of the reference; None before it has a result, or if one of its seeds diverged."""
    ended = _settled(reference)
    if not ended or any(run.status == "diverged" for run in ended.values()):
        return None
    band = _band(score, ended)
    return Target(score, band[-1].mean) if band else None


def to_target(
    score: Measure, finals: Mapping[str, RunsBySeed], reference: str, costs: Mapping[str, Cost]
) -> dict[str, StepsToTarget]:
    """When the mean curve of each contender reaches the target.

    The mean curve is used because the target is a mean: about half of the reference's own seeds never reach it. The
    measure of the search is used, not test data, because a step that is read from test data is selected on test data.
    Seconds are steps times the seconds of a step measured alone: the times of the runs depend on what else was running.
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
    reference_steps = steps[reference]
    assert reference_steps is not None  # its mean curve ends at the target

    def reached(label: str, count: float | None) -> StepsToTarget:
        cost = costs.get(label)
        if count is None:
            return StepsToTarget(None, None, None, None)
        ratio = count / reference_steps if reference_steps else math.nan
        if cost is None:
            return StepsToTarget(count, ratio, None, None)
        step_ratio = 1.0 if label == reference else cost.ratio.median  # the ratio of the reference to itself is noise
        return StepsToTarget(count, ratio, count * cost.step_seconds, ratio * step_ratio)

    return {label: reached(label, count) for label, count in steps.items()}


def _settled(runs: RunsBySeed) -> dict[int, Run]:
    return {seed: run for seed, run in runs.items() if run.settled}


def _curve(measure: Measure, runs: RunsBySeed) -> Curve:
    by_seed = {seed: run.curve(measure.key) for seed, run in runs.items()}
    begun = {
        seed: tuple((step, value) for step, value in _thinned(points)) for seed, points in by_seed.items() if points
    }
    return Curve(begun, tuple(Point(*row) for row in _thinned(_band(measure, _settled(runs) or runs))))


def _band(measure: Measure, runs: RunsBySeed) -> list[Point]:
    """Mean, lowest and highest value at the steps at which every run has a finite value."""
    by_run = [dict(run.curve(measure.key)) for run in runs.values()]
    points = []
    for step in by_run[0] if by_run else ():
        values = [curve.get(step, math.nan) for curve in by_run]
        if all(map(math.isfinite, values)):
            points.append(Point(step, sum(values) / len(values), min(values), max(values)))
    return points


def _thinned(rows: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """At most `MAX_POINTS` rows; each one is the mean of neighbouring rows."""
    size = max(1, math.ceil(len(rows) / MAX_POINTS))
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [tuple(sum(column) / len(part) for column in zip(*part, strict=True)) for part in parts]
