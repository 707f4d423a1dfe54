"""The audit: was the comparison fair? Each check gives a remark, also if all is well.

[remark.level for remark in analysis.audit]         "ok", "warning" or "problem"
"For each seed, all contenders started from the same weights, bit for bit."
"2 runs diverged and count as the worst value: …"
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aimopt.lab.analysis.provenance import differing, provenance
from aimopt.lab.analysis.study_analysis import CellRuns, Remark, Standing
from aimopt.lab.protocol.facts import Facts
from aimopt.lab.protocol.schedule import Cell
from aimopt.lab.protocol.schema import is_number
from aimopt.lab.protocol.search import Search
from aimopt.lab.protocol.study import Study
from aimopt.lab.results.run import Run
from aimopt.lab.stats.example_noise import ENOUGH_SHARE, gain_error
from aimopt.lab.stats.paired import ENOUGH_SEEDS
from aimopt.lab.stats.sequential import relative_gains

MAX_LISTED = 6  # names of a long list
CHECKSUM = re.compile(r"([0-9a-f]{10})[0-9a-f]{30,}")  # the first ten digits are enough


def audit(study: Study, facts: Facts, cells: CellRuns, standings: Sequence[Standing]) -> Iterator[Remark]:
    """Everything that a careful reader would ask about, as remarks."""
    yield from _completeness(study, cells, standings)
    yield from _budgets(study, cells)
    yield from _search_data(study, facts, cells)
    yield from _grid_edges(study, standings)
    yield from _margin(study, standings)
    yield from _divergence(cells)
    yield from _notes(cells)
    yield from _test_noise(study, facts, cells)
    yield from _initial_weights(cells)
    yield from _provenance([run for _, run in cells if run is not None])
    yield from _settings(study)


def _completeness(study: Study, cells: CellRuns, standings: Sequence[Standing]) -> Iterator[Remark]:
    by_status: dict[str, dict[str, str]] = defaultdict(dict)  # status -> identity -> name: two roles count once
    for cell, run in cells:
        by_status[run.status if run else "missing"].setdefault(cell.config.identity, _name_with_reason(cell, run))
    waiting = [standing.label for standing in standings if standing.lr is None]
    failed, running, missing = ([*by_status[status].values()] for status in ("failed", "running", "missing"))
    if failed:
        yield Remark("problem", f"{_count_runs(failed)} failed and {_is_or_are(failed)} left out: {_listed(failed)}.")
    if running:
        yield Remark("warning", f"{_count_runs(running)} {_is_or_are(running)} not finished: {_listed(running)}.")
    if missing:
        yield Remark("warning", f"{_count_runs(missing)} {_is_or_are(missing)} missing: {_listed(missing)}.")
    if waiting:
        yield Remark("warning", f"No learning rate is chosen yet for {_listed(waiting)}: no final run can start.")
    if not (failed or running or missing or waiting):
        yield Remark("ok", f"All {len({cell.config.identity for cell, _ in cells})} runs have a result.")
    if len(study.seeds) < ENOUGH_SEEDS and not study.looks:
        few = f"{len(study.seeds)} seed{'s' * (len(study.seeds) != 1)}"
        yield Remark("warning", f"Only {few}: a verdict needs at least {ENOUGH_SEEDS}.")


def _budgets(study: Study, cells: CellRuns) -> Iterator[Remark]:
    """Every contender must get as many search runs of the same length, and final runs of the same length."""
    if not study.searches:
        yield Remark("ok", "No learning rate was searched: every contender uses its usual rate.")
        return
    if study.rate_of is not None:
        text = (
            f"Only the learning rate of {study.rate_of} was searched; the others use it, which favours {study.rate_of}."
        )
        yield Remark("warning", text)
        return
    searched: dict[str, list[int]] = defaultdict(list)  # per contender, the steps of each search run with a score
    for cell, run in cells:
        if cell.role == "search":
            searched[cell.contender] += [cell.config.steps] if run is None or run.status != "failed" else []
    if not any(searched.values()):  # every search run failed, which another remark says
        return
    budgets = {tuple(sorted(steps)) for steps in searched.values()}
    if study.search is not None:
        yield Remark("ok", _budget_of_search(study.search, searched))
    elif len(budgets) > 1:
        budgets_by_label = ", ".join(
            f"{label} {len(steps)} runs of {sum(steps)} steps" for label, steps in searched.items()
        )
        yield Remark("problem", f"The searches had unequal budgets: {budgets_by_label}.")
    else:
        count, steps = len(study.grid), next(iter(budgets))[0]
        yield Remark("ok", f"Every contender had the same search: {count} learning rates, {steps} steps each.")
    lengths = {cell.config.steps for cell, _ in cells if cell.role != "search"}
    if len(lengths) > 1:
        yield Remark("problem", f"The final runs have different lengths: {_listed(map(str, sorted(lengths)))} steps.")


def _budget_of_search(search: Search, searched: Mapping[str, Sequence[int]]) -> str:
    """The budget that every contender had, and who had more because its best rate was at the edge of the list."""
    least = min(map(len, searched.values()))
    more = [f"{label} ({len(steps) - least} runs)" for label, steps in searched.items() if len(steps) > least]
    text = f"Every contender had the same search: {search.points} points, the best on {len(search.seeds)} tuning seeds."
    return f"{text} Some went on beyond the list, where their best rate was: {_listed(more)}." if more else text


def _margin(study: Study, standings: Sequence[Standing]) -> Iterator[Remark]:
    """The margin must be larger than what a search may cost: half the spread of paired seeds, by simulation."""
    decisions = [(s.label, s.decision) for s in standings if s.decision is not None]
    noisy = [f"{label} ({100 * d.std:.2g} %)" for label, d in decisions if study.margin < d.std / 2]
    if noisy:
        yield Remark(
            "warning",
            f"The margin of ±{100 * study.margin:g} % is less than half the standard deviation of a paired difference, "
            f"so a wrong choice of the search may count as a difference: {_listed(noisy)}.",
        )


def _search_data(study: Study, facts: Facts, cells: CellRuns) -> Iterator[Remark]:
    if not study.searches:
        return
    tuning_seeds = {cell.config.seed for cell, _ in cells if cell.role == "search"}
    both = tuning_seeds & {cell.config.seed for cell, _ in cells if cell.role != "search"}
    if both:
        yield Remark(
            "problem",
            f"Seed {_listed(map(str, sorted(both)))} was used to choose the learning rates and is reported too.",
        )
    if "test" in facts.score.key:
        yield Remark("problem", f"The search used {facts.score.label} ({facts.score.key}), which is test data.")
    elif facts.score.key == facts.measure.key:
        yield Remark("warning", f"The search used the reported measure, {facts.score.label}; only the seeds differ.")
    elif not both:
        seeds = _listed(map(str, study.tuning_seeds))
        which = f"seed {seeds}, which is" if len(study.tuning_seeds) == 1 else f"seeds {seeds}, which are"
        yield Remark("ok", f"The search used {facts.score.label} with {which} not reported.")


def _grid_edges(study: Study, standings: Sequence[Standing]) -> Iterator[Remark]:
    edges = [f"{s.label} (the {s.edge}, {s.lr:g})" for s in standings if s.edge]
    if edges:
        grids = "its grid" if len(edges) == 1 else "their grids"
        text = f"The search chose a rate at the edge of {grids}, and a better rate may lie outside: {_listed(edges)}."
        yield Remark("warning", text)
    elif study.searches and any(standing.trials for standing in standings) and all(s.lr for s in standings):
        yield Remark("ok", "Every chosen learning rate lies inside its grid.")
    all_diverged = [s.label for s in standings if s.trials and all(t.status == "diverged" for t in s.trials)]
    if all_diverged:
        yield Remark(
            "problem", f"Every learning rate tried diverged for {_listed(all_diverged)}; the lowest rate was used."
        )


def _divergence(cells: CellRuns) -> Iterator[Remark]:
    diverged: dict[str, str] = {}
    for cell, run in cells:
        if run is not None and run.status == "diverged" and cell.role != "search":
            diverged.setdefault(cell.config.identity, _name_with_reason(cell, run))
    if diverged:
        names = [*diverged.values()]
        yield Remark(
            "warning", f"{_count_runs(names)} diverged and {_counts(names)} as the worst value: {_listed(names)}."
        )


def _notes(cells: CellRuns) -> Iterator[Remark]:
    noted: dict[str, str] = {}
    for cell, run in cells:
        if run is not None and run.notes:
            noted.setdefault(cell.config.identity, f"{_name(cell)} ({' '.join(run.notes)})")
    if noted:
        names = [*noted.values()]
        have = "has" if len(names) == 1 else "have"
        yield Remark("warning", f"{_count_runs(names)} {have} notes: {_listed(names)}.")


def _test_noise(study: Study, facts: Facts, cells: CellRuns) -> Iterator[Remark]:
    """Whether the test set is large enough, where runs recorded its noise."""
    finals: dict[str, dict[int, Run]] = defaultdict(dict)
    for cell, run in cells:
        if run is not None and run.status == "finished" and cell.role == "final" and _without_parts(run, facts):
            finals[cell.contender][cell.config.seed] = run
    reference = finals.pop(study.reference, {})
    shares = [share for runs in finals.values() if (share := _noise_share(runs, reference, facts)) is not None]
    if not shares:
        return
    share = sorted(shares)[len(shares) // 2]
    noise = f"with other examples a difference would change by {share:.2g} of its standard deviation over seeds"
    if share < ENOUGH_SHARE:
        yield Remark("ok", f"The test set is large enough: {noise}.")
    else:
        more = math.ceil((share / ENOUGH_SHARE) ** 2)
        text = f"The test set is small: {noise}. The verdicts are about these examples; {more} times as many would "
        yield Remark("warning", f"{text}bring this below a third.")


def _without_parts(run: Run, facts: Facts) -> Sequence[float]:
    """The run's results without each part of the test set; empty if it did not record them."""
    recorded = run.facts.get("test_without_parts")
    values = recorded.get(facts.measure.key) if isinstance(recorded, Mapping) else None
    return values if isinstance(values, list) and all(map(is_number, values)) else ()


def _noise_share(runs: Mapping[int, Run], reference: Mapping[int, Run], facts: Facts) -> float | None:
    """The error of a contender's mean gain from the test examples, by the deviation of its gains over the seeds."""
    pairs = [(runs[seed], reference[seed]) for seed in runs if seed in reference]
    parts = [[_without_parts(run, facts) for run in pair] for pair in pairs]
    if len(pairs) < 2 or len({len(values) for pair in parts for values in pair}) != 1:
        return None
    own, others = ([run.final(facts.measure) for run in column] for column in zip(*pairs, strict=True))
    deviation = float(relative_gains(own, others, facts.measure.better).std(ddof=1))
    error = gain_error([pair[0] for pair in parts], [pair[1] for pair in parts], facts.measure.better)
    return error / deviation if deviation > 0 and math.isfinite(error) else None


def _initial_weights(cells: CellRuns) -> Iterator[Remark]:
    """The same seed must mean the same initial weights for every contender."""
    by_seed: dict[int, dict[str, str]] = defaultdict(dict)
    without_checksum: set[str] = set()
    for cell, run in cells:
        if run is not None and run.settled:
            checksum = run.facts.get("initial")
            if checksum is None:
                without_checksum.add(cell.config.identity)
            else:
                by_seed[cell.config.seed].setdefault(str(checksum), cell.contender)
    for seed, starts in sorted(by_seed.items()):
        if len(starts) > 1:
            yield Remark("problem", f"Seed {seed} started from different weights: {_listed(starts.values())} differ.")
    if without_checksum:
        yield Remark("warning", f"{_count_runs(without_checksum)} did not record the initial weights.")
    elif by_seed and all(len(starts) == 1 for starts in by_seed.values()):
        yield Remark("ok", "For each seed, all contenders started from the same weights, bit for bit.")


def _provenance(runs: Sequence[Run]) -> Iterator[Remark]:
    counts = provenance(runs)
    if not counts:
        return
    data = differing(counts, "data")
    if data:
        yield Remark("problem", f"The runs used different data: {_counted(next(iter(data.values())))}.")
    elif "data" in counts:
        yield Remark("ok", f"All runs used the same data ({next(iter(counts['data']))[:12]}).")
    mixed = {
        name: values for part in ("commit", "versions", "machine") for name, values in differing(counts, part).items()
    }
    for name, values in mixed.items():
        yield Remark("warning", f"Runs of one table differ in {name.replace('.', ': ', 1)}: {_counted(values)}.")
    if not mixed:
        yield Remark("ok", "All runs were made with the same versions, commit and hardware.")
    if any(commit.endswith("+") for commit in counts.get("commit", {})):
        yield Remark("warning", "Some runs were made with source files that were changed since their commit.")


def _settings(study: Study) -> Iterator[Remark]:
    if study.settings:
        changed = _listed(f"{name}={value}" for name, value in study.settings.items())
        yield Remark("warning", f"The task's settings are not those of the scale {study.scale}: {changed}.")


def _name(cell: Cell) -> str:
    detail = f"learning rate {cell.config.lr:g}" if cell.role == "search" else f"seed {cell.config.seed}"
    return f"{cell.contender} {cell.role} {detail}"


def _count_runs(items: Any) -> str:
    return f"{len(items)} run{'s' * (len(items) != 1)}"


def _is_or_are(items: Sequence[str]) -> str:
    return "is" if len(items) == 1 else "are"


def _counts(items: Sequence[str]) -> str:
    return "counts" if len(items) == 1 else "count"


def _name_with_reason(cell: Cell, run: Run | None) -> str:
    return f"{_name(cell)} ({run.reason})" if run is not None and run.reason else _name(cell)


def _listed(items: Any) -> str:
    names = list(items)
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return "; ".join(names[:MAX_LISTED]) + more


def _counted(values: Mapping[str, int]) -> str:
    short = {CHECKSUM.sub(r"\1", value): count for value, count in values.items()}
    return _listed(f"{value} ({count})" for value, count in short.items())
