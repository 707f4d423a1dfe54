"""Several tasks together: average ranks, and how often each contender is close to the best one.

across = across_tasks([first_analysis, second_analysis])
across.ranks                            {"Mine": 1.5, "Other": 2.0, …}
across.profile["Mine"][0]              the share of tasks and seeds on which Mine is the best
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aimopt.lab.analysis.study_analysis import StudyAnalysis
from aimopt.lab.stats.ranking import average_rank, performance_profile

THRESHOLDS = tuple(i / 20 for i in range(101))  # in units of a task's median gap to the best contender


@dataclass(frozen=True)
class AcrossTasks:
    """The comparisons on several tasks."""

    tasks: tuple[str, ...]
    ranks: Mapping[str, float]  # averaged over the tasks, best first
    ranks_by_task: Mapping[str, Mapping[str, float]]
    profile: Mapping[str, tuple[float, ...]]  # per threshold, the share of tasks and seeds within it
    thresholds: tuple[float, ...]
    left_out: tuple[str, ...]  # contenders without a result on every task


def across_tasks(analyses: Sequence[StudyAnalysis]) -> AcrossTasks | None:
    """Ranks and profile over all comparisons with results; None for less than two tasks or two contenders.

    Ranks are computed from the means. The profile treats each pair of task and seed as one problem, so it includes the
    luck of the seeds.
    """
    compared = {
        f"{analysis.title}, {analysis.study.scale}": analysis
        for analysis in analyses
        if analysis.study.is_comparison and analysis.ranked
    }
    labels = list(dict.fromkeys(s.label for analysis in compared.values() for s in analysis.standings))
    ranked = [{standing.label for standing in analysis.ranked} for analysis in compared.values()]
    on_all_tasks = [label for label in labels if all(label in labels_of_task for labels_of_task in ranked)]
    if len(compared) < 2 or len(on_all_tasks) < 2:
        return None
    better = {task: analysis.measure.better for task, analysis in compared.items()}
    means = {task: _means(analysis, on_all_tasks) for task, analysis in compared.items()}
    by_seed = {
        (task, seed): values
        for task, analysis in compared.items()
        for seed, values in _values_by_seed(analysis, on_all_tasks).items()
    }
    profile = performance_profile(by_seed, {key: better[key[0]] for key in by_seed}, THRESHOLDS) if by_seed else {}
    return AcrossTasks(
        tasks=tuple(compared),
        ranks=dict(sorted(average_rank(means, better).items(), key=lambda item: item[1])),
        ranks_by_task={task: average_rank({task: means[task]}, better) for task in compared},
        profile={label: tuple(shares.tolist()) for label, shares in profile.items()},
        thresholds=THRESHOLDS,
        left_out=tuple(label for label in labels if label not in on_all_tasks),
    )


def _means(analysis: StudyAnalysis, labels: Sequence[str]) -> dict[str, float]:
    spreads = {label: analysis.standing(label).spread for label in labels}
    return {label: spread.mean for label, spread in spreads.items() if spread}


def _values_by_seed(analysis: StudyAnalysis, labels: Sequence[str]) -> dict[int, dict[str, float]]:
    """Per seed, the value of each contender; only seeds on which all contenders have a result."""
    values = {label: {r.seed: r.value for r in analysis.standing(label).finals if r.settled} for label in labels}
    shared = [seed for seed in analysis.study.seeds if all(seed in by_seed for by_seed in values.values())]
    return {seed: {label: by_seed[seed] for label, by_seed in values.items()} for seed in shared}
