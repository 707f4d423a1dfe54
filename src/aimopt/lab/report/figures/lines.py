"""Figures with lines: curves over the steps, profiles and ranks across tasks.

curves(analysis, analysis.curves[0], styles)        mean of the training loss per contender
profile(across, styles, stamp), ranks(across, styles, stamp)

Every line has its name at its right end: a legend would be far away on a phone and in print. Only the subject and the
reference show the band of their seeds, because many bands on top of each other show nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from aimopt.lab.analysis.across_tasks import AcrossTasks
from aimopt.lab.analysis.study_analysis import Curves, Point, StudyAnalysis
from aimopt.lab.report import phrasing
from aimopt.lab.report.figures.labels import (
    LINE_NAME_WIDTH,
    LineEnd,
    clipped_names,
    label_lines,
    name_rows,
    wrapped,
)
from aimopt.lab.report.figures.style import (
    BAD,
    WIDTH,
    DataLine,
    Panel,
    Picture,
    Style,
    new_figure,
    plain_ticks,
    styled,
    wants_log,
)

Styles = Mapping[str, Style]
MAX_LINES = 12  # more lines cannot be distinguished
INITIAL_SHARE = 0.05  # of the steps, not shown: all curves fall steeply there


@styled
def curves(analysis: StudyAnalysis, shown: Curves, styles: Styles) -> Picture | None:
    """A number over the steps: the mean of the seeds per contender, and the band of the subject and the reference."""
    bands = {label: shown.by_contender[label].band for label in _chosen(analysis, shown)}
    if not bands:
        return None
    figure, ax = new_figure(analysis)
    labels = [standing.label for standing in analysis.standings]
    with_band = {analysis.study.headline_contender, analysis.study.reference}
    for label, band in bands.items():
        _draw_curve(ax, band, styles[label], labels.index(label), label in with_band)
        if analysis.standing(label).diverged:
            end = dict(marker="x", color=BAD, markersize=7, markeredgewidth=2, gid=f"series-{labels.index(label)}")
            ax.plot([band[-1].step], [band[-1].mean], **end)  # type: ignore[arg-type]
    _limit(ax, list(bands.values()), shown)
    x_label, y_label = "step", f"{shown.measure.label} {phrasing.ARROWS[shown.measure.better]}"
    ax.set(xlabel=x_label, ylabel=wrapped(y_label, 40))
    plain_ticks(ax, "x")
    plain_ticks(ax, "y", log=ax.get_yscale() == "log")
    label_lines(ax, [LineEnd(k, band[-1].mean, styles[k], f"series-{labels.index(k)}") for k, band in bands.items()])
    names = clipped_names(list(bands), LINE_NAME_WIDTH)
    data = [
        DataLine(label, labels.index(label), band, name, _step_seconds(analysis, label), label in with_band)
        for (label, band), name in zip(bands.items(), names, strict=True)
    ]
    title = phrasing.sentence(shown.measure.label)
    return Picture(
        f"curve-{shown.measure.key}",
        title,
        _curve_caption(analysis, list(bands), len(shown.by_contender)),
        f"{title} over the steps for {phrasing.listed(bands)}",
        figure,
        [Panel(ax, data, x_label, y_label, other_axes=True)],
    )


def _chosen(analysis: StudyAnalysis, shown: Curves) -> list[str]:
    """The contenders with a curve; of many, the subject, the reference and the best others."""
    known = [label for label, curve in shown.by_contender.items() if curve.band]
    if len(known) <= MAX_LINES:
        return known
    first = [analysis.study.headline_contender, analysis.study.reference, *(s.label for s in analysis.ranked), *known]
    chosen = list(dict.fromkeys(label for label in first if label in known))[:MAX_LINES]
    return [label for label in known if label in chosen]


def _step_seconds(analysis: StudyAnalysis, label: str) -> float | None:
    cost = analysis.standing(label).cost
    return cost.step_seconds if cost else None


def _draw_curve(ax: Axes, band: Sequence[Point], style: Style, series: int, always_band: bool) -> None:
    steps, means, lows, highs = zip(*band, strict=True)
    front, width = (3, 2.1) if style.emphasized else (2, 1.4)
    gid = f"series-{series}" if always_band else f"band-{series}"
    ax.fill_between(steps, lows, highs, color=style.light, alpha=0.13, linewidth=0, zorder=front - 1, gid=gid)
    line: dict[str, Any] = dict(color=style.light, linestyle=style.dash, linewidth=width, zorder=front)
    ax.plot(steps, means, gid=f"series-{series}", **line)


def _curve_caption(analysis: StudyAnalysis, shown: Sequence[str], count: int) -> str:
    with_band = [label for label in (analysis.study.headline_contender, analysis.study.reference) if label in shown]
    text = "Means of the seeds."
    if with_band:
        names = phrasing.listed(dict.fromkeys(map(str, with_band)))
        text += f" The band of {names} is from the lowest to the highest seed."
    if len(shown) < count:
        text += f" The {len(shown)} best of {count} contenders."
    if any(analysis.standing(label).diverged for label in shown):
        text += " A cross marks the end of a mean where a seed diverged."
    return text


def _limit(ax: Axes, bands: Sequence[Sequence[Point]], shown: Curves) -> None:
    """Leave out the steep first steps; with them, the differences at the end would not be visible."""
    last = max(band[-1].step for band in bands)
    settled = [point for band in bands for point in band if point.step >= INITIAL_SHARE * last] or [*bands[0]]
    values = [value for point in settled for value in (point.low, point.high)]
    if wants_log(values, shown.measure.better):
        ax.set_yscale("log")
        ax.set_ylim(min(values) / 1.1, max(point.mean for point in settled) * 1.1)
    elif shown.measure.better == "lower":
        room = 0.05 * (max(values) - min(values) or 1)
        ax.set_ylim(min(values) - room, max(point.mean for point in settled) + room)
    ax.set_xlim(0, last)


@styled
def profile(across: AcrossTasks, styles: Styles, stamp: str) -> Picture | None:
    """The share of tasks and seeds on which a contender is within a distance of the best one."""
    if not across.profile:
        return None
    figure, ax = new_figure(stamp)
    lines, ends = [], []
    for i, (label, shares) in enumerate(across.profile.items()):
        style = styles[label]
        width = 2.1 if style.emphasized else 1.4
        line: dict[str, Any] = dict(color=style.light, linestyle=style.dash, linewidth=width, drawstyle="steps-post")
        ax.plot(across.thresholds, shares, gid=f"series-{i}", **line)
        band = across.profile_bands[label]
        points = [[*point] for point in zip(across.thresholds, shares, band.low, band.high, strict=True)]
        lines.append(DataLine(label, i, points))
        # Many lines end at 1. The area below a line decides the order of their names.
        ends.append(LineEnd(label, shares[-1] + 1e-3 * sum(shares) / len(shares), style, f"series-{i}"))
    ax.set(xlabel="distance from the best, in median gaps", ylabel="share of tasks and seeds ↑")
    ax.set(xlim=(0, across.thresholds[-1]), ylim=(0, 1.03))
    plain_ticks(ax, "x")
    plain_ticks(ax, "y")
    label_lines(ax, ends)
    return Picture(
        "profile",
        "Performance profile",
        "How often a contender is within this distance of the best one, over tasks and seeds; at 0, how often it is "
        "the best. The unit is the median gap of the contenders that are behind on a task.",
        f"Performance profile of {phrasing.listed(across.profile)}",
        figure,
        [Panel(ax, lines, "distance")],
    )


@styled
def ranks(across: AcrossTasks, styles: Styles, stamp: str) -> Picture:
    """Average ranks, with the rank on each task."""
    labels: Sequence[str] = list(across.ranks)
    figure, ax = new_figure(stamp, (WIDTH, max(2.2, 1.1 + 0.3 * len(labels))))
    name_rows(ax, labels)
    order = list(across.profile) or labels
    for row, label in enumerate(labels):
        style, gid = styles[label], f"series-{order.index(label)}"
        ranks_of_label = [task_ranks[label] for task_ranks in across.ranks_by_task.values()]
        ax.scatter(
            ranks_of_label, [row] * len(ranks_of_label), s=14, color=style.light, alpha=0.4, linewidths=0, gid=gid
        )
        known = across.rank_intervals[label]
        ax.plot([known.low, known.high], [row, row], color=style.light, linewidth=1.4, gid=gid)
        ax.plot([across.ranks[label]], [row], marker=style.marker, markersize=8, color=style.light, gid=gid)
    ax.set_xlim(0.7, len(labels) + 0.3)
    ax.set_xlabel("rank by the mean ↓")
    plain_ticks(ax, "x", integer=True)
    return Picture(
        "ranks",
        "Average rank",
        f"Over {len(across.tasks)} tasks, with the 95 % interval if the seeds of each task are resampled; the faint "
        "dots are the ranks on each task.",
        f"Average ranks of {phrasing.listed(labels)}",
        figure,
    )
