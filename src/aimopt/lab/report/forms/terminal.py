"""The report on a terminal, in a hundred columns."""

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from aimopt.lab.analysis import Findings, Standing
from aimopt.lab.report import words
from aimopt.lab.stats import ENOUGH_SEEDS

TONES = {"better": "green", "worse": "red"}
LEVELS = {"warning": ("!", "yellow"), "problem": ("✗", "red")}


def terminal_table(found: Findings) -> RenderableType:
    """A study: a row a contender, what the summary says, and what the audit finds wrong."""
    title = f"{words.name_of(found)} · scale {found.study.scale} · {words.stamp(found).split(' · ', 2)[-1]}"
    table = RichTable(title=Text(title, style="bold"), title_justify="left", expand=False, pad_edge=False)
    table.add_column("contender", max_width=34, overflow="fold")
    table.add_column("lr", justify="right", no_wrap=True)
    table.add_column(f"{found.measure.label} {words.ARROWS[found.measure.better]}", justify="right", no_wrap=True)
    table.add_column("seeds", justify="right", no_wrap=True)
    table.add_column(f"gain on {found.study.reference}"[:24], justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for standing in found.standings:
        table.add_row(*_row(found, standing))
    notes = [Text(sentence) for sentence in words.summary(found)]
    for remark in found.audit:
        if remark.level in LEVELS:
            sign, colour = LEVELS[remark.level]
            notes.append(Text.assemble((f"{sign} ", colour), remark.text))
    return Group(table, *notes, Text(""))


def _row(found: Findings, standing: Standing) -> list[Text]:
    decimals = words.decimals_of(found)
    best = "bold" if standing.rank == 1 else ""
    spread, difference = standing.spread, standing.difference
    rate = words.general(standing.lr) + (" edge" if standing.edge else "")
    if spread is None:
        value = "–"
    elif spread.diverged:
        value = f"diverged {spread.diverged} of {len(spread.values)}"
    else:
        value = f"{words.number(spread.mean, decimals)} ± {words.number(spread.std, decimals)}"
    settled = sum(outcome.settled for outcome in standing.finals)
    verdict = "reference" if standing.label == found.study.reference else words.short_verdict(difference)
    if difference and difference.too_few_seeds:  # two short lines; the sentences below say it in full
        verdict = f"cannot tell\n{len(difference.differences)} of {ENOUGH_SEEDS} seeds"
    gain = words.signed(difference.mean, decimals) if difference else ""
    return [
        Text(standing.label, style=best),
        Text(rate, style="yellow" if standing.edge else ""),
        Text(value, style=best),
        Text(f"{settled}/{len(found.study.seeds)}"),
        Text(gain),
        Text(verdict, style=TONES.get(verdict, "dim")),
    ]
