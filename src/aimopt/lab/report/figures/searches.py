"""Figures of a search: the score of every trial, and what the search would have found with fewer trials.

learning_rates(analysis, styles)        one small plot per contender, with the chosen rate
tuning_budget(analysis, styles)         the expected best score over the number of trials
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from aimopt.lab.analysis.study_analysis import RunResult, Standing, StudyAnalysis
from aimopt.lab.report import phrasing
from aimopt.lab.report.figures.labels import LineEnd, clipped_names, label_lines, wrapped
from aimopt.lab.report.figures.style import (
    BAD,
    INK,
    LINE,
    MUTED,
    WIDTH,
    DataLine,
    Panel,
    Picture,
    Style,
    new_figure,
    new_figures,
    plain_ticks,
    styled,
    wants_log,
)
from aimopt.lab.stats.tuning_budget import expected_best

Styles = Mapping[str, Style]
PANEL_HEIGHT, BASE_HEIGHT = 1.15, 0.75  # inches


@styled
def learning_rates(analysis: StudyAnalysis, styles: Styles) -> Picture | None:
    """The score of every rate tried, with the chosen one marked: one plot per contender, the others in grey."""
    searched = _searched(analysis)
    scores = [score for s in searched for score in _scores(s).values() if math.isfinite(score)]
    if not scores:
        return None
    columns = min(len(searched), 2 if len(searched) <= 4 else 3)
    height = BASE_HEIGHT + PANEL_HEIGHT * math.ceil(len(searched) / columns)
    figure, axes = new_figures(analysis, (WIDTH, max(2.6, height)), len(searched), columns)
    axes[0].set_xscale("log")
    if wants_log(scores, analysis.score.better):
        axes[0].set_yscale("log")
    worst = max(scores) if analysis.score.better == "lower" else min(scores)
    labels = [standing.label for standing in analysis.standings]
    names = clipped_names([s.label for s in searched], 46 // columns)
    panels = []
    for ax, standing, name in zip(axes, searched, names, strict=True):
        series, style = labels.index(standing.label), styles[standing.label]
        for other in searched:
            if other is not standing and _is_line(other):
                ax.plot(*_finite(other), color=LINE, linewidth=0.8, zorder=1)
        _draw_trials(ax, standing, style, f"series-{series}", worst)
        weight = "bold" if style.emphasized else "normal"
        ax.set_title(
            name, fontsize=8.5, color=style.light, fontweight=weight, loc="left", pad=3, gid=f"series-{series}"
        )
        points = [[rate, score, score, score] for rate, score in zip(*_finite(standing), strict=True)]
        panels.append(Panel(ax, [DataLine(standing.label, series, points)], "learning rate"))
    plain_ticks(axes[0], "x", log=True)
    plain_ticks(axes[0], "y", log=axes[0].get_yscale() == "log")
    axes[0].xaxis.set_major_locator(LogLocator(subs=(1,), numticks=4 if columns > 1 else 9))
    for ax in axes:
        ax.tick_params(labelsize=7.5)
    figure.supylabel(wrapped(_axis_label(analysis), 40), fontsize=9)
    return Picture(
        "rates",
        "Sensitivity to the learning rate",
        f"Mean of the last three values of {analysis.score.label} in the search. {_seeds_of(searched)} A ring marks "
        "the chosen rate, red at the edge of the rates tried; a cross is a diverged run. Grey: the other contenders.",
        f"{analysis.score.label} over the learning rate for {phrasing.listed(s.label for s in searched)}",
        figure,
        panels,
    )


@styled
def tuning_budget(analysis: StudyAnalysis, styles: Styles) -> Picture | None:
    """The expected best score of a search after 1, 2, … of its trials."""
    labels = [standing.label for standing in analysis.standings]
    curves: dict[str, list[list[float]]] = {}
    for standing in _searched(analysis):
        if not all(trial.settled for trial in standing.trials):
            continue  # its best trial may be one that is missing
        best = expected_best(list(_scores(standing).values()), analysis.score.better)
        points = [[k, score, score, score] for k, score in enumerate(best, start=1) if math.isfinite(score)]
        if len(points) > 1:
            curves[standing.label] = points
    if not curves:
        return None
    figure, ax = new_figure(analysis)
    if wants_log([point[1] for points in curves.values() for point in points], analysis.score.better):
        ax.set_yscale("log")
    for label, points in curves.items():
        style = styles[label]
        line: dict[str, Any] = dict(color=style.light, linestyle=style.dash, linewidth=2.1 if style.emphasized else 1.4)
        trials, expected, *_ = zip(*points, strict=True)
        ax.plot(trials, expected, marker=style.marker, markersize=3, gid=f"series-{labels.index(label)}", **line)
    ax.set_xlim(0.8, max(points[-1][0] for points in curves.values()) + 0.2)
    ax.set(xlabel="number of trials", ylabel=wrapped(f"expected best {_axis_label(analysis)}", 40))
    plain_ticks(ax, "x", integer=True)
    plain_ticks(ax, "y", log=ax.get_yscale() == "log")
    label_lines(ax, [LineEnd(k, points[-1][1], styles[k], f"series-{labels.index(k)}") for k, points in curves.items()])
    lines = [DataLine(label, labels.index(label), points) for label, points in curves.items()]
    return Picture(
        "budget",
        "Tuning budget",
        f"The {analysis.score.label} to expect from the best of k trials of the search, drawn at random. A line starts "
        "where k is larger than the number of diverged trials; a line that is flat early needs little tuning.",
        f"Expected best {analysis.score.label} over the number of trials for {phrasing.listed(curves)}",
        figure,
        [Panel(ax, lines, "trials")],
    )


def _searched(analysis: StudyAnalysis) -> list[Standing]:
    return [s for s in analysis.standings if any(trial.settled for trial in s.trials)]


def _axis_label(analysis: StudyAnalysis) -> str:
    return f"{analysis.score.label} {phrasing.ARROWS[analysis.score.better]}"


def _scores(standing: Standing) -> dict[float, float]:
    """The score of every rate tried, lowest rate first: the mean over its tuning seeds, ±∞ if one diverged."""
    by_rate: dict[float, list[float]] = {}
    for trial in sorted(standing.trials, key=lambda trial: trial.lr):
        if trial.settled:
            by_rate.setdefault(trial.lr, []).append(trial.value)
    return {rate: sum(values) / len(values) for rate, values in by_rate.items()}


def _finite(standing: Standing) -> tuple[list[float], list[float]]:
    """The rates with a finite score, and their scores."""
    finite = {rate: score for rate, score in _scores(standing).items() if math.isfinite(score)}
    return list(finite), list(finite.values())


def _is_line(standing: Standing) -> bool:
    """Whether the trials differ in the rate alone: a search on several seeds may vary other options too."""
    return len({trial.seed for trial in standing.trials}) == 1


def _seeds_of(searched: Sequence[Standing]) -> str:
    seeds = sorted({trial.seed for standing in searched for trial in standing.trials})
    if len(seeds) == 1:
        return f"Seed {seeds[0]}."
    return f"Seeds {phrasing.listed(map(str, seeds))}: a small dot per run, a large one per rate tried."


def _draw_trials(ax: Axes, standing: Standing, style: Style, gid: str, worst: float) -> None:
    """Draw the search of one contender; diverged runs at the worst score."""
    rates, scores = _finite(standing)
    line = style.dash if _is_line(standing) else "none"
    ax.plot(rates, scores, color=style.light, linestyle=line, marker=style.marker, markersize=4, linewidth=1.4, gid=gid)
    diverged = [trial.lr for trial in standing.trials if trial.settled and not math.isfinite(trial.value)]
    ax.plot(diverged, [worst] * len(diverged), marker="x", linestyle="none", color=style.light, markersize=5, gid=gid)
    if not _is_line(standing):
        _draw_seeds(ax, [t for t in standing.trials if t.settled and math.isfinite(t.value)], gid)
    ring: dict[str, Any] = dict(marker="o", markerfacecolor="none", markeredgewidth=1.3, markersize=10, zorder=4)
    for rate, score in zip(rates, scores, strict=True):
        if rate == standing.lr:
            ax.plot([rate], [score], markeredgecolor=BAD if standing.edge else INK, gid=gid, **ring)


def _draw_seeds(ax: Axes, trials: Sequence[RunResult], gid: str) -> None:
    rates, scores = [trial.lr for trial in trials], [trial.value for trial in trials]
    ax.plot(rates, scores, marker=".", markersize=2.5, linestyle="none", color=MUTED, gid=gid)
