"""Curves over the steps: per seed, the band of the seeds, and when the mean reaches a target.

curves(facts, final_runs)[0].by_contender["Mine"].band         [(step, mean, low, high), …]
to_target(score, final_runs, "Other", costs)["Mine"].ratio     0.8: it needs 80 % of the steps of Other
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from aimopt.lab.analysis.study_analysis import Curve, Curves, Point, StepsToTarget, Target
from aimopt.lab.protocol.facts import Facts
from aimopt.lab.protocol.task import Measure
from aimopt.lab.results.costs import Cost
from aimopt.lab.results.run import Run
from aimopt.lab.stats.seed_resampling import REPETITIONS
from aimopt.lab.stats.targets import percentile_interval, resampled_median, resampled_steps, steps_to_target
from aimopt.lab.stats.values import Floats

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
    """When the mean curve of each contender reaches the target, on the seeds that it shares with the reference.

    The mean curve is used because the target is a mean: about half of the reference's own seeds never reach it. The
    measure of the search is used, not test data, because a step that is read from test data is selected on test data.
    Times are ratios of steps times the paired ratio of step times: seconds that two contenders needed at different
    times, or while other runs were training, say little.
    """
    if target_of(score, finals[reference]) is None:
        return {}
    reference_runs, reference_cost = _settled(finals[reference]), costs.get(reference)
    reached = {}
    for label, runs in finals.items():
        own = {seed: run for seed, run in _settled(runs).items() if seed in reference_runs}
        if own:
            others = {seed: reference_runs[seed] for seed in own}
            step_time = None
            if label in costs and reference_cost is not None:
                itself = label == reference  # its ratio to itself is 1, and what was measured is noise
                step_time = _StepTime(reference_cost.step_seconds, None if itself else costs[label])
            reached[label] = _reached(score, own, others, step_time)
    return reached


class _StepTime(NamedTuple):
    """The seconds of a step of the reference, and the costs of a contender; None: it is the reference."""

    reference_seconds: float
    cost: Cost | None

    def ratio(self) -> tuple[float, Floats]:
        """The paired ratio of step times, and draws of it."""
        if self.cost is None:
            return 1.0, np.ones(REPETITIONS)
        median, low, high = self.cost.ratio
        return median, resampled_median(median, (low, high), self.cost.rounds)


def _reached(score: Measure, own: RunsBySeed, others: RunsBySeed, step_time: _StepTime | None) -> StepsToTarget:
    """The way of a contender to the final mean of the reference, `others`, which has the same seeds."""
    bands = _band(score, own), _band(score, others)
    if not all(bands):
        return StepsToTarget(None, None, None, None)
    target = bands[1][-1].mean
    steps, reference_steps = (
        steps_to_target([p.step for p in band], [p.mean for p in band], target, score.better) for band in bands
    )
    assert reference_steps is not None  # its mean curve ends at the target
    if steps is None:
        return StepsToTarget(None, None, None, None)
    ratio = steps / reference_steps if reference_steps else math.nan
    at = [point.step for point in bands[1]]
    own_draws, reference_draws = resampled_steps(at, _matrix(score, own, at), _matrix(score, others, at), score.better)
    with np.errstate(invalid="ignore", divide="ignore"):  # the reference may be at its target from the beginning
        draws = own_draws / reference_draws
    interval = percentile_interval(ratio, draws)
    if step_time is None:
        return StepsToTarget(steps, ratio, None, None, interval)
    step_ratio, step_draws = step_time.ratio()
    seconds = steps * step_ratio * step_time.reference_seconds
    times = percentile_interval(ratio * step_ratio, draws * step_draws)
    return StepsToTarget(steps, ratio, seconds, times.value, interval, times)


def _matrix(measure: Measure, runs: RunsBySeed, steps: Sequence[float]) -> Floats:
    """One row per run and one column per step; NaN where a run has no value."""
    by_run = [dict(run.curve(measure.key)) for run in runs.values()]
    return np.array([[curve.get(int(step), math.nan) for step in steps] for curve in by_run])


def _settled(runs: RunsBySeed) -> dict[int, Run]:
    return {seed: run for seed, run in runs.items() if run.settled}


def _curve(measure: Measure, runs: RunsBySeed) -> Curve:
    by_seed = {seed: run.curve(measure.key) for seed, run in runs.items()}
    begun = {
        seed: tuple((step, value) for step, value in _thinned(points)) for seed, points in by_seed.items() if points
    }
    return Curve(begun, tuple(Point(*row) for row in _thinned(_band(measure, _settled(runs) or runs))))


def _band(measure: Measure, runs: RunsBySeed) -> list[Point]:
    """Mean, lowest and highest value at the steps at which all of them are finite, and every run has a value."""
    by_run = [dict(run.curve(measure.key)) for run in runs.values()]
    points = []
    for step in by_run[0] if by_run else ():
        values = [curve.get(step, math.nan) for curve in by_run]
        mean = sum(values) / len(values)  # of large finite values it may be infinite
        if all(map(math.isfinite, [*values, mean])):
            points.append(Point(step, mean, min(values), max(values)))
    return points


def _thinned(rows: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """At most `MAX_POINTS` rows; each one is the mean of neighbouring rows."""
    size = max(1, math.ceil(len(rows) / MAX_POINTS))
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [tuple(sum(column) / len(part) for column in zip(*part, strict=True)) for part in parts]
