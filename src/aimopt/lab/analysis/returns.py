"""Interquartile means and probabilities of improvement, for tasks where a higher value is better.

    returns(measure, final_runs, "Other")["Mine"].last.value          the interquartile mean of the last evaluations

Reinforcement learning has few runs with wide, skewed distributions; Agarwal et al. (2021) recommend these statistics.
"""

from collections.abc import Mapping

from aimopt.lab.analysis.study_analysis import Returns
from aimopt.lab.protocol.task import Measure
from aimopt.lab.results.run import Run
from aimopt.lab.stats.bootstrap import Interval, interquartile_mean, probability_of_improvement, stratified_bootstrap

LAST_SHARE = 0.1  # of the steps: `best` is the best evaluation in it
ScoreColumn = list[list[float]]  # one row per run, one column


def returns(measure: Measure, finals: Mapping[str, Mapping[int, Run]], reference: str) -> dict[str, Returns]:
    """For every contender with a settled run; empty if a lower value is better."""
    if measure.better == "lower":
        return {}
    ended = {label: [run for run in runs.values() if run.settled] for label, runs in finals.items()}
    last: dict[str, ScoreColumn] = {
        label: [[run.final(measure)] for run in runs] for label, runs in ended.items() if runs
    }
    best: dict[str, ScoreColumn] = {
        label: [[run.best_of_last(LAST_SHARE, measure)] for run in runs] for label, runs in ended.items() if runs
    }

    def improvement(scores: Mapping[str, ScoreColumn], label: str) -> Interval | None:
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
