"""The report on a terminal.

    console.print(terminal_table(analysis))

Numbers are never cut. A long name, a long verdict and the title of a column continue on the next line instead. A
terminal of less than eighty columns has no room for the table, and gets a paragraph per row.
"""

from collections.abc import Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from aimopt.lab.analysis.study_analysis import Standing, StudyAnalysis
from aimopt.lab.report import phrasing
from aimopt.lab.report.tables import planned_seeds
from aimopt.lab.report.verdicts import verdict_style
from aimopt.lab.stats.paired import ENOUGH_SEEDS
from aimopt.messages.clean_text import one_line

LEVELS = {"warning": ("!", "yellow"), "problem": ("✗", "red")}
MAX_NAME, MIN_NAME = 34, 12  # columns of a contender's name
VERDICT_WIDTH = 14
TABLE_COLUMNS = 80  # of a terminal with room for the table


def terminal_table(analysis: StudyAnalysis) -> RenderableType:
    """A table with one row per contender, the summary, and the warnings of the audit."""
    title = Text(one_line(f"{phrasing.name_of(analysis)} · {phrasing.circumstances([analysis])}"), style="bold")
    table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    rows = [_row(analysis, standing) for standing in analysis.standings]
    # The widths of numbers are fixed. Only the title of such a column, and the texts at both sides, are broken.
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    measure = one_line(f"{analysis.measure.label} {phrasing.ARROWS[analysis.measure.better]}")
    gain = one_line(f"gain on {analysis.study.reference}")
    table.add_column("contender", min_width=min(MIN_NAME, widths[0]), max_width=MAX_NAME, overflow="fold")
    for head, width, shortest in (
        ("lr", widths[1], 2),
        (measure, widths[2], 10),
        ("seeds", widths[3], 5),
        (gain, widths[4], 8),
    ):
        table.add_column(Text(head), justify="right", width=max(width, shortest), overflow="fold")
    table.add_column("verdict", width=min(VERDICT_WIDTH, max(widths[5], 7)), overflow="fold")
    for row in rows:
        table.add_row(*row)
    notes = [Text(one_line(sentence)) for sentence in phrasing.summary(analysis)]
    for remark in analysis.audit:
        if remark.level in LEVELS:
            sign, colour = LEVELS[remark.level]
            notes.append(Text.assemble((f"{sign} ", colour), one_line(remark.text)))
    return Group(_Results(table, title, ("lr", measure, "seeds", gain, ""), rows), *notes, Text(""))


class _Results:
    """The table, or a paragraph per row if the terminal is too narrow for it."""

    def __init__(self, table: RichTable, title: Text, heads: Sequence[str], rows: Sequence[Sequence[Text]]):
        self.table, self.title, self.heads, self.rows = table, title, heads, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width >= TABLE_COLUMNS:
            yield self.table
            return
        yield self.title
        for name, *cells in self.rows:
            named = [
                Text(f"{head} " if head else "").append(cell)
                for head, cell in zip(self.heads, cells, strict=True)
                if cell
            ]
            yield Text.assemble(name, ": ", Text("; ").join(Text(" ").join(text.split()) for text in named))
        yield Text("")


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
        Text(one_line(standing.label), style=best),
        Text(rate, style="yellow" if standing.edge else ""),
        Text(value, style=best),
        Text(f"{settled}/{planned_seeds(analysis, standing)}"),
        Text(gain),
        Text(verdict, style=verdict_style(verdict).colour),
    ]
