"""Lines: training and evaluation over the steps, scores over the learning rate, and profiles over tasks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from aimopt.lab.analysis import Across, Curves, Findings
from aimopt.lab.report import words
from aimopt.lab.report.figures.style import (
    BAD,
    INK,
    WIDTH,
    Picture,
    Style,
    new_figure,
    plain_ticks,
    styled,
    wants_log,
)

Styles = Mapping[str, Style]
MANY = 12  # contenders; more lines than that are no picture
SETTLING = 0.05  # of the steps, in which curves fall from where they all began


@styled
def curves(found: Findings, shown: Curves, styles: Styles) -> Picture | None:
    """A number over the steps: means and bands of the seeds."""
    if len(found.standings) > MANY:
        return None
    figure, ax = new_figure(found)
    labels = [standing.label for standing in found.standings]
    lines = []
    for label, curve in shown.by_contender.items():
        style, gid = styles[label], f"series-{labels.index(label)}"
        if not curve.band:
            continue
        steps, means, lows, highs = zip(*curve.band, strict=True)
        front = 3 if label == words.SUBJECT else 2
        ax.fill_between(steps, lows, highs, color=style.light, alpha=0.11, linewidth=0, zorder=front - 1, gid=gid)
        width = 2.1 if label == words.SUBJECT else 1.4
        ax.plot(steps, means, color=style.light, linestyle=style.dash, linewidth=width, zorder=front, gid=gid)
        if found.standing(label).diverged:
            ax.plot(steps[-1:], means[-1:], marker="x", color=BAD, markersize=7, markeredgewidth=2, gid=gid)
        lines.append({"label": label, "series": labels.index(label), "points": [list(point) for point in curve.band]})
    if not lines:
        return None
    _limit(ax, shown)
    ax.set(xlabel="step", ylabel=f"{shown.measure.label} {words.ARROWS[shown.measure.better]}")
    plain_ticks(ax, "x")
    plain_ticks(ax, "y", log=ax.get_yscale() == "log")
    end = " A cross ends a mean of which a seed diverged." if any(s.diverged for s in found.standings) else ""
    title = words.sentence(shown.measure.label)
    return Picture(
        f"curve-{shown.measure.key}",
        title,
        f"Means of the seeds; the bands reach from the lowest to the highest seed.{end}",
        f"{title} over the steps for {words.listed(str(line['label']) for line in lines)}",
        figure,
        lines,
        "step",
    )


def _limit(ax: Axes, shown: Curves) -> None:
    """Leave out the fall of the first steps, in which all differences of the end would vanish."""
    bands = [curve.band for curve in shown.by_contender.values() if curve.band]
    last = max(band[-1].step for band in bands)
    settled = [point for band in bands for point in band if point.step >= SETTLING * last] or [*bands[0]]
    values = [value for point in settled for value in (point.low, point.high)]
    if wants_log(values, shown.measure.better):
        ax.set_yscale("log")
        ax.set_ylim(min(values) / 1.1, max(point.mean for point in settled) * 1.1)
    elif shown.measure.better == "lower":
        room = 0.05 * (max(values) - min(values) or 1)
        ax.set_ylim(min(values) - room, max(point.mean for point in settled) + room)
    ax.set_xlim(0, last)


@styled
def learning_rates(found: Findings, styles: Styles) -> Picture | None:
    """The score of every rate tried, with the chosen one marked."""
    labels = [standing.label for standing in found.standings]
    searched = [s for s in found.standings if any(trial.settled for trial in s.trials)]
    finite = [t.value for s in searched for t in s.trials if t.settled and math.isfinite(t.value)]
    if not finite:
        return None
    figure, ax = new_figure(found)
    ax.set_xscale("log")
    if wants_log(finite, found.score.better):
        ax.set_yscale("log")
    worst = max(finite) if found.score.better == "lower" else min(finite)
    lines = []
    for standing in searched:
        style, gid = styles[standing.label], f"series-{labels.index(standing.label)}"
        good = [(t.lr, t.value) for t in standing.trials if t.settled and math.isfinite(t.value)]
        bad = [t.lr for t in standing.trials if t.settled and not math.isfinite(t.value)]
        front = 3 if standing.label == words.SUBJECT else 2
        line: dict[str, Any] = dict(
            color=style.light, linestyle=style.dash, linewidth=2.1 if front == 3 else 1.4, zorder=front
        )
        ax.plot(*zip(*good, strict=True), marker=style.marker, markersize=4, gid=gid, **line) if good else None
        ax.plot(bad, [worst] * len(bad), marker="x", linestyle="none", color=style.light, markersize=6, gid=gid)
        chosen = [(rate, value) for rate, value in good if rate == standing.lr]
        for rate, value in chosen:
            ring: dict[str, Any] = dict(
                markerfacecolor="none", markeredgecolor=BAD if standing.edge else INK, markeredgewidth=1.3
            )
            ax.plot([rate], [value], marker="o", markersize=11, zorder=4, gid=gid, **ring)
        lines.append({
            "label": standing.label,
            "series": labels.index(standing.label),
            "points": [[rate, value, value, value] for rate, value in good],
        })  # fmt: skip
    ax.set(xlabel="learning rate", ylabel=f"{found.score.label} {words.ARROWS[found.score.better]}")
    plain_ticks(ax, "x", log=True)
    plain_ticks(ax, "y", log=ax.get_yscale() == "log")
    return Picture(
        "rates",
        "Sensitivity to the learning rate",
        f"Mean of the last three values of {found.score.label} in the search, seed {found.study.tuning_seed}. A ring "
        "is the chosen one, red at the edge of the grid; a cross is a run that diverged.",
        f"{found.score.label} over the learning rate for {words.listed(s.label for s in searched)}",
        figure,
        lines,
        "learning rate",
    )


@styled
def profile(over: Across, styles: Styles, stamp: str) -> Picture | None:
    """The share of tasks and seeds on which a contender is within some distance of the best."""
    if not over.profile:
        return None
    figure, ax = new_figure(stamp)
    lines = []
    for i, (label, shares) in enumerate(over.profile.items()):
        style = styles[label]
        width = 2.1 if label == words.SUBJECT else 1.4
        line: dict[str, Any] = dict(color=style.light, linestyle=style.dash, linewidth=width, drawstyle="steps-post")
        ax.plot(over.thresholds, shares, gid=f"series-{i}", **line)
        points = [[x, y, y, y] for x, y in zip(over.thresholds, shares, strict=True)]
        lines.append({"label": label, "series": i, "points": points})
    ax.set(xlabel="distance from the best, in units of the usual one", ylabel="share of tasks and seeds ↑")
    ax.set(xlim=(0, over.thresholds[-1]), ylim=(0, 1.03))
    plain_ticks(ax, "x")
    plain_ticks(ax, "y")
    return Picture(
        "profile",
        "Performance profile",
        "How often a contender is at least so close to the best one, over tasks and seeds. At 0: how often it is the "
        "best. The unit of a task is the median gap of those who are behind.",
        f"Performance profile of {words.listed(over.profile)}",
        figure,
        lines,
        "distance",
        2,
    )


@styled
def ranks(over: Across, styles: Styles, stamp: str) -> Picture:
    """Average ranks, with those on each task."""
    labels: Sequence[str] = list(over.ranks)
    figure, ax = new_figure(stamp, (WIDTH, max(2.2, 1.1 + 0.3 * len(labels))))
    order = list(over.profile) or labels
    for row, label in enumerate(labels):
        style, gid = styles[label], f"series-{order.index(label)}"
        each = [by[label] for by in over.ranks_by_task.values()]
        ax.scatter(each, [row] * len(each), s=14, color=style.light, alpha=0.4, linewidths=0, gid=gid)
        ax.plot([over.ranks[label]], [row], marker=style.marker, markersize=8, color=style.light, gid=gid)
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
        f"Over {len(over.tasks)} tasks; the faint dots are the ranks on each.",
        f"Average ranks of {words.listed(labels)}",
        figure,
    )
