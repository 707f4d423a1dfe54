"""Names in figures: short enough for their place, and beside the lines that they name.

    clipped("Mine(momentum=0.95, decay=0.01)", 16)          "Mine(mom…y=0.01)"
    clipped("Mine(tune='beta1')", 16)                       "Mine, β1 tuned"
    name_rows(ax, labels)                                   one wrapped tick label per row
    label_lines(ax, [LineEnd("Mine", 0.31, style, "series-0")])     names at the right end of their lines

A name can be as long as a user likes, for example with all options of an optimizer. A figure shows its beginning and
its end; tables, tooltips and descriptions have the whole name. Otherwise the names would leave no room for the axes.
"""

import itertools
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from aimopt.lab.report.figures.style import MUTED, Style
from aimopt.messages.clean_text import printable

ROW_WIDTH, ROW_LINES = 24, 2  # characters per line, and lines, of the name of a row
REFERENCE_WIDTH = 24  # characters of the name of the reference in the label of an axis
LINE_NAME_WIDTH = 18  # characters of a name at the end of a line
LINE_NAME_SIZE = 8.0  # points
SENTENCE_WIDTH = 52  # characters per line of a title or an axis label
TUNED = re.compile(r"\(tune='(\w+)'\)$")  # a contender of which one option is searched besides its learning rate


class LineEnd(NamedTuple):
    """A line that gets its name at its right end."""

    label: str
    y: float  # where the line ends, in the units of the axis
    style: Style
    gid: str


def clipped(name: str, width: int) -> str:
    """A name of at most this many characters: in other words where there are some, else its beginning and its end."""
    name = printable(name)
    if len(name) <= width:
        return name
    if tuned := TUNED.search(name):
        name = f"{name[: tuned.start()]}, {tuned[1].replace('beta', 'β').replace('_', ' ')} tuned"
        if len(name) <= width:
            return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def clipped_names(names: Sequence[str], width: int) -> list[str]:
    """Names of at most this many characters. Different names stay different: equal ones get a number."""
    shown = list[str]()
    for name in names:
        text, count = clipped(name, width), 1
        while text in shown:
            count += 1
            text = f"{clipped(name, width - 4)} ({count})"
        shown.append(text)
    return shown


def wrapped(text: str, width: int = SENTENCE_WIDTH, lines: int = 3) -> str:
    """A text in lines of at most this many characters; the end is left out if it needs more lines."""
    return "\n".join(textwrap.wrap(printable(text), width, max_lines=lines, placeholder=" …") or [""])


def row_names(labels: Sequence[str]) -> list[str]:
    """The names of rows, in two lines where one is too short."""
    return [_in_lines(name) for name in clipped_names(labels, ROW_WIDTH * ROW_LINES)]


def _in_lines(name: str) -> str:
    """A name in as few lines as possible, broken after a comma or a bracket if there is one."""
    if len(name) <= ROW_WIDTH:
        return name
    breaks = [i + 1 for i, character in enumerate(name) if character in ",( " and len(name) - i - 1 <= ROW_WIDTH]
    place = next((i for i in reversed(breaks) if i <= ROW_WIDTH), ROW_WIDTH)
    return f"{name[:place].rstrip()}\n{name[place:].lstrip()}"


def name_rows(ax: Axes, labels: Sequence[str]) -> None:
    """Write the names of the rows 0, 1, … at the left, the first on top."""
    names = row_names(labels)
    ax.set_ylim(len(labels) - 0.45, -0.55)
    ax.set_yticks(range(len(labels)), names)
    ax.tick_params(axis="y", length=0, labelsize=8 if any("\n" in name for name in names) else 9)
    ax.grid(visible=False, axis="y")
    ax.spines["left"].set_visible(False)


def label_lines(ax: Axes, ends: Sequence[LineEnd]) -> None:
    """Write names at the right of the axes, at the heights of their lines, and apart from each other."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    height = 72 * figure.get_figheight() * 0.72  # of the axes in points, about: the layout is not known yet
    names = clipped_names([end.label for end in ends], LINE_NAME_WIDTH)
    transform = ax.transData + ax.transAxes.inverted()
    x = ax.get_xlim()[1]
    wanted = [min(1.0, max(0.0, float(transform.transform((x, end.y))[1]))) for end in ends]
    for end, name, at, y in zip(ends, names, wanted, apart(wanted, 1.25 * LINE_NAME_SIZE / height), strict=True):
        common: dict[str, Any] = dict(transform=ax.transAxes, clip_on=False, gid=end.gid, color=end.style.light)
        ax.plot([1.0, 1.025], [at, y], linewidth=0.7, **common)
        weight = "bold" if end.style.emphasized else "normal"
        ax.text(1.035, y, name, va="center", fontsize=LINE_NAME_SIZE, fontweight=weight, **common)


def apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Positions in [0, 1] near the wanted ones, in the same order and at least a gap apart if there is room."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = list(wanted)
    for below, i in itertools.pairwise(order):  # upwards
        placed[i] = max(placed[i], placed[below] + gap)
    if order:
        placed[order[-1]] = min(placed[order[-1]], 1.0)
    for above, i in itertools.pairwise(reversed(order)):  # downwards, from the upper end
        placed[i] = min(placed[i], placed[above] - gap)
    return placed


def label_sides(ax: Axes, left: str, right: str) -> None:
    """Write above the axes what its two sides mean."""
    common: dict[str, Any] = dict(transform=ax.transAxes, va="bottom", fontsize=8, color=MUTED)
    ax.text(0, 1.01, left, ha="left", **common)
    ax.text(1, 1.01, right, ha="right", **common)
