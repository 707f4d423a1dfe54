"""Figures of sensitivity studies: a curve over one option, a heat map over two options.

sweep(analysis)             None before there is a result
"""

import math
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from aimopt.lab.analysis.study_analysis import SensitivityGrid, StudyAnalysis, has_order
from aimopt.lab.report import phrasing
from aimopt.lab.report.figures.labels import clipped, wrapped
from aimopt.lab.report.figures.style import ACCENT, CARD, INK, MUTED, WIDTH, Picture, new_figure, plain_ticks, styled
from aimopt.lab.stats.paired import Spread

# The colour scale ends at this multiple of the median distance from the best: very bad values do not hide others.
COLOUR_RANGE = 4
MAX_VALUE = 14  # characters of a value on an axis


@styled
def sweep(analysis: StudyAnalysis) -> Picture | None:
    """The study as a picture; None if there is no finite mean."""
    if analysis.sweep is None:
        return None
    spreads = {point: analysis.standing(label).spread for point, label in analysis.sweep.labels.items()}
    if not any(spread and math.isfinite(spread.mean) for spread in spreads.values()):
        return None
    drawn = _heat_map if len(analysis.sweep.axes) == 2 else _curve
    return drawn(analysis, analysis.sweep, {point: spread for point, spread in spreads.items() if spread})


def _curve(analysis: StudyAnalysis, swept: SensitivityGrid, spreads: dict[tuple[object, ...], Spread]) -> Picture:
    (axis,), (values,) = swept.axes, swept.values
    known = [(values.index(value), spread) for (value,), spread in spreads.items()]
    means = sorted((i, spread.mean) for i, spread in known if math.isfinite(spread.mean))
    figure, ax = new_figure(analysis)
    for i, spread in known:
        seeds = [value for value in spread.values if math.isfinite(value)]
        ax.scatter([i] * len(seeds), seeds, s=12, color=ACCENT.light, alpha=0.5, linewidths=0)
        if math.isfinite(spread.low):
            ax.plot([i, i], [spread.low, spread.high], color=ACCENT.light, linewidth=5, alpha=0.22)
        if spread.diverged:
            note = f"{spread.diverged} of {len(spread.values)} diverged"
            ax.text(i, 0.97, note, transform=ax.get_xaxis_transform(), ha="center", va="top", fontsize=7.5, color=MUTED)
    line = "solid" if has_order(values) else "none"
    ax.plot(*zip(*means, strict=True), color=ACCENT.light, marker="o", linewidth=1.8, linestyle=line)
    reference = analysis.reference.spread
    if reference and math.isfinite(reference.mean):
        ax.axhline(reference.mean, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
    ax.set_xticks(range(len(values)), [_value(value) for value in values])
    ax.set_xlim(-0.4, len(values) - 0.6)
    name = phrasing.axis_name(analysis.study, axis)
    measure = f"{analysis.measure.label} {phrasing.ARROWS[analysis.measure.better]}"
    ax.set(xlabel=wrapped(name), ylabel=wrapped(measure, 40))
    plain_ticks(ax, "y")
    usual = "without it" if swept.default[0] is None else f"{name} = {_value(swept.default[0])}"
    default = f" The dashed line is the default, {usual}."
    return Picture(
        "sweep",
        f"{phrasing.sentence(analysis.measure.label)} over {name}",
        f"One dot per seed, a larger dot for their mean; the bars are 95 % intervals.{default}",
        f"{analysis.measure.label} over {name}",
        figure,
    )


def _heat_map(analysis: StudyAnalysis, swept: SensitivityGrid, spreads: dict[tuple[object, ...], Spread]) -> Picture:
    columns, rows = swept.values
    figure, ax = new_figure(analysis, (WIDTH, max(2.6, 1.3 + 0.42 * len(rows))))
    means = [spread.mean for spread in spreads.values() if math.isfinite(spread.mean)]
    scale = _scale(means, analysis.measure.better == "lower")
    colours = colormaps["cividis"] if analysis.measure.better == "higher" else colormaps["cividis"].reversed()
    for i, column in enumerate(columns):
        for j, row in enumerate(rows):
            spread = spreads.get((column, row))
            text = phrasing.number(spread.mean, phrasing.decimals_of(analysis)) if spread else "…"
            if spread and math.isfinite(spread.mean):
                _cell(ax, i, j, text, colours(float(scale(spread.mean))))
            else:
                ax.text(i, j, text, ha="center", va="center", fontsize=8, color=MUTED)
    if swept.default[0] in columns and swept.default[1] in rows:
        corner = columns.index(swept.default[0]) - 0.5, rows.index(swept.default[1]) - 0.5
        ax.add_patch(Rectangle(corner, 1, 1, facecolor="none", edgecolor=ACCENT.light, linewidth=2.5, zorder=3))
    ax.set_xticks(range(len(columns)), [_value(value) for value in columns])
    ax.set_yticks(range(len(rows)), [_value(value) for value in rows])
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    names = [phrasing.axis_name(analysis.study, axis) for axis in swept.axes]
    ax.set(
        xlim=(-0.5, len(columns) - 0.5),
        ylim=(-0.5, len(rows) - 0.5),
        xlabel=wrapped(names[0]),
        ylabel=wrapped(names[1], 30),
    )
    return Picture(
        "sweep",
        f"{phrasing.sentence(analysis.measure.label)} over {names[0]} and {names[1]}",
        f"Means of {len(analysis.study.seeds)} seeds; brighter is better; the frame marks the default.",
        f"Heat map of {analysis.measure.label} over {names[0]} and {names[1]}",
        figure,
    )


def _cell(ax: Axes, i: int, j: int, text: str, colour: tuple[float, float, float, float]) -> None:
    ax.add_patch(Rectangle((i - 0.5, j - 0.5), 1, 1, facecolor=colour, edgecolor=CARD, linewidth=1.5))
    bright = sum(weight * part for weight, part in zip((0.3, 0.59, 0.11), colour[:3], strict=True))
    ink = "white" if bright < 0.5 else "black"
    ax.text(i, j, text, ha="center", va="center", fontsize=8 if len(text) < 8 else 7, color=ink)


def _scale(means: list[float], lower_is_better: bool) -> Normalize:
    ordered = sorted(means, reverse=not lower_is_better)
    best, median, worst = ordered[0], ordered[len(ordered) // 2], ordered[-1]
    reach = min(abs(worst - best), COLOUR_RANGE * abs(median - best) or abs(worst - best))
    end = best + (reach if lower_is_better else -reach)
    return Normalize(min(best, end), max(best, end), clip=True)


def _value(value: Any) -> str:
    return phrasing.general(value) if has_order([value]) else clipped(str(value), MAX_VALUE)
