"""Several tasks at once: who is usually ahead, and how far behind the best one usually is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aimopt.lab.analysis.findings import Findings
from aimopt.lab.stats import average_rank, performance_profile

THRESHOLDS = tuple(i / 20 for i in range(101))  # in units of a task's usual gap to the best


@dataclass(frozen=True)
class Across:
    """The comparisons on several tasks."""

    tasks: tuple[str, ...]
    ranks: Mapping[str, float]  # averaged over the tasks, best first
    ranks_by_task: Mapping[str, Mapping[str, float]]
    profile: Mapping[str, tuple[float, ...]]  # the share of tasks and seeds within each threshold of the best
    thresholds: tuple[float, ...]
    left_out: tuple[str, ...]  # contenders without a result on every task


def across(findings: Sequence[Findings]) -> Across | None:
    """Ranks and profile over all studies called `compare` with results; None with less than two tasks or contenders.

    Ranks are those of the means. The profile takes a task and a seed as one problem, so that luck with seeds is in it.
    """
    compared = {f"{f.title}, {f.study.scale}": f for f in findings if f.study.name == "compare" and f.ranked}
    named = list(dict.fromkeys(s.label for f in compared.values() for s in f.standings))
    on_all = [label for label in named if all(label in {s.label for s in f.ranked} for f in compared.values())]
    if len(compared) < 2 or len(on_all) < 2:
        return None
    means: dict[str, dict[str, float]] = {}
    by_seed: dict[tuple[str, int], dict[str, float]] = {}
    for task, found in compared.items():
        values = {label: {o.seed: o.value for o in found.standing(label).finals if o.settled} for label in on_all}
        shared = [seed for seed in found.study.seeds if all(seed in own for own in values.values())]
        by_seed |= {(task, seed): {label: own[seed] for label, own in values.items()} for seed in shared}
        spreads = {label: found.standing(label).spread for label in on_all}
        means[task] = {label: spread.mean for label, spread in spreads.items() if spread}
    better = {task: found.measure.better for task, found in compared.items()}
    ranks = average_rank(means, better)
    profile = performance_profile(by_seed, {key: better[key[0]] for key in by_seed}, THRESHOLDS) if by_seed else {}
    return Across(
        tasks=tuple(compared),
        ranks=dict(sorted(ranks.items(), key=lambda item: item[1])),
        ranks_by_task={task: average_rank({task: means[task]}, better) for task in compared},
        profile={label: tuple(shares.tolist()) for label, shares in profile.items()},
        thresholds=THRESHOLDS,
        left_out=tuple(label for label in named if label not in on_all),
    )
