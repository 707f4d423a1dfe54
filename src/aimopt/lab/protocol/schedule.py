"""Which runs a study has, given the results so far.

    cells(study, {})                        the runs that can start now: the first trials of every search
    cells(study, store.runs())              the runs of the search so far, and the final runs that they decided
    decisions(study, store.runs())          the verdict on every contender, in a study with looks

`runs` are by identity, as `Store.runs` gives them. Everything is computed anew from the results: nothing about the
progress of a study is stored, so it does not matter who trained a run, when and in which order.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from aimopt.lab.protocol.run_config import RunConfig, rounded
from aimopt.lab.results.run import Run
from aimopt.lab.stats.sequential import Decision, decide, gains_by_margin
from aimopt.lab.stats.tuning import FINALISTS, Point, PointChoice, Score, SearchPlan, plan_search, select_rate

if TYPE_CHECKING:
    from aimopt.lab.protocol.study import Contender, Study

Role = Literal["search", "final", "untuned"]
Runs = Mapping[str, Run]


class Cell(NamedTuple):
    """A run of a study, with its contender and role."""

    contender: str
    role: Role
    config: RunConfig


def cells(study: "Study", runs: Runs) -> list[Cell]:
    """Every run with a known config."""
    plans = {contender.label: search_plan(study, contender, runs) for contender in study.contenders}
    found = [
        Cell(contender.label, "search", config)
        for contender in study.contenders
        for config in search_runs(study, contender, plans[contender.label])
    ]
    counts = seed_counts(study, runs)
    for contender in study.contenders:
        choice = plans[contender.label].choice
        if choice is not None:
            finals = study.final_runs(contender, choice.point, counts[contender.label])
            found += [Cell(contender.label, "final", config) for config in finals]
        if study.untuned:
            usual = study.final_runs(contender, Point(study.usual_rate(contender)))
            found += [Cell(contender.label, "untuned", config) for config in usual]
    return found


def count_unknown_runs(study: "Study", runs: Runs) -> int:
    """The number of final runs without a known config, because the search has not chosen their learning rate.

    In a study with looks, only the first look counts.
    """
    plans = [(contender, search_plan(study, contender, runs)) for contender in _searching(study)]
    waiting = [c for c, plan in plans if plan.choice is None and not _all_failed(study, c, plan, runs)]
    count = len(study.contenders) if waiting and study.rate_of is not None else len(waiting)
    return count * (study.looks[0] if study.looks else len(study.seeds))


def max_run_count(study: "Study") -> int:
    """The largest possible number of runs; of a search in rounds, without extensions beyond its list."""
    seeds = len(study.seeds)
    finals = len(study.contenders) * seeds * (2 if study.untuned and study.grid != (1.0,) else 1)
    per_search = len(study.grid) if study.searches else 0
    if study.search is not None:
        finalists, others = min(FINALISTS, study.search.points), len(study.search.seeds) - 1
        per_search = study.search.points + finalists * others + 2 * len(study.search.seeds)
    return per_search * len(_searching(study)) + finals


def search_runs(study: "Study", contender: "Contender", plan: SearchPlan) -> list[RunConfig]:
    """The search runs of a contender."""
    return [study.run_config(contender, point, seed, study.search_steps) for point, seed in plan.trials]


def search_plan(study: "Study", contender: "Contender", runs: Runs) -> SearchPlan:
    """The trials of a contender's search, and its choice. If another contender is searched, it has only a choice."""
    if study.rate_of is not None and contender.label != study.rate_of:
        return SearchPlan((), search_plan(study, study.contender(study.rate_of), runs).choice)
    usual = study.usual_rate(contender)
    if not study.searches:
        return SearchPlan((), PointChoice(Point(rounded(usual * study.grid[0])), 0.0, at_edge=False, diverged=False))
    score = trial_score(study, contender, runs)
    if study.search is not None:
        start = study.search.points_of(usual, study.facts.contenders[contender.label].options, contender.tune)
        plan = plan_search(start, study.search.seeds, score, study.facts.score.better)
    else:
        plan = _plan_grid(study, usual, score)
    return plan._replace(choice=None) if _all_failed(study, contender, plan, runs) else plan


def _plan_grid(study: "Study", usual_rate: float, score: Score) -> SearchPlan:
    """The search on a grid: one run per rate."""
    trials = tuple((Point(rounded(usual_rate * factor)), study.tuning_seed) for factor in study.grid)
    scores = {point.rate: value for point, seed in trials if (value := score(point, seed)) is not None}
    without_failed = {rate: value for rate, value in scores.items() if not math.isnan(value)}
    if len(scores) < len(trials) or not without_failed:
        return SearchPlan(trials, None)
    chosen = select_rate(without_failed, study.facts.score.better)
    return SearchPlan(trials, PointChoice(Point(chosen.rate), chosen.score, chosen.at_edge, chosen.diverged))


def trial_score(study: "Study", contender: "Contender", runs: Runs) -> Score:
    """The function that gives the score of a contender's trials."""

    def score(point: Point, seed: int) -> float | None:
        """The score of a trial: NaN if its run failed, None while it has none."""
        run = runs.get(study.run_config(contender, point, seed, study.search_steps).identity)
        if run is None or run.status == "running":
            return None
        return math.nan if run.status == "failed" else run.score(study.facts.score)

    return score


def _all_failed(study: "Study", contender: "Contender", plan: SearchPlan, runs: Runs) -> bool:
    searched = [runs.get(config.identity) for config in search_runs(study, contender, plan)]
    return bool(searched) and all(run is not None and run.status == "failed" for run in searched)


def _searching(study: "Study") -> "Sequence[Contender]":
    return study.contenders if study.rate_of is None else [study.contender(study.rate_of)]


def seed_counts(study: "Study", runs: Runs) -> dict[str, int]:
    """The number of final seeds that each contender needs now; the reference needs as many as any other."""
    labels = [contender.label for contender in study.contenders]
    if not study.looks:
        return dict.fromkeys(labels, len(study.seeds))
    counts = {label: _seeds_needed(study.looks, decision) for label, decision in decisions(study, runs).items()}
    return {**counts, study.reference: max(counts.values(), default=study.looks[0])}


def _seeds_needed(looks: Sequence[int], decision: Decision) -> int:
    return decision.seeds if decision.decided else next(look for look in looks if look > decision.seeds)


def decisions(study: "Study", runs: Runs) -> dict[str, Decision]:
    """The decision on every contender except the reference, in a study with looks."""
    values = {contender.label: _values_in_order(study, contender, runs) for contender in study.contenders}
    reference = values.pop(study.reference)
    gains = {}
    for label, by_seed in values.items():
        shared = min(len(by_seed), len(reference))
        gains[label] = gains_by_margin(by_seed[:shared], reference[:shared], study.facts.measure.better)
    return decide(gains, study.looks, study.margin)


def _values_in_order(study: "Study", contender: "Contender", runs: Runs) -> list[float]:
    """The final values of a contender, in the order of the seeds, up to the first one that is missing."""
    choice = search_plan(study, contender, runs).choice
    configs = study.final_runs(contender, choice.point) if choice else []
    found = (runs.get(config.identity) for config in configs)
    settled = itertools.takewhile(lambda run: run is not None and run.settled, found)
    return [run.final(study.facts.measure) for run in settled if run is not None]
