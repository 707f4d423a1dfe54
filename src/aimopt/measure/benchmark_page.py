"""A benchmark as a web page of its own: one bar per pair of optimizers, with the quartiles of its ratio.

page(rows, machine)      HTML without links or scripts, to be sent or shown in a talk
"""

import html
from collections.abc import Mapping, Sequence
from itertools import groupby

from aimopt import palette
from aimopt.measure.step_benchmark import STREAMING, StepTiming

LONGEST = 1.6  # the ratio at the right end of the scale; longer bars are cut there
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem;
  background: var(--paper); color: var(--ink); }
h1 { margin-bottom: 0; } h2 { margin: 2rem 0 .5rem; }
.note, dl { color: var(--muted); font-size: .9rem; }
table { border-collapse: collapse; width: 100%; background: var(--card); }
th, td { padding: .3rem .6rem; text-align: left; border-bottom: 1px solid var(--line); }
th { font-size: .85rem; color: var(--muted); } td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.scale { width: 40%; min-width: 12rem; }
.track { position: relative; height: 1.1rem; background: var(--shade); }
.track i { position: absolute; top: 0; bottom: 0; left: 0; background: var(--good); }
.track i.slower { background: var(--bad); } .track i.bound { background: var(--muted); }
.track b { position: absolute; top: 45%; height: 2px; background: var(--ink); }
.track u { position: absolute; top: -2px; bottom: -2px; width: 2px; background: var(--ink); }
dt { float: left; clear: left; width: 9rem; } dd { margin-left: 9.5rem; }
"""


def page(rows: Sequence[StepTiming], machine: Mapping[str, str]) -> str:
    """The whole page."""
    sections = [_section(model, list(of_model)) for model, of_model in groupby(rows, key=lambda row: row.model)]
    facts = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in machine.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>The time of an optimizer step</title><style>{palette.css_variables()}{STYLE}</style></head><body>
<h1>The time of an optimizer step</h1>
<p class="note">Our time divided by the other's, round by round: the bar ends at the median, the line spans the
quartiles, and the mark is at 1, where both take the same time. Shorter is faster. <em>Streaming</em> is a loop that
only moves the same bytes.</p>
{"".join(sections)}
<h2>Measured on</h2><dl>{facts}</dl>
</body></html>
"""


def _section(model: str, rows: Sequence[StepTiming]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("ours", "instructions", "other", "ratio", "0 … 1 …", "ms", "its ms"))
    title = f"{html.escape(model)}, {rows[0].parameters / 1e6:.3g} million parameters"
    return f"<h2>{title}</h2><table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, rows))}</tbody></table>"


def _row(row: StepTiming) -> str:
    texts = "".join(f"<td>{html.escape(text)}</td>" for text in (row.ours, row.instruction_set, row.peer))
    low, high = _position(row.ratio.low), _position(row.ratio.high)
    slower = row.ratio.median > 1 and row.peer != STREAMING
    kind = ' class="bound"' if row.peer == STREAMING else ' class="slower"' if slower else ""
    bar = (
        f'<div class="track"><i{kind} style="width:{_position(row.ratio.median):.1f}%"></i>'
        f'<b style="left:{low:.1f}%;width:{high - low:.1f}%"></b><u style="left:{_position(1):.1f}%"></u></div>'
    )
    numbers = "".join(f'<td class="number">{value:.2f}</td>' for value in (row.ours_ms, row.peer_ms))
    return f'<tr>{texts}<td class="number">{row.ratio.median:.2f}</td><td class="scale">{bar}</td>{numbers}</tr>'


def _position(ratio: float) -> float:
    return 100 * min(ratio, LONGEST) / LONGEST
