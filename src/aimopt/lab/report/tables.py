"""The tables of a report as data. The formats only lay them out.

verdicts(analysis).columns              ("Contender", "Gain", "95 % interval", …)
verdicts(analysis).rows[0][-1]          TableCell("better", tone="good")
results([analysis])                     one table per reference, none if there is no result yet
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from aimopt.lab.analysis.study_analysis import RunResult, Standing, StudyAnalysis
from aimopt.lab.report import phrasing
from aimopt.lab.report.verdicts import Tone, verdict_style
from aimopt.lab.stats.bootstrap import Interval
from aimopt.lab.stats.equivalent_steps import EquivalentSteps
from aimopt.lab.stats.paired import ENOUGH_SEEDS, Difference, Spread


@dataclass(frozen=True)
class TableCell:
    """The content of a cell."""

    text: str
    below: str = ""  # a second line
    mark: str = ""  # verdict: ▲, ▼ or =
    emphasis: Literal["", "best", "second"] = ""
    tone: Tone = ""
    contender: str = ""  # set if the cell is the head of a contender's row or column


@dataclass(frozen=True)
class Table:
    """A table. The first cell of a row is its head."""

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]


def results(analyses: Sequence[StudyAnalysis]) -> list[Table]:
    """A table per reference."""
    by_reference: dict[str, list[StudyAnalysis]] = {}
    for analysis in analyses:
        if analysis.ranked:
            by_reference.setdefault(analysis.study.reference, []).append(analysis)
    titled = len(by_reference) > 1
    return [
        _results_against(reference, shown, f"Results, against {reference}" if titled else "Results")
        for reference, shown in by_reference.items()
    ]


def _results_against(reference: str, shown: Sequence[StudyAnalysis], title: str) -> Table:
    """One row per task and one column per contender: mean and standard deviation."""
    labels = list(dict.fromkeys(s.label for analysis in shown for s in analysis.standings))
    rows = []
    for analysis in shown:
        name = TableCell(phrasing.name_of(analysis), below=f"scale {analysis.study.scale}")
        rows.append((name, _metric(analysis), *(_result(analysis, label) for label in labels)))
        rows.append(_median_row(analysis, labels))
        if analysis.study.published is not None:
            rows.append(_published_row(analysis, labels, analysis.study.published.source))
    note = "Mean and ± standard deviation of the seeds, and below their median; best mean bold, second underlined. "
    equal = " = equal;" if any(cell.mark == "=" for row in rows for cell in row) else ""
    note += f"▲ better and ▼ worse than {reference};{equal} no mark: cannot tell."
    return Table("results", title, note, ("Task", "Metric", *labels), tuple(rows))


def _metric(analysis: StudyAnalysis) -> TableCell:
    return TableCell(f"{analysis.measure.label} {phrasing.ARROWS[analysis.measure.better]}")


def _result(analysis: StudyAnalysis, label: str) -> TableCell:
    standing = next((s for s in analysis.standings if s.label == label), None)
    if standing is None:
        return TableCell("", tone="muted")
    planned, decimals = planned_seeds(analysis, standing), phrasing.decimals_of(analysis)
    if standing.spread is None:
        return TableCell("…", below=f"0 of {planned}", tone="muted")
    text, below = _mean_and_std(standing.spread, decimals)
    if len(standing.spread.values) < planned:
        below = f"{below} ({len(standing.spread.values)} of {planned})"
    mark = verdict_style(standing.difference.verdict).mark if standing.difference else ""
    places = sorted({s.rank for s in analysis.ranked if s.rank})
    second = len(places) > 1 and standing.rank == places[1]
    return TableCell(
        text, below=below, mark=mark, emphasis="best" if standing.rank == 1 else "second" if second else ""
    )


def planned_seeds(analysis: StudyAnalysis, standing: Standing) -> int:
    """The number of final runs that a contender has so far, ended or not; before its search ends, that of the study."""
    return len(standing.finals) or len(analysis.study.seeds)


def _median_row(analysis: StudyAnalysis, labels: Sequence[str]) -> tuple[TableCell, ...]:
    """The medians of the seeds, which one exceptional seed does not change."""
    spreads, decimals = {s.label: s.spread for s in analysis.standings}, phrasing.decimals_of(analysis)
    medians = {label: spread.median for label, spread in spreads.items() if spread}
    cells = (phrasing.number(medians[label], decimals) if label in medians else "" for label in labels)
    return TableCell("", tone="muted"), TableCell("median", tone="muted"), *(TableCell(c, tone="muted") for c in cells)


def _mean_and_std(spread: Spread, decimals: int) -> tuple[str, str]:
    if spread.diverged:
        return "diverged", f"{spread.diverged} of {len(spread.values)}"
    return phrasing.number(spread.mean, decimals), f"± {phrasing.number(spread.std, decimals)}"


def _published_row(analysis: StudyAnalysis, labels: Sequence[str], source: str) -> tuple[TableCell, ...]:
    """The published numbers if scale and settings are the published ones; otherwise only their ranking."""
    by_label = {s.label: s.published for s in analysis.standings}
    cells = []
    for label in labels:
        known = by_label.get(label)
        if known is None:
            cells.append(TableCell("", tone="muted"))
        elif analysis.at_published_setting:
            decimals = 0 if known.std >= 100 else 4
            below = f"± {phrasing.number(known.std, decimals)}"
            cells.append(TableCell(phrasing.number(known.mean, decimals), below=below, tone="muted"))
        else:
            cells.append(TableCell(phrasing.ordinal(known.rank), tone="muted"))
    if analysis.at_published_setting:
        return TableCell(f"{source}'s", tone="muted"), TableCell("", tone="muted"), *cells
    return (
        TableCell(f"{source}'s ranking", below="at its own scale", tone="muted"),
        TableCell("rank", tone="muted"),
        *cells,
    )


def verdicts(analysis: StudyAnalysis) -> Table | None:
    """Paired differences from the reference, with their tests and verdicts."""
    compared = [s for s in analysis.standings if s.difference is not None]
    if not compared:
        return None
    decimals, in_looks = phrasing.decimals_of(analysis), bool(analysis.study.looks)
    rows = []
    for standing in compared:
        d = standing.difference
        assert d is not None
        seeds, planned, verdict = len(d.differences), planned_seeds(analysis, standing), d.verdict
        tone = verdict_style(verdict).tone
        if seeds < planned:
            verdict += f", so far ({seeds} of {planned})"
        rows.append((
            TableCell(standing.label, contender=standing.label),
            TableCell(phrasing.signed(d.mean, decimals)),
            TableCell(phrasing.interval(d.low, d.high, decimals) or "–"),
            *(_look_cells(standing, d) if in_looks else _test_cells(d)),
            TableCell(verdict, tone=tone),
        ))  # fmt: skip
    note = f"Gain in {analysis.measure.label} over {analysis.study.reference}, seed by seed; positive is better. "
    note += _rule_in_looks(analysis) if in_looks else RULE
    tests = LOOK_COLUMNS if in_looks else TEST_COLUMNS
    columns = ("Contender", "Gain", "95 % interval", *tests, "Verdict")
    return Table("verdicts", f"Against {analysis.study.reference}", note, columns, tuple(rows))


TEST_COLUMNS = ("Effect d", "p, sign flips", "p, t", "p, Holm")
LOOK_COLUMNS = ("Relative gain, interval of all looks", "Seeds", "Ahead in search")
RULE = (
    "Better or worse: the p of the paired t-test, with Holm's correction, is below 0.05, and the sign flips agree "
    f"as far as so few seeds can; with fewer than {ENOUGH_SEEDS} seeds there is no verdict. "
    "With diverged runs only the signs count."
)


def _test_cells(d: Difference) -> list[TableCell]:
    return [
        TableCell(phrasing.general(d.effect, 2)),
        TableCell(phrasing.probability(d.p)),
        TableCell(phrasing.probability(d.t_p)),
        TableCell(phrasing.probability(d.holm_p if math.isnan(d.t_p) else d.holm_t_p)),
    ]


def _look_cells(standing: Standing, d: Difference) -> list[TableCell]:
    decision, ahead = standing.decision, standing.ahead_in_search
    known = decision is not None and math.isfinite(decision.low) and math.isfinite(decision.high)
    relative = phrasing.interval(100 * decision.low, 100 * decision.high, 2) if decision and known else ""
    return [
        TableCell(f"{relative} %" if relative else "–"),
        TableCell(str(len(d.differences))),
        TableCell(f"{ahead[0]} of {ahead[1]}" if ahead else "–"),
    ]


def _rule_in_looks(analysis: StudyAnalysis) -> str:
    looks, margin = phrasing.listed(map(str, analysis.study.looks)), f"±{100 * analysis.study.margin:g} %"
    return (
        f"Seeds are added until a contender is decided, with looks after {looks}. Better, worse or equal: the interval "
        f"of the relative gain, which holds for all looks and contenders together, is beyond or inside {margin}, the "
        "difference that the task counts. Ahead in search: on how many tuning seeds its best trial is ahead."
    )


def rates(analysis: StudyAnalysis) -> Table | None:
    """Learning rates, and the results with and without tuning."""
    if not analysis.study.searches or not any(s.lr for s in analysis.standings):
        return None
    decimals = phrasing.decimals_of(analysis)
    untuned = any(s.untuned for s in analysis.standings)
    tried = "rates tried" if analysis.study.search else "grid"
    rows = []
    for s in analysis.standings:
        if s.label != analysis.study.reference and not s.trials:
            continue
        flag = f"{s.edge} of the {tried}" if s.edge else f"inside the {tried}" if s.lr and s.trials else ""
        cells = [
            TableCell(s.label, contender=s.label),
            TableCell(phrasing.general(s.lr), below=phrasing.tuned_options(s)),
            TableCell(flag, tone="warning" if s.edge else "muted"),
            _spread_cell(s.spread, decimals),
        ]
        if untuned:
            cells += [TableCell(phrasing.general(s.usual_lr)), _spread_cell(s.untuned_spread, decimals)]
        rows.append(tuple(cells))
    columns = ("Contender", "Chosen rate", "Place", "Tuned", *(("Usual rate", "Untuned") if untuned else ()))
    note = f"{phrasing.sentence(analysis.measure.label)}, mean ± standard deviation"
    note += ", at the chosen rate and at the usual one, without search." if untuned else "."
    return Table(
        "rates", "Learning rates, tuned and untuned" if untuned else "Learning rates", note, columns, tuple(rows)
    )


def _spread_cell(spread: Spread | None, decimals: int) -> TableCell:
    if spread is None:
        return TableCell("–", tone="muted")
    text, below = _mean_and_std(spread, decimals)
    return TableCell(f"{text} {below}")


def cost(analysis: StudyAnalysis) -> Table | None:
    """Steps and time to the target; equivalent steps of the reference; time, memory and optimizer state of a step."""
    shown = [s for s in analysis.standings if s.to_target or s.cost]
    if len(shown) < 2:
        return None
    timed, in_steps = analysis.overhead is not None, any(s.equivalent for s in shown)
    reference = analysis.study.reference
    rows = []
    for s in shown:
        reached = s.to_target
        cells = [
            TableCell(s.label, contender=s.label),
            TableCell("–" if reached is None else "not reached" if reached.steps is None else f"{reached.steps:.0f}"),
            _ratio_cell(reached.ratio_interval if reached else None),
        ]
        if in_steps:
            cells.append(TableCell("") if s.label == reference else saved_cell(s.equivalent))
        if timed:
            c = s.cost
            cells += [
                TableCell("–" if reached is None or reached.seconds is None else phrasing.amount(reached.seconds, "s")),
                _ratio_cell(reached.seconds_interval if reached else None),
                TableCell("1" if s.label == reference else str(c.ratio) if c else "–"),
                TableCell(phrasing.amount(c.peak_bytes, "B") if c else "–"),
                TableCell(f"{c.state_bytes:.3g} B" if c else "–"),
            ]
        rows.append(tuple(cells))
    columns: tuple[str, ...] = ("Contender", "Steps to target", "Ratio")
    if in_steps:
        columns += (f"Fewer steps than {reference}",)
    if timed:
        columns += ("Time to target", "Ratio of times", "Step time ratio", "Peak memory", "State per parameter")
    note = _cost_note(analysis, timed=timed, in_steps=in_steps)
    return Table("cost", "To the target, and cost", note, columns, tuple(rows))


def _cost_note(analysis: StudyAnalysis, *, timed: bool, in_steps: bool) -> str:
    target, reference = analysis.target, analysis.study.reference
    note = f"The target is {target.measure.label} {phrasing.general(target.value, 4)}, " if target else ""
    note += f"the final mean of {reference} on the seeds of a contender. " if target else ""
    note += "Below the ratios, 95 % intervals: seeds resampled."
    if timed:
        note += " The ratio of times is the ratio of steps times the step time ratio, which is measured in turn with "
        note += f"{reference} and has quartiles in brackets; its interval includes both uncertainties."
    if in_steps:
        known = next(s.equivalent for s in analysis.standings if s.equivalent)
        note += f" Fewer steps: {reference} was also trained on whole schedules of {known.shortest} to {known.longest} "
        note += f"steps; a contender saves what {reference} needs more to end at the same {analysis.measure.label}."
    return note


def saved_cell(known: EquivalentSteps | None) -> TableCell:
    """The steps that a contender saves, in percent; beyond the lengths that the reference has, only a bound."""
    if known is None:
        return TableCell("–")
    value, low, high = (phrasing.number(100 * share, 0) for share in known.saved)
    bound = {"above": "more than ", "below": "less than ", "": ""}[known.side]
    low = f"< {low}" if known.steps.low <= known.shortest else low
    high = f"> {high}" if known.steps.high >= known.longest else high
    return TableCell(f"{bound}{value} %", below=f"[{low}, {high}]")


def _ratio_cell(known: Interval | None) -> TableCell:
    if known is None:
        return TableCell("–")
    below = f"[{phrasing.general(known.low)}, {phrasing.general(known.high)}]" if known.low < known.high else ""
    return TableCell(phrasing.general(known.value), below=below)


def returns(analysis: StudyAnalysis) -> Table | None:
    """Interquartile means and probabilities of improvement."""
    shown = [s for s in analysis.standings if s.returns is not None]
    if not shown:
        return None
    decimals = max(0, phrasing.decimals_of(analysis) - 1)

    def row(s: Standing) -> tuple[TableCell, ...]:
        assert s.returns is not None
        means = [s.returns.last, s.returns.best]
        chances = [s.returns.last_improvement, s.returns.best_improvement]
        return (
            TableCell(s.label, contender=s.label),
            *(
                TableCell(phrasing.number(m.value, decimals), below=phrasing.interval(m.low, m.high, decimals))
                for m in means
            ),
            *(
                TableCell(f"{c.value:.2f}", below=phrasing.interval(c.low, c.high, 2)) if c else TableCell("–")
                for c in chances
            ),
        )

    return Table(
        "returns",
        "Interquartile means",
        f"Of {analysis.measure.label}, with 95 % bootstrap intervals; best is the best evaluation in the last tenth of "
        f"the steps. The probability is that a run beats a run of {analysis.study.reference}.",
        ("Contender", "Last", "Best", "P(improves), last", "P(improves), best"),
        tuple(row(s) for s in shown),
    )


def seeds(analysis: StudyAnalysis) -> Table | None:
    """The value of every seed."""
    if not any(s.finals for s in analysis.standings):
        return None
    decimals = phrasing.decimals_of(analysis)
    known = dict.fromkeys(result.seed for s in analysis.standings for result in (*s.finals, *s.untuned))
    rows = []
    for s in analysis.standings:
        for kind, results_of_kind in (
            ("tuned", s.finals),
            ("usual rate", s.untuned if analysis.study.searches else ()),
        ):
            if results_of_kind:
                by_seed = {result.seed: result for result in results_of_kind}
                values = [_result_cell(by_seed.get(seed), decimals) for seed in known]
                rows.append((TableCell(s.label, contender=s.label), TableCell(kind, tone="muted"), *values))
    columns = ("Contender", "Rate", *(f"Seed {seed}" for seed in known))
    return Table("seeds", "Every seed", f"Final {analysis.measure.label}.", columns, tuple(rows))


def _result_cell(result: RunResult | None, decimals: int) -> TableCell:
    if result is None or result.status == "missing":
        return TableCell("…", tone="muted")
    if result.settled:
        return TableCell(phrasing.number(result.value, decimals), tone="bad" if result.status == "diverged" else "")
    return TableCell(result.status, tone="warning")


def provenance(analysis: StudyAnalysis) -> Table | None:
    """Where and with what the runs were made."""
    if not analysis.provenance:
        return None
    rows = [
        (
            TableCell(name.replace(".", ": ", 1)),
            TableCell("; ".join(f"{value} ({count})" for value, count in values.items())),
        )
        for name, values in analysis.provenance.items()
    ]
    return Table("provenance", "Provenance", "In brackets, the number of runs.", ("Fact", "Value"), tuple(rows))
