"""Figures with lines: curves over the steps, scores over the learning rate, profiles and ranks across tasks.

curves(analysis, analysis.curves[0], styles)        mean and band of the training loss per contender
learning_rates(analysis, styles)                    the search, with the chosen rates
profile(across, styles, stamp), ranks(across, styles, stamp)
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from aimopt.lab.analysis.across_tasks import AcrossTasks
from aimopt.lab.analysis.study_analysis import Curves, Standing, StudyAnalysis
from aimopt.lab.report import phrasing
from aimopt.lab.report.figures.style import BAD, INK, WIDTH, Picture, Style, new_figure, plain_ticks, styled, wants_log

Styles = Mapping[str, Style]
MAX_CONTENDERS = 12  # more lines cannot be distinguished
INITIAL_SHARE = 0.05  # of the steps, not shown: all curves fall steeply there


@styled
def curves(analysis: StudyAnalysis, shown: Curves, styles: Styles) -> Picture | None:
    """A number over the steps: mean and band of the seeds per contender."""
    if len(analysis.standings) > MAX_CONTENDERS:
        return None
    figure, ax = new_figure(analysis)
    labels = [standing.label for standing in analysis.standings]
    lines = []
    for label, curve in shown.by_contender.items():
        style, gid = styles[label], f"series-{labels.index(label)}"
        if not curve.band:
            continue
        steps, means, lows, highs = zip(*curve.band, strict=True)
        front = 3 if style.emphasized else 2
        ax.fill_between(steps, lows, highs, color=style.light, alpha=0.11, linewidth=0, zorder=front - 1, gid=gid)
        width = 2.1 if style.emphasized else 1.4
        ax.plot(steps, means, color=style.light, linestyle=style.dash, linewidth=width, zorder=front, gid=gid)
        if analysis.standing(label).diverged:
            ax.plot(steps[-1:], means[-1:], marker="x", color=BAD, markersize=7, markeredgewidth=2, gid=gid)
        lines.append({"label": label, "series": labels.index(label), "points": [list(point) for point in curve.band]})
    if not lines:
        return None
    _limit(ax, shown)
    ax.set(xlabel="step", ylabel=f"{shown.measure.label} {phrasing.ARROWS[shown.measure.better]}")
    plain_ticks(ax, "x")
    plain_ticks(ax, "y", log=ax.get_yscale() == "log")
    end = (
        " A cross marks the end of a mean where a seed diverged." if any(s.diverged for s in analysis.standings) else ""
    )
    title = phrasing.sentence(shown.measure.label)
    return Picture(
        f"curve-{shown.measure.key}",
        title,
        f"Means of the seeds; the bands show the lowest and the highest seed.{end}",
        f"{title} over the steps for {phrasing.listed(str(line['label']) for line in lines)}",
        figure,
        lines,
        "step",
    )


def _limit(ax: Axes, shown: Curves) -> None:
    """Leave out the steep first steps; with them, the differences at the end would not be visible."""
    bands = [curve.band for curve in shown.by_contender.values() if curve.band]
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
def learning_rates(analysis: StudyAnalysis, styles: Styles) -> Picture | None:
    """The score of every rate tried, with the chosen one marked."""
    searched = [s for s in analysis.standings if any(trial.settled for trial in s.trials)]
    scores = [trial.value for s in searched for trial in s.trials if trial.settled and math.isfinite(trial.value)]
    if not scores:
        return None
    figure, ax = new_figure(analysis)
    ax.set_xscale("log")
    if wants_log(scores, analysis.score.better):
        ax.set_yscale("log")
    worst = max(scores) if analysis.score.better == "lower" else min(scores)
    labels = [standing.label for standing in analysis.standings]
    lines = []
    for standing in searched:
        series = labels.index(standing.label)
        points = _draw_trials(ax, standing, styles[standing.label], f"series-{series}", worst)
        points_with_band = [[rate, score, score, score] for rate, score in points]
        lines.append({"label": standing.label, "series": series, "points": points_with_band})
    ax.set(xlabel="learning rate", ylabel=f"{analysis.score.label} {phrasing.ARROWS[analysis.score.better]}")
    plain_ticks(ax, "x", log=True)
    plain_ticks(ax, "y", log=ax.get_yscale() == "log")
    return Picture(
        "rates",
        "Sensitivity to the learning rate",
        f"Mean of the last three values of {analysis.score.label} in the search, seed {analysis.study.tuning_seed}. "
        "A ring marks the chosen rate, red at the edge of the grid; a cross is a diverged run.",
        f"{analysis.score.label} over the learning rate for {phrasing.listed(s.label for s in searched)}",
        figure,
        lines,
        "learning rate",
    )


def _draw_trials(ax: Axes, standing: Standing, style: Style, gid: str, worst: float) -> list[tuple[float, float]]:
    """Draw the search of one contender; diverged runs at the worst score. Returns the finite points."""
    points = [(trial.lr, trial.value) for trial in standing.trials if trial.settled and math.isfinite(trial.value)]
    diverged = [trial.lr for trial in standing.trials if trial.settled and not math.isfinite(trial.value)]
    width, front = (2.1, 3) if style.emphasized else (1.4, 2)
    line: dict[str, Any] = dict(color=style.light, linestyle=style.dash, linewidth=width, zorder=front)
    if points:
        ax.plot(*zip(*points, strict=True), marker=style.marker, markersize=4, gid=gid, **line)
    ax.plot(diverged, [worst] * len(diverged), marker="x", linestyle="none", color=style.light, markersize=6, gid=gid)
    ring: dict[str, Any] = dict(markerfacecolor="none", markeredgewidth=1.3, markersize=11)
    for rate, score in points:
        if rate == standing.lr:
            colour = BAD if standing.edge else INK
            ax.plot([rate], [score], marker="o", markeredgecolor=colour, zorder=4, gid=gid, **ring)
    return points


@styled
def profile(across: AcrossTasks, styles: Styles, stamp: str) -> Picture | None:
    """The share of tasks and seeds on which a contender is within a distance of the best one."""
    if not across.profile:
        return None
    figure, ax = new_figure(stamp)
    lines = []
    for i, (label, shares) in enumerate(across.profile.items()):
        style = styles[label]
        width = 2.1 if style.emphasized else 1.4
        line: dict[str, Any] = dict(color=style.light, linestyle=style.dash, linewidth=width, drawstyle="steps-post")
        ax.plot(across.thresholds, shares, gid=f"series-{i}", **line)
        band = across.profile_bands[label]
        points = [[*point] for point in zip(across.thresholds, shares, band.low, band.high, strict=True)]
        lines.append({"label": label, "series": i, "points": points})
    ax.set(xlabel="distance from the best, in median gaps", ylabel="share of tasks and seeds ↑")
    ax.set(xlim=(0, across.thresholds[-1]), ylim=(0, 1.03))
    plain_ticks(ax, "x")
    plain_ticks(ax, "y")
    return Picture(
        "profile",
        "Performance profile",
        "How often a contender is within this distance of the best one, over tasks and seeds; at 0, how often it is "
        "the best. The unit is the median gap of the contenders that are behind on a task.",
        f"Performance profile of {phrasing.listed(across.profile)}",
        figure,
        lines,
        "distance",
    )


@styled
def ranks(across: AcrossTasks, styles: Styles, stamp: str) -> Picture:
    """Average ranks, with the rank on each task."""
    labels: Sequence[str] = list(across.ranks)
    figure, ax = new_figure(stamp, (WIDTH, max(2.2, 1.1 + 0.3 * len(labels))))
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
    ax.set_ylim(len(labels) - 0.45, -0.55)
    ax.set_yticks(range(len(labels)), labels)
    ax.set_xlim(0.7, len(labels) + 0.3)
    ax.set_xlabel("rank by the mean ↓")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    plain_ticks(ax, "x", integer=True)
    return Picture(
        "ranks",
        "Average rank",
        f"Over {len(across.tasks)} tasks, with the 95 % interval if the seeds of each task are resampled; the faint "
        "dots are the ranks on each task.",
        f"Average ranks of {phrasing.listed(labels)}",
        figure,
    )
