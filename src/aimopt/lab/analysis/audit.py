"""Was the comparison fair? Each check says what it found, also when all is well."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aimopt.lab.analysis.findings import Remark, Standing
from aimopt.lab.analysis.provenance import differing, provenance
from aimopt.lab.facts import Facts
from aimopt.lab.runs import Run
from aimopt.lab.stats import ENOUGH_SEEDS
from aimopt.lab.study import Cell, Study

Cells = Sequence[tuple[Cell, Run | None]]
NAMED = 6  # of a long list
CHECKSUM = re.compile(r"([0-9a-f]{10})[0-9a-f]{30,}")  # its beginning is enough


def audit(study: Study, facts: Facts, cells: Cells, standings: Sequence[Standing]) -> Iterator[Remark]:
    """Everything that a careful reader would ask about."""
    yield from _completeness(study, cells, standings)
    yield from _budgets(study, cells)
    yield from _leaks(study, facts, cells)
    yield from _edges(study, standings)
    yield from _divergence(cells)
    yield from _notes(cells)
    yield from _starts(cells)
    yield from _origins([run for _, run in cells if run is not None])
    yield from _settings(study)


def _completeness(study: Study, cells: Cells, standings: Sequence[Standing]) -> Iterator[Remark]:
    by_state: dict[str, dict[str, str]] = defaultdict(dict)  # state -> identity -> name: a run in two roles counts once
    for cell, run in cells:
        by_state[run.status if run else "missing"].setdefault(cell.config.identity, _reasoned(cell, run))
    waiting = [standing.label for standing in standings if standing.lr is None]
    failed, running, missing = ([*by_state[state].values()] for state in ("failed", "running", "missing"))
    if failed:
        yield Remark("problem", f"{_runs(failed)} failed and {_are(failed)} left out: {_listed(failed)}.")
    if running:
        yield Remark("warning", f"{_runs(running)} {_are(running)} not over: {_listed(running)}.")
    if missing:
        yield Remark("warning", f"{_runs(missing)} {_are(missing)} missing: {_listed(missing)}.")
    if waiting:
        yield Remark("warning", f"No learning rate is chosen yet for {_listed(waiting)}: no final run can begin.")
    if not (failed or running or missing or waiting):
        yield Remark("ok", f"All {len({cell.config.identity for cell, _ in cells})} runs are over.")
    if len(study.seeds) < ENOUGH_SEEDS:
        few = f"{len(study.seeds)} seed{'s' * (len(study.seeds) != 1)}"
        yield Remark("warning", f"Only {few}: a verdict needs at least {ENOUGH_SEEDS}.")


def _budgets(study: Study, cells: Cells) -> Iterator[Remark]:
    """Every contender must get as many search runs of the same length, and final runs of the same length."""
    if not study.searches:
        yield Remark("ok", "No learning rate was searched: every contender runs at its usual one.")
        return
    if study.rate_of is not None:
        words = f"Only the learning rate of {study.rate_of} was searched; the others run at it, which favours it."
        yield Remark("warning", words)
        return
    searched: dict[str, list[int]] = defaultdict(list)  # the steps of each search run that gave a score
    for cell, run in cells:
        if cell.role == "search":
            searched[cell.contender] += [cell.config.steps] if run is None or run.status != "failed" else []
    if not any(searched.values()):  # all of it failed, which is said elsewhere
        return
    budgets = {tuple(sorted(steps)) for steps in searched.values()}
    if len(budgets) > 1:
        each = ", ".join(f"{label} {len(steps)} runs of {sum(steps)} steps" for label, steps in searched.items())
        yield Remark("problem", f"The searches had unequal budgets: {each}.")
    else:
        count, steps = len(study.grid), next(iter(budgets))[0]
        yield Remark("ok", f"Every contender had the same search: {count} learning rates, {steps} steps each.")
    lengths = {cell.config.steps for cell, _ in cells if cell.role != "search"}
    if len(lengths) > 1:
        yield Remark("problem", f"The final runs have different lengths: {_listed(map(str, sorted(lengths)))} steps.")


def _leaks(study: Study, facts: Facts, cells: Cells) -> Iterator[Remark]:
    if not study.searches:
        return
    tuning = {cell.config.seed for cell, _ in cells if cell.role == "search"}
    both = tuning & {cell.config.seed for cell, _ in cells if cell.role != "search"}
    if both:
        yield Remark("problem", f"Seed {_listed(map(str, sorted(both)))} chose the learning rates and is reported too.")
    if "test" in facts.score.key:
        yield Remark("problem", f"The search went by {facts.score.label} ({facts.score.key}), which is test data.")
    elif facts.score.key == facts.measure.key:
        yield Remark("warning", f"The search went by what is reported, {facts.score.label}; only the seeds differ.")
    elif not both:
        yield Remark(
            "ok", f"The search went by {facts.score.label} with seed {study.tuning_seed}, which is not reported."
        )


def _edges(study: Study, standings: Sequence[Standing]) -> Iterator[Remark]:
    edges = [f"{s.label} (the {s.edge}, {s.lr:g})" for s in standings if s.edge]
    if edges:
        at = "the edge of its grid" if len(edges) == 1 else "the edge of their grids"
        yield Remark("warning", f"The search ended at {at}, and a better rate may lie outside: {_listed(edges)}.")
    elif study.searches and any(standing.trials for standing in standings) and all(s.lr for s in standings):
        yield Remark("ok", "Every chosen learning rate lies inside its grid.")
    hopeless = [s.label for s in standings if s.trials and all(t.status == "diverged" for t in s.trials)]
    if hopeless:
        yield Remark("problem", f"Every learning rate tried diverged for {_listed(hopeless)}; the lowest was taken.")


def _divergence(cells: Cells) -> Iterator[Remark]:
    diverged: dict[str, str] = {}
    for cell, run in cells:
        if run is not None and run.status == "diverged" and cell.role != "search":
            diverged.setdefault(cell.config.identity, _reasoned(cell, run))
    if diverged:
        names = [*diverged.values()]
        yield Remark("warning", f"{_runs(names)} diverged and {_are(names)} counted as the worst: {_listed(names)}.")


def _notes(cells: Cells) -> Iterator[Remark]:
    noted: dict[str, str] = {}
    for cell, run in cells:
        if run is not None and run.notes:
            noted.setdefault(cell.config.identity, f"{_name(cell)} ({' '.join(run.notes)})")
    if noted:
        names = [*noted.values()]
        were = "was" if len(names) == 1 else "were"
        yield Remark("warning", f"{_runs(names)} {were} not made in one piece: {_listed(names)}.")


def _starts(cells: Cells) -> Iterator[Remark]:
    """The same seed must mean the same initial weights, whoever trains them."""
    by_seed: dict[int, dict[str, str]] = defaultdict(dict)
    silent: set[str] = set()
    for cell, run in cells:
        if run is not None and run.settled:
            checksum = run.facts.get("initial")
            if checksum is None:
                silent.add(cell.config.identity)
            else:
                by_seed[cell.config.seed].setdefault(str(checksum), cell.contender)
    for seed, starts in sorted(by_seed.items()):
        if len(starts) > 1:
            yield Remark("problem", f"Seed {seed} began from different weights: {_listed(starts.values())} differ.")
    if silent:
        yield Remark("warning", f"{_runs(silent)} did not record the initial weights.")
    elif by_seed and all(len(starts) == 1 for starts in by_seed.values()):
        yield Remark("ok", "For each seed, all contenders began from the same weights, to the bit.")


def _origins(runs: Sequence[Run]) -> Iterator[Remark]:
    found = provenance(runs)
    if not found:
        return
    data = differing(found, "data")
    if data:
        yield Remark("problem", f"The runs saw different data: {_counted(next(iter(data.values())))}.")
    elif "data" in found:
        yield Remark("ok", f"All runs saw the same data ({next(iter(found['data']))[:12]}).")
    mixed = {
        name: values for part in ("commit", "versions", "machine") for name, values in differing(found, part).items()
    }
    for name, values in mixed.items():
        yield Remark("warning", f"Runs of one table differ in {name.replace('.', ': ', 1)}: {_counted(values)}.")
    if not mixed:
        yield Remark("ok", "All runs were made with the same versions, commit and hardware.")
    if any(commit.endswith("+") for commit in found.get("commit", {})):
        yield Remark("warning", "Some runs were made with source files that are not in their commit.")


def _settings(study: Study) -> Iterator[Remark]:
    if study.settings:
        changed = _listed(f"{name}={value}" for name, value in study.settings.items())
        yield Remark("warning", f"The task's settings are not those of the scale {study.scale}: {changed}.")


def _name(cell: Cell) -> str:
    where = f"learning rate {cell.config.lr:g}" if cell.role == "search" else f"seed {cell.config.seed}"
    return f"{cell.contender} {cell.role} {where}"


def _runs(items: Any) -> str:
    return f"{len(items)} run{'s' * (len(items) != 1)}"


def _are(items: Sequence[str]) -> str:
    return "is" if len(items) == 1 else "are"


def _reasoned(cell: Cell, run: Run | None) -> str:
    return f"{_name(cell)} ({run.reason})" if run is not None and run.reason else _name(cell)


def _listed(items: Any) -> str:
    names = list(items)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(names[:NAMED]) + more


def _counted(values: Mapping[str, int]) -> str:
    short = {CHECKSUM.sub(r"\1", value): count for value, count in values.items()}
    return _listed(f"{value} ({count})" for value, count in short.items())
