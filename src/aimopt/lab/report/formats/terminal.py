"""The report on a terminal of at least eighty columns.

    console.print(terminal_table(analysis))

Numbers are never cut. A long name, a long verdict and the title of a column continue on the next line instead.
"""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from aimopt.lab.analysis.study_analysis import Standing, StudyAnalysis
from aimopt.lab.report import phrasing
from aimopt.lab.report.tables import planned_seeds
from aimopt.lab.report.verdicts import verdict_style
from aimopt.lab.stats.paired import ENOUGH_SEEDS

LEVELS = {"warning": ("!", "yellow"), "problem": ("✗", "red")}
MAX_NAME, MIN_NAME = 34, 12  # columns of a contender's name
VERDICT_WIDTH = 14


def terminal_table(analysis: StudyAnalysis) -> RenderableType:
    """A table with one row per contender, the summary, and the warnings of the audit."""
    machine = phrasing.stamp(analysis).split(" · ")[2:]  # after the task and its scale
    title = " · ".join([phrasing.name_of(analysis), f"scale {analysis.study.scale}", *machine])
    table = RichTable(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    rows = [_row(analysis, standing) for standing in analysis.standings]
    # The widths of numbers are fixed. Only the title of such a column, and the texts at both sides, are broken.
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    measure = f"{analysis.measure.label} {phrasing.ARROWS[analysis.measure.better]}"
    table.add_column("contender", min_width=min(MIN_NAME, widths[0]), max_width=MAX_NAME, overflow="fold")
    for head, width, shortest in (
        ("lr", widths[1], 2),
        (measure, widths[2], 10),
        ("seeds", widths[3], 5),
        (f"gain on {analysis.study.reference}", widths[4], 8),
    ):
        table.add_column(Text(head), justify="right", width=max(width, shortest), overflow="fold")
    table.add_column("verdict", width=min(VERDICT_WIDTH, max(widths[5], 7)), overflow="fold")
    for row in rows:
        table.add_row(*row)
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
        Text(f"{settled}/{planned_seeds(analysis, standing)}"),
        Text(gain),
        Text(verdict, style=verdict_style(verdict).colour),
    ]
