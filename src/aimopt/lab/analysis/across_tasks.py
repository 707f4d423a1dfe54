"""Several tasks together: average ranks, how often each contender is close to the best one, and a pooled test.

across = across_tasks([first_analysis, second_analysis])
across.ranks, across.rank_intervals["Mine"]       {"Mine": 1.5, "Other": 2.0, …}, and 1.5 [1.0, 2.0]
across.profile["Mine"][0]                         the share of tasks and seeds on which Mine is the best
across.pooled["Other"]["Mine"].ahead              the number of pairs of task and seed on which Mine is ahead of Other
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from aimopt.lab.analysis.study_analysis import StudyAnalysis
from aimopt.lab.stats.bootstrap import Interval
from aimopt.lab.stats.pooled import PooledDifference, pooled_differences
from aimopt.lab.stats.ranking import average_rank
from aimopt.lab.stats.ranking_intervals import ProfileBand, profile_intervals, rank_intervals
from aimopt.lab.stats.values import Better

THRESHOLDS = tuple(i / 20 for i in range(101))  # in units of a task's median gap to the best contender


@dataclass(frozen=True)
class AcrossTasks:
    """The comparisons on several tasks."""

    tasks: tuple[str, ...]  # of the ranks and the profile
    ranks: Mapping[str, float]  # averaged over the tasks, best first
    rank_intervals: Mapping[str, Interval]  # seeds resampled within the tasks
    ranks_by_task: Mapping[str, Mapping[str, float]]
    profile: Mapping[str, tuple[float, ...]]  # per threshold, the share of tasks and seeds within it
    profile_bands: Mapping[str, ProfileBand]  # the same with intervals
    thresholds: tuple[float, ...]
    left_out: tuple[str, ...]  # contenders without a result on each of these tasks
    left_out_tasks: tuple[str, ...]  # tasks without results of most contenders
    pooled: Mapping[str, Mapping[str, PooledDifference]]  # reference -> contender -> test over all tasks that both have


def across_tasks(analyses: Sequence[StudyAnalysis]) -> AcrossTasks | None:
    """Ranks, profile and tests over all comparisons with results; None for less than two tasks or two contenders.

    Ranks are computed from the means. The profile treats each pair of task and seed as one problem, so it includes the
    luck of the seeds. Both need contenders with a result on every task: tasks that have only a few of the contenders
    are left out if this keeps more results. The pooled tests are against the subject of the first comparison and
    against every reference, for each contender on all tasks that it has.
    """
    compared = _by_task([a for a in analyses if a.study.is_comparison and len(a.ranked) > 1])
    better = {task: studies[0].measure.better for task, studies in compared.items()}
    values = {task: _values(studies) for task, studies in compared.items()}
    tasks, contenders = _common({task: set(by_name) for task, by_name in values.items()})
    if len(tasks) < 2 or len(contenders) < 2:
        return None
    labels = list(dict.fromkeys(label for by_name in values.values() for label in by_name))
    on_all_tasks = [label for label in labels if label in contenders]
    complete = {task: {label: values[task][label] for label in on_all_tasks} for task in tasks}
    ranks = dict(sorted(rank_intervals(complete, better).items(), key=lambda item: item[1].value))
    bands = profile_intervals(complete, better, THRESHOLDS)
    studies = [analysis.study for analyses_of_task in compared.values() for analysis in analyses_of_task]
    tested_against = [studies[0].reference, studies[0].headline_contender, *(study.reference for study in studies)]
    planned = {task: _values(studies, planned_only=True) for task, studies in compared.items()}
    return AcrossTasks(
        tasks=tuple(tasks),
        ranks={label: rank.value for label, rank in ranks.items()},
        rank_intervals=ranks,
        ranks_by_task={task: _ranks(by_label, better[task]) for task, by_label in complete.items()},
        profile={label: tuple(band.shares.tolist()) for label, band in bands.items()},
        profile_bands=bands,
        thresholds=THRESHOLDS,
        left_out=tuple(label for label in labels if label not in on_all_tasks),
        left_out_tasks=tuple(task for task in compared if task not in tasks),
        pooled={
            label: pooled_differences(planned, label, better)
            for label in dict.fromkeys(tested_against)
            if label is not None
        },
    )


def _by_task(analyses: Sequence[StudyAnalysis]) -> dict[str, list[StudyAnalysis]]:
    """The comparisons by title and scale; those with other settings are another task.

    Several comparisons of one task, with other references or contenders, share runs: together they count once.
    """
    named: dict[str, list[StudyAnalysis]] = {}
    for analysis in analyses:
        name = f"{analysis.title}, {analysis.study.scale}"
        if name in named and named[name][0].study.settings != analysis.study.settings:
            name += "".join(f", {setting}={value}" for setting, value in analysis.study.settings.items())
        named.setdefault(name, []).append(analysis)
    return named


def _values(studies: Sequence[StudyAnalysis], *, planned_only: bool = False) -> dict[str, dict[int, float]]:
    """The final value per contender and seed, from the comparison of a task in which the contender has most seeds.

    Only the seeds of the first look are planned whatever the results are: later ones are for contenders that are not
    decided yet.
    """
    values: dict[str, dict[int, float]] = {}
    for analysis in studies:
        seeds = analysis.study.seeds[: analysis.study.looks[0]] if planned_only and analysis.study.looks else None
        for standing in analysis.standings:
            settled = {r.seed: r.value for r in standing.finals if r.settled and (seeds is None or r.seed in seeds)}
            if len(settled) > len(values.get(standing.label, ())):
                values[standing.label] = settled
    return values


def _common(contenders: Mapping[str, set[str]]) -> tuple[list[str], set[str]]:
    """Tasks and the contenders that all of them have, with as many results as possible.

    Tasks are dropped one by one, each time the one without which most contenders remain.
    """
    kept = list(contenders)
    best: tuple[list[str], set[str]] = ([], set())

    def shared(tasks: Sequence[str]) -> set[str]:
        return set.intersection(*(contenders[task] for task in tasks))

    while len(kept) > 1:
        common = shared(kept)
        if len(common) > 1 and len(kept) * len(common) > len(best[0]) * len(best[1]):
            best = kept, common
        kept = max(([other for other in kept if other != task] for task in kept), key=lambda tasks: len(shared(tasks)))
    return best


def _ranks(values: Mapping[str, Mapping[int, float]], better: Better) -> dict[str, float]:
    means = {label: fmean(by_seed.values()) for label, by_seed in values.items()}
    return average_rank({"": means}, {"": better})
