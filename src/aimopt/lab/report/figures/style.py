"""Colours, dashes and the paper of all figures.

A contender has one colour in the whole report, and RADAR always the same. Every colour has a twin for dark pages: the
page replaces the light ones by variables of its style sheet. The eight were found by a search that kept every two of
them apart, in OKLab, for readers with normal, protan, deutan and tritan vision; dashes and markers repeat the message.
"""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import IO, Any, Literal, NamedTuple, ParamSpec, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from aimopt.clean_text import printable
from aimopt.lab.analysis import Findings
from aimopt.lab.optimizers import PAPER
from aimopt.lab.report import words
from aimopt.lab.stats import Better

Dash = Literal["-"] | tuple[float, tuple[float, ...]]


class Style(NamedTuple):
    """How a contender is drawn."""

    slot: int
    light: str
    dark: str
    dash: Dash
    marker: str


STYLES = (
    Style(0, "#d1440c", "#ff7a45", "-", "o"),
    Style(1, "#c4a452", "#f7d12e", (0, (6, 1.5)), "s"),
    Style(2, "#52aef7", "#b6e6ff", (0, (4, 1.2, 1, 1.2)), "^"),
    Style(3, "#262a9a", "#537bff", "-", "D"),
    Style(4, "#2b8470", "#73d2ad", (0, (2.2, 1)), "v"),
    Style(5, "#83134b", "#d90a9e", (0, (5, 1, 1, 1, 1, 1)), "P"),
    Style(6, "#9d3ed2", "#bf9eef", (0, (3.5, 1)), "X"),
    Style(7, "#341a01", "#9b6c49", (0, (1.2, 1)), "h"),
)
ACCENT = STYLES[0]
# What else is drawn, by the variable of the style sheet that replaces it.
INK, MUTED, GRID, CARD, SHADE = "#1d2129", "#6a7080", "#e3e1dc", "#fffefc", "#f1efe9"
GOOD, BAD = "#1b7f4d", "#b3261e"
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    CARD: "--card",
    SHADE: "--shade",
    GOOD: "--good",
    BAD: "--bad",
    **{style.light: f"--series-{style.slot}" for style in STYLES},
}
WIDTH = 5.2  # inches: narrow, so that words stay readable on a phone
SIZE = (WIDTH, 3.4)
STAMP = 112  # letters a line
RC: dict[Any, Any] = {
    "text.parse_math": False,  # names come from users: a dollar is a dollar
    "svg.fonttype": "none",
    "svg.hashsalt": "aimopt",
    "pdf.fonttype": 42,
    "font.size": 9.5,
    "axes.unicode_minus": True,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.7,
    "axes.facecolor": "none",
    "figure.facecolor": CARD,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 8,
}
P = ParamSpec("P")
R = TypeVar("R")


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Draw with this module's settings, whatever the user's are."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(RC)
            return function(*args, **kwargs)

    return wrapped


def styles_of(findings: Sequence[Findings]) -> dict[str, Style]:
    """A style for every contender: the paper's optimizers their own, others the first that their studies leave free."""
    chosen = dict(zip(PAPER, STYLES, strict=True))
    for found in findings:
        labels = [standing.label for standing in found.standings]
        taken = {chosen[label].slot for label in labels if label in chosen}
        for label in labels:
            if label not in chosen:
                free = next((style for style in STYLES[1:] if style.slot not in taken), None)
                chosen[label] = free or STYLES[1 + len(taken) % (len(STYLES) - 1)]
                taken.add(chosen[label].slot)
    return chosen


@dataclass
class Picture:
    """A figure and what a page needs to know of it."""

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure
    # Of the line at a step, for tooltips: {"label", "series", "points": [[x, y, low, high], …]}
    lines: Sequence[Mapping[str, Any]] = ()
    x_label: str = ""
    decimals: int = 4


def new_figure(found: Findings | str, size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    """A figure that needs no window, with the stamp of a study at its foot."""
    figure = Figure(figsize=size, layout="constrained", dpi=200)
    ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color=GRID, linewidth=0.7)
    ax.set_axisbelow(True)
    ax.tick_params(length=2.5, width=0.7)
    text = found if isinstance(found, str) else words.stamp(found)
    figure.supxlabel(textwrap.fill(text, STAMP), x=0.01, ha="left", fontsize=6, color=MUTED)
    return figure, ax


def save(picture: Picture, file: IO[Any], **options: Any) -> None:
    """Write a picture; every text in it is printable."""
    for text in picture.figure.findobj(Text):
        text.set_text(printable(text.get_text()))
    for axis in (axis for ax in picture.figure.axes for axis in (ax.xaxis, ax.yaxis)):
        formatter = axis.get_major_formatter()
        if isinstance(formatter, FuncFormatter):  # it makes the texts of the ticks when they are drawn
            axis.set_major_formatter(FuncFormatter(_printing(formatter.func)))
    picture.figure.savefig(file, **options)


def _printing(write: Callable[..., str]) -> Callable[..., str]:
    return lambda value, position: printable(write(value, position))


def plain_ticks(ax: Axes, axis: Literal["x", "y"], *, log: bool = False, integer: bool = False) -> None:
    """Ticks that read as people write numbers."""
    chosen = ax.xaxis if axis == "x" else ax.yaxis
    chosen.set_major_formatter(FuncFormatter(lambda value, _: words.general(value)))
    chosen.set_minor_formatter(NullFormatter())
    if log:
        low, high = sorted(chosen.get_view_interval())
        span = high / low if low > 0 else math.inf
        subs = (1, 2, 3, 5) if span < 20 else (1, 3) if span < 300 else (1,)
        chosen.set_major_locator(LogLocator(subs=subs, numticks=9))
        ax.tick_params(axis=axis, which="minor", length=0)
    else:
        chosen.set_major_locator(MaxNLocator(6, integer=integer))


def wants_log(values: Sequence[float], better: Better) -> bool:
    """Whether losses spread so far that differences between the small ones would not show."""
    return better == "lower" and bool(values) and min(values) > 0 and max(values) / min(values) > 8
