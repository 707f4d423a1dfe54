"""Analyse a study: compute its numbers from its runs.

analysis = analyse_study(study, store.runs(), store.overhead(study))
analyse_study(study, {}).progress                    (0, 0, 0, 120): nothing was run yet
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from aimopt.lab.analysis.audit import audit
from aimopt.lab.analysis.curves import curves, target_of, to_target
from aimopt.lab.analysis.equivalents import equivalents
from aimopt.lab.analysis.provenance import provenance
from aimopt.lab.analysis.returns import returns
from aimopt.lab.analysis.study_analysis import (
    CellRuns,
    Progress,
    Published,
    RunResult,
    SensitivityGrid,
    Standing,
    StudyAnalysis,
    has_order,
    judged_value,
)
from aimopt.lab.protocol import schedule
from aimopt.lab.protocol.facts import Facts
from aimopt.lab.protocol.run_config import RunConfig, frozen
from aimopt.lab.protocol.schedule import Role
from aimopt.lab.protocol.search import with_options
from aimopt.lab.protocol.study import Contender, Study
from aimopt.lab.results.costs import Overhead
from aimopt.lab.results.run import Run, is_settled
from aimopt.lab.stats.paired import Difference, Spread, differences_on_shared_seeds, spread
from aimopt.lab.stats.sequential import Decision
from aimopt.lab.stats.tuning import Point
from aimopt.lab.stats.values import Better, to_scores


def analyse_study(study: Study, runs: Mapping[str, Run], overhead: Overhead | None = None) -> StudyAnalysis:
    """The analysis of a study so far. `runs` are by identity, as `Store.runs` gives them."""
    facts = study.facts
    cells: CellRuns = [(cell, runs.get(cell.config.identity)) for cell in study.cells(runs)]
    standings = _standings(study, facts, cells, runs, overhead)
    final_runs = _final_runs_by_seed(study, cells)
    return StudyAnalysis(
        study=study,
        title=facts.title,
        measure=facts.measure,
        score=facts.score,
        standings=standings,
        curves=curves(facts, final_runs),
        target=target_of(facts.score, final_runs[study.reference]),
        sweep=_sweep(study, standings),
        overhead=overhead,
        audit=tuple(audit(study, facts, cells, standings)),
        provenance=provenance(run for _, run in cells if run is not None),
        progress=_progress(cells, study.count_unknown_runs(runs)),
        cells=tuple(cells),
    )


def _standings(
    study: Study, facts: Facts, cells: CellRuns, runs: Mapping[str, Run], overhead: Overhead | None
) -> tuple[Standing, ...]:
    labels = [contender.label for contender in study.contenders]
    better = facts.measure.better
    finals = {label: _run_results(cells, label, "final", facts) for label in labels}
    untuned = {label: _run_results(cells, label, "untuned", facts) for label in labels}
    spreads = {label: _spread(finals[label], better) for label in labels}
    ranks = _ranks({label: known.mean for label, known in spreads.items() if known}, better)
    differences = _differences(finals, study.reference, better)
    decisions = schedule.decisions(study, runs) if study.looks else {}
    final_runs = _final_runs_by_seed(study, cells)
    costs = {cost.label: cost for cost in overhead.costs} if overhead else {}
    reached = to_target(facts.score, final_runs, study.reference, costs)
    in_steps = equivalents(facts.measure, final_runs, study.reference, runs) if study.is_comparison else {}
    summaries = returns(facts.measure, final_runs, study.reference)
    published = _published(study, facts)
    searched_reference = _run_results(cells, study.reference, "search", facts)

    def standing(contender: Contender) -> Standing:
        label = contender.label
        trials = sorted(_run_results(cells, label, "search", facts))
        choice = study.choice(contender, runs)
        lr = choice.point.rate if choice else None
        usual = study.run_config(contender, Point(study.usual_rate(contender)), study.seeds[0])
        return Standing(
            label=label,
            optimizer=contender.optimizer,
            options=with_options(usual.options, dict(choice.point.options) if choice else {}),
            usual_lr=study.usual_rate(contender),
            lr=lr,
            tuned=dict(choice.point.options) if choice else {},
            edge=("lowest" if lr == trials[0].lr else "highest") if choice and choice.at_edge and trials else None,
            trials=tuple(trials),
            finals=finals[label],
            untuned=untuned[label],
            spread=spreads[label],
            untuned_spread=_spread(untuned[label], better),
            rank=ranks.get(label),
            difference=_with_decision(differences.get(label), decisions.get(label)),
            decision=decisions.get(label),
            ahead_in_search=_ahead_in_search(trials, searched_reference, facts.score.better),
            to_target=reached.get(label),
            equivalent=in_steps.get(label),
            published=published.get(label),
            returns=summaries.get(label),
            cost=costs.get(label),
        )

    return tuple(standing(contender) for contender in study.contenders)


def _run_results(cells: CellRuns, label: str, role: Role, facts: Facts) -> tuple[RunResult, ...]:
    """The results of a contender's runs in one role."""

    def result(config: RunConfig, run: Run | None) -> RunResult:
        if run is None:
            return RunResult(config.lr, config.seed, "missing", math.nan)
        value = judged_value(run, role, facts.score, facts.measure) if run.settled else math.nan
        return RunResult(config.lr, config.seed, run.status, value, run.reason)

    return tuple(result(cell.config, run) for cell, run in cells if cell.contender == label and cell.role == role)


def _final_runs_by_seed(study: Study, cells: CellRuns) -> dict[str, dict[int, Run]]:
    """Per contender, the final runs that were started, by seed."""
    finals: dict[str, dict[int, Run]] = {contender.label: {} for contender in study.contenders}
    for cell, run in cells:
        if cell.role == "final" and run is not None:
            finals[cell.contender][cell.config.seed] = run
    return finals


def _spread(results: Sequence[RunResult], better: Better) -> Spread | None:
    values = [result.value for result in results if result.settled]
    return spread(values, better) if values else None


def _ranks(values: Mapping[str, float], better: Better) -> dict[str, int]:
    """Ranks from 1, the best; equal values share the better rank."""
    sign = 1 if better == "lower" else -1
    return {name: 1 + sum(sign * other < sign * value for other in values.values()) for name, value in values.items()}


def _differences(
    finals: Mapping[str, Sequence[RunResult]], reference: str, better: Better
) -> dict[str, Difference | None]:
    by_seed = {label: {r.seed: r.value for r in results if r.settled} for label, results in finals.items()}
    return differences_on_shared_seeds(by_seed, reference, better)


def _with_decision(difference: Difference | None, decision: Decision | None) -> Difference | None:
    """The difference, with the verdict of a study with looks."""
    if difference is None or decision is None:
        return difference
    return difference._replace(verdict_in_looks=decision.verdict)


def _ahead_in_search(
    trials: Sequence[RunResult], reference: Sequence[RunResult], better: Better
) -> tuple[int, int] | None:
    """On how many tuning seeds the best trial of a contender is ahead of the best trial of the reference."""
    best: list[dict[int, float]] = [{}, {}]
    for results, by_seed in zip((trials, reference), best, strict=True):
        for result in results:
            if result.settled:
                score = float(to_scores([result.value], better)[0])
                by_seed[result.seed] = max(score, by_seed.get(result.seed, score))
    shared = [seed for seed in best[0] if seed in best[1]]
    return (sum(best[0][seed] > best[1][seed] for seed in shared), len(shared)) if len(shared) > 1 else None


def _published(study: Study, facts: Facts) -> dict[str, Published]:
    """Results that were published for contenders of this study, with their ranks."""
    results = study.published.results if study.published else {}
    ranks = _ranks({label: mean for label, (mean, _) in results.items()}, facts.measure.better)
    return {label: Published(*results[label], rank) for label, rank in ranks.items()}


def _sweep(study: Study, standings: Sequence[Standing]) -> SensitivityGrid | None:
    if not 1 <= len(study.axes) <= 2:
        return None

    def option_values(standing: Standing) -> tuple[Any, ...]:
        return tuple(frozen(standing.options.get(axis)) for axis in study.axes)

    on_grid = [s for s in standings if set(study.axes) <= set(study.contender(s.label).options)]
    labels = {option_values(standing): standing.label for standing in on_grid}
    values = [tuple(dict.fromkeys(point[i] for point in labels)) for i in range(len(study.axes))]
    in_order = tuple(tuple(sorted(axis)) if has_order(axis) else axis for axis in values)
    default = next(standing for standing in standings if standing.label == study.reference)
    return SensitivityGrid(study.axes, in_order, labels, option_values(default))


def _progress(cells: CellRuns, unknown_runs: int) -> Progress:
    """A run with two roles counts once. Final runs that wait for the search count in the total."""
    by_identity = {cell.config.identity: run for cell, run in cells}
    statuses = [run.status for run in by_identity.values() if run is not None]
    return Progress(
        settled=sum(map(is_settled, statuses)),
        running=statuses.count("running"),
        failed=statuses.count("failed"),
        total=len(by_identity) + unknown_runs,
    )
