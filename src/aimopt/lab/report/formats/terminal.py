"""The report on a terminal of at most a hundred columns.

console.print(terminal_table(analysis))
"""

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from aimopt.lab.analysis.study_analysis import Standing, StudyAnalysis
from aimopt.lab.report import phrasing
from aimopt.lab.stats.paired import ENOUGH_SEEDS

TONES = {"better": "green", "worse": "red"}
LEVELS = {"warning": ("!", "yellow"), "problem": ("✗", "red")}


def terminal_table(analysis: StudyAnalysis) -> RenderableType:
    """A table with one row per contender, the summary, and the warnings of the audit."""
    title = (
        f"{phrasing.name_of(analysis)} · scale {analysis.study.scale} · {phrasing.stamp(analysis).split(' · ', 2)[-1]}"
    )
    table = RichTable(title=Text(title, style="bold"), title_justify="left", expand=False, pad_edge=False)
    table.add_column("contender", max_width=34, overflow="fold")
    table.add_column("lr", justify="right", no_wrap=True)
    table.add_column(
        f"{analysis.measure.label} {phrasing.ARROWS[analysis.measure.better]}", justify="right", no_wrap=True
    )
    table.add_column("seeds", justify="right", no_wrap=True)
    table.add_column(f"gain on {analysis.study.reference}"[:24], justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for standing in analysis.standings:
        table.add_row(*_row(analysis, standing))
    notes = [Text(sentence) for sentence in phrasing.summary(analysis)]
    for remark in analysis.audit:
        if remark.level in LEVELS:
            sign, colour = LEVELS[remark.level]
            notes.append(Text.assemble((f"{sign} ", colour), remark.text))
    return Group(table, *notes, Text(""))


def _row(analysis: StudyAnalysis, standing: Standing) -> list[Text]:
    decimals = phrasing.decimals_of(analysis)
    best = "bold" if standing.rank == 1 else ""
    spread, difference = standing.spread, standing.difference
    rate = phrasing.general(standing.lr) + (" edge" if standing.edge else "")
    if spread is None:
        value = "–"
    elif spread.diverged:
        value = f"diverged {spread.diverged} of {len(spread.values)}"
    else:
        value = f"{phrasing.number(spread.mean, decimals)} ± {phrasing.number(spread.std, decimals)}"
    settled = sum(result.settled for result in standing.finals)
    verdict = "reference" if standing.label == analysis.study.reference else phrasing.short_verdict(difference)
    if difference and difference.too_few_seeds:  # two short lines; the summary below says it in full
        verdict = f"cannot tell\n{len(difference.differences)} of {ENOUGH_SEEDS} seeds"
    gain = phrasing.signed(difference.mean, decimals) if difference else ""
    return [
        Text(standing.label, style=best),
        Text(rate, style="yellow" if standing.edge else ""),
        Text(value, style=best),
        Text(f"{settled}/{len(analysis.study.seeds)}"),
        Text(gain),
        Text(verdict, style=TONES.get(verdict, "dim")),
    ]
