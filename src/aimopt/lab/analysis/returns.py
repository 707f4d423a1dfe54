"""What reinforcement learning is judged by: few runs, wide and skewed."""

from collections.abc import Mapping

from aimopt.lab.analysis.findings import Returns
from aimopt.lab.runs import Run
from aimopt.lab.stats import Interval, interquartile_mean, probability_of_improvement, stratified_bootstrap
from aimopt.lab.tasks import Measure

LAST_PART = 0.1  # of the steps, whose best evaluation counts
Column = list[list[float]]  # runs × one task


def returns(measure: Measure, finals: Mapping[str, Mapping[int, Run]], reference: str) -> dict[str, Returns]:
    """Of every contender with a run that is over; nothing where lower is better."""
    if measure.better == "lower":
        return {}
    ended = {label: [run for run in runs.values() if run.settled] for label, runs in finals.items()}
    last: dict[str, Column] = {label: [[run.final(measure)] for run in runs] for label, runs in ended.items() if runs}
    best: dict[str, Column] = {label: [[_best(run, measure)] for run in runs] for label, runs in ended.items() if runs}

    def improvement(scores: Mapping[str, Column], label: str) -> Interval | None:
        if label == reference or reference not in scores:
            return None
        return probability_of_improvement(scores[label], scores[reference])

    return {
        label: Returns(
            stratified_bootstrap(last[label], interquartile_mean),
            stratified_bootstrap(best[label], interquartile_mean),
            improvement(last, label),
            improvement(best, label),
        )
        for label in last
    }


def _best(run: Run, measure: Measure) -> float:
    """The best evaluation of the last tenth; the worst there is if the run diverged."""
    values = [value for step, value in run.curve(measure.key) if step > (1 - LAST_PART) * run.config.steps]
    return measure.worst if run.status == "diverged" or not values else max(values)
