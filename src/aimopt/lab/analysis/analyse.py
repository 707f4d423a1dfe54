"""A study and its runs become findings."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from aimopt.lab.analysis.audit import audit
from aimopt.lab.analysis.curves import curves, target_of, to_target
from aimopt.lab.analysis.findings import Findings, Outcome, Progress, Published, Standing, Sweep, has_order
from aimopt.lab.analysis.provenance import provenance
from aimopt.lab.analysis.returns import returns
from aimopt.lab.config import RunConfig
from aimopt.lab.facts import Facts
from aimopt.lab.overhead import Overhead
from aimopt.lab.runs import Run
from aimopt.lab.stats import Better, Difference, Spread, compare, holm, spread
from aimopt.lab.study import Cell, Contender, Role, Study
from aimopt.lab.tasks import Measure

Cells = Sequence[tuple[Cell, Run | None]]


def analyse(study: Study, runs: Mapping[str, Run], overhead: Overhead | None = None) -> Findings:
    """What a study found so far, from runs by identity."""
    facts = study.facts
    cells: Cells = [(cell, runs.get(cell.config.identity)) for cell in study.cells(runs)]
    standings = _standings(study, facts, cells, runs, overhead)
    finals = _final_runs(study, cells)
    return Findings(
        study=study,
        title=facts.title,
        measure=facts.measure,
        score=facts.score,
        standings=standings,
        curves=curves(facts, finals),
        target=target_of(facts.score, finals[study.reference]),
        sweep=_sweep(study, standings),
        overhead=overhead,
        audit=tuple(audit(study, facts, cells, standings)),
        provenance=provenance(run for _, run in cells if run is not None),
        progress=_progress(cells, sum(s.lr is None for s in standings) * len(study.seeds)),
        cells=tuple(cells),
    )


def _standings(
    study: Study, facts: Facts, cells: Cells, runs: Mapping[str, Run], overhead: Overhead | None
) -> tuple[Standing, ...]:
    labels = [contender.label for contender in study.contenders]
    better = facts.measure.better
    outcomes = {label: _outcomes(cells, label, "final", facts.measure) for label in labels}
    untuned = {label: _outcomes(cells, label, "untuned", facts.measure) for label in labels}
    spreads = {label: _spread(outcomes[label], better) for label in labels}
    ranks = _ranks(spreads, better)
    differences = _differences(outcomes, study.reference, better)
    finals = _final_runs(study, cells)
    costs = {cost.label: cost for cost in overhead.costs} if overhead else {}
    reached = to_target(facts.score, finals, study.reference, costs)
    summaries = returns(facts.measure, finals, study.reference)
    published = _published(study, facts)

    def standing(contender: Contender) -> Standing:
        label = contender.label
        trials = sorted(_outcomes(cells, label, "search", facts.score))
        choice = study.choice(contender, runs)
        lr = choice.rate if choice else None
        return Standing(
            label=label,
            optimizer=contender.optimizer,
            options=study.finals(contender, study.usual_rate(contender))[0].options,
            usual_lr=study.usual_rate(contender),
            lr=lr,
            edge=("lowest" if lr == trials[0].lr else "highest") if choice and choice.at_edge and trials else None,
            trials=tuple(trials),
            finals=outcomes[label],
            untuned=untuned[label],
            spread=spreads[label],
            untuned_spread=_spread(untuned[label], better),
            rank=ranks.get(label),
            difference=differences.get(label),
            to_target=reached.get(label),
            published=published.get(label),
            returns=summaries.get(label),
            cost=costs.get(label),
        )

    return tuple(standing(contender) for contender in study.contenders)


def _outcomes(cells: Cells, label: str, role: Role, measure: Measure) -> tuple[Outcome, ...]:
    """The runs of a contender in one role; those of the search are judged by their score, the others by their end."""

    def outcome(config: RunConfig, run: Run | None) -> Outcome:
        if run is None:
            return Outcome(config.lr, config.seed, "missing", math.nan)
        if not run.settled:
            return Outcome(config.lr, config.seed, run.status, math.nan, run.reason)
        value = run.score(measure) if role == "search" else run.final(measure)
        return Outcome(config.lr, config.seed, run.status, value, run.reason)

    return tuple(outcome(cell.config, run) for cell, run in cells if cell.contender == label and cell.role == role)


def _final_runs(study: Study, cells: Cells) -> dict[str, dict[int, Run]]:
    """The final runs of every contender that have begun, by seed."""
    finals: dict[str, dict[int, Run]] = {contender.label: {} for contender in study.contenders}
    for cell, run in cells:
        if cell.role == "final" and run is not None:
            finals[cell.contender][cell.config.seed] = run
    return finals


def _spread(outcomes: Sequence[Outcome], better: Better) -> Spread | None:
    values = [outcome.value for outcome in outcomes if outcome.settled]
    return spread(values, better) if values else None


def _ranks(spreads: Mapping[str, Spread | None], better: Better) -> dict[str, int]:
    """By the mean; equals share the better rank."""
    return _ranked({label: known.mean for label, known in spreads.items() if known}, better)


def _ranked(values: Mapping[str, float], better: Better) -> dict[str, int]:
    way = 1 if better == "lower" else -1
    return {name: 1 + sum(way * other < way * value for other in values.values()) for name, value in values.items()}


def _differences(
    outcomes: Mapping[str, Sequence[Outcome]], reference: str, better: Better
) -> dict[str, Difference | None]:
    """Every contender against the reference on the seeds that both have; those to come count in Holm's correction."""
    known = {label: {o.seed: o.value for o in own if o.settled} for label, own in outcomes.items()}
    alone: dict[str, Difference | None] = {}
    for label in outcomes:
        shared = [seed for seed in known[reference] if seed in known[label]]
        pair = {name: [known[name][seed] for seed in shared] for name in (label, reference)}
        if label != reference:
            alone[label] = compare(pair, reference, better)[label] if shared else None
    holm_p = holm([d.p if d else math.nan for d in alone.values()])
    holm_t_p = holm([d.t_p if d else math.nan for d in alone.values()])
    return {
        label: d and d._replace(holm_p=p, holm_t_p=t_p)
        for (label, d), p, t_p in zip(alone.items(), holm_p, holm_t_p, strict=True)
    }


def _published(study: Study, facts: Facts) -> dict[str, Published]:
    """The paper's results, for the contenders that are its optimizers unchanged."""
    ranks = _ranked({name: mean for name, (mean, _) in facts.published.items()}, facts.measure.better)
    plain = {c.label for c in study.contenders if c.label == c.optimizer and not c.options}
    return {name: Published(*facts.published[name], rank) for name, rank in ranks.items() if name in plain}


def _sweep(study: Study, standings: Sequence[Standing]) -> Sweep | None:
    if not 1 <= len(study.axes) <= 2:
        return None

    def place(standing: Standing) -> tuple[Any, ...]:
        values = (standing.options.get(axis) for axis in study.axes)
        return tuple(tuple(value) if isinstance(value, list) else value for value in values)

    on_grid = [s for s in standings if set(study.axes) <= set(study.contender(s.label).options)]
    labels = {place(standing): standing.label for standing in on_grid}
    values = [tuple(dict.fromkeys(at[i] for at in labels)) for i in range(len(study.axes))]
    in_order = tuple(tuple(sorted(axis)) if has_order(axis) else axis for axis in values)
    default = next(standing for standing in standings if standing.label == study.reference)
    return Sweep(study.axes, in_order, labels, place(default))


def _progress(cells: Cells, unnamed: int) -> Progress:
    """Runs that stand in two places count once; those that wait for the search count as well."""
    by_identity = {cell.config.identity: run for cell, run in cells}
    states = [run.status for run in by_identity.values() if run is not None]
    return Progress(
        settled=states.count("finished") + states.count("diverged"),
        running=states.count("running"),
        failed=states.count("failed"),
        total=len(by_identity) + unnamed,
    )
