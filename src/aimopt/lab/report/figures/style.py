"""Colours, dashes, and the settings of all figures.

    styles_of([analysis])["Other"].light            a colour, the same in the whole report
    figure, ax = new_figure(analysis)               with the stamp of the study below

A contender has one colour in the whole report, and the subject of the studies always the same one. Figures are drawn in
the light shades of `aimopt.palette`; the page replaces them by variables of its style sheet, which also have dark
shades. Dashes and markers repeat the message.
"""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import IO, Any, Literal, NamedTuple, ParamSpec, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from aimopt import palette
from aimopt.lab.analysis.study_analysis import StudyAnalysis
from aimopt.lab.report import phrasing
from aimopt.lab.stats.values import Better
from aimopt.messages.clean_text import printable

Dash = Literal["-"] | tuple[float, tuple[float, ...]]


class Style(NamedTuple):
    """How a contender is drawn."""

    slot: int
    light: str
    dash: Dash
    marker: str

    @property
    def emphasized(self) -> bool:
        """Whether this is the style of the subject, which is drawn in front of the others."""
        return self.slot == 0


DASHES: tuple[Dash, ...] = (
    "-",
    (0, (6, 1.5)),
    (0, (4, 1.2, 1, 1.2)),
    "-",
    (0, (2.2, 1)),
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (3.5, 1)),
    (0, (1.2, 1)),
)
STYLES = tuple(
    Style(slot, colour.light, dash, marker)
    for slot, (colour, dash, marker) in enumerate(zip(palette.SERIES, DASHES, "os^DvPXh", strict=True))
)
ACCENT = STYLES[0]
INK, MUTED, GRID, LINE, CARD, SHADE = (
    colour.light for colour in (palette.INK, palette.MUTED, palette.GRID, palette.LINE, palette.CARD, palette.SHADE)
)
GOOD, BAD = palette.GOOD.light, palette.BAD.light
VARIABLES = {colour.light: name for name, colour in palette.VARIABLES.items()}  # of the style sheet
WIDTH = 5.2  # inches: narrow, so that words stay readable on a phone
SIZE = (WIDTH, 3.4)
STAMP_LINE_LENGTH = 112  # characters per line
RC: dict[Any, Any] = {
    "text.parse_math": False,  # names come from users: a dollar sign is no formula
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
    """Draw with the settings of this module, independent of the user's."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(RC)
            return function(*args, **kwargs)

    return wrapped


def styles_of(analyses: Sequence[StudyAnalysis]) -> dict[str, Style]:
    """A style per contender: the first for the subject, then the first that is free in the contender's studies."""
    subject = phrasing.subject_of(analyses)
    chosen = {} if subject is None else {subject: ACCENT}
    for analysis in sorted(analyses, key=lambda study: -len(study.standings)):  # the largest study decides
        labels = [standing.label for standing in analysis.standings]
        taken = {chosen[label].slot for label in labels if label in chosen}
        for label in labels:
            if label not in chosen:
                free = next((style for style in STYLES[1:] if style.slot not in taken), None)
                chosen[label] = free or STYLES[1 + len(taken) % (len(STYLES) - 1)]
                taken.add(chosen[label].slot)
    return chosen


class DataLine(NamedTuple):
    """The numbers of a line, for the page: its tooltips, and its other axes."""

    label: str
    series: int
    points: Sequence[Sequence[float]]  # x, y, and the low and high end of the band
    short: str = ""  # the name at the end of the line; empty: none
    step_seconds: float | None = None  # the measured time of a step, if x is the step and the time is known
    band: bool = False  # whether its band is always shown


@dataclass
class Panel:
    """Axes with lines whose numbers the page has."""

    axes: Axes
    lines: Sequence[DataLine]
    x_label: str
    y_label: str = ""
    other_axes: bool = False  # whether the reader can choose logarithmic axes, and time instead of steps


@dataclass
class Picture:
    """A figure with its title, caption and description."""

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure
    panels: Sequence[Panel] = ()


def new_figure(analysis_or_stamp: StudyAnalysis | str, size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    """A figure without a window, with the stamp of a study at the bottom."""
    figure, (ax,) = new_figures(analysis_or_stamp, size, 1, 1)
    return figure, ax


def new_figures(
    analysis_or_stamp: StudyAnalysis | str, size: tuple[float, float], count: int, columns: int
) -> tuple[Figure, list[Axes]]:
    """A figure with several axes that share their scales, row by row; the last row may be incomplete."""
    figure = Figure(figsize=size, layout="constrained", dpi=200)
    grid = figure.subplots(math.ceil(count / columns), columns, sharex=True, sharey=True, squeeze=False)
    axes = list(grid.flat)
    for empty in axes[count:]:
        empty.remove()
    for position, ax in enumerate(axes[:count]):
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(color=GRID, linewidth=0.7)
        ax.set_axisbelow(True)
        ax.tick_params(length=2.5, width=0.7, labelbottom=position >= count - columns)
    stamp = analysis_or_stamp if isinstance(analysis_or_stamp, str) else phrasing.stamp(analysis_or_stamp)
    figure.supxlabel(textwrap.fill(stamp, STAMP_LINE_LENGTH), x=0.01, ha="left", fontsize=6, color=MUTED)
    return figure, axes[:count]


def save(picture: Picture, file: IO[Any], **options: Any) -> None:
    """Write a picture to a file. Every text in it is made printable."""
    for text in picture.figure.findobj(Text):
        text.set_text(printable(text.get_text()))
    for axis in (axis for ax in picture.figure.axes for axis in (ax.xaxis, ax.yaxis)):
        formatter = axis.get_major_formatter()
        if isinstance(formatter, FuncFormatter):  # it makes the tick labels when they are drawn
            axis.set_major_formatter(FuncFormatter(_printable_formatter(formatter.func)))
    picture.figure.savefig(file, **options)


def _printable_formatter(write: Callable[..., str]) -> Callable[..., str]:
    return lambda value, position: printable(write(value, position))


def plain_ticks(ax: Axes, axis: Literal["x", "y"], *, log: bool = False, integer: bool = False) -> None:
    """Tick labels as people write numbers."""
    chosen = ax.xaxis if axis == "x" else ax.yaxis
    chosen.set_major_formatter(FuncFormatter(lambda value, _: phrasing.general(value)))
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
    """Whether losses need a logarithmic axis, because differences between small ones would not be visible."""
    return better == "lower" and bool(values) and min(values) > 0 and max(values) / min(values) > 8
