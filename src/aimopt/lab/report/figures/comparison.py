"""Figures with one row per contender: final values, paired differences, time to a target, costs, returns.

differences(analysis, styles)           None if no contender has a result on a seed of the reference
final_values(analysis, styles).figure   a matplotlib figure
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aimopt.lab.analysis.study_analysis import Standing, StudyAnalysis
from aimopt.lab.report import phrasing
from aimopt.lab.report.figures.labels import REFERENCE_WIDTH, clipped, label_sides, name_rows, wrapped
from aimopt.lab.report.figures.style import (
    BAD,
    CARD,
    GOOD,
    INK,
    MUTED,
    SHADE,
    WIDTH,
    Picture,
    Style,
    new_figure,
    plain_ticks,
    styled,
    wants_log,
)
from aimopt.lab.report.verdicts import shortened, verdict_kind
from aimopt.lab.stats.paired import Difference, Spread

Styles = Mapping[str, Style]
BASE_HEIGHT, ROW_HEIGHT = 1.1, 0.3  # inches


def _row_figure(analysis: StudyAnalysis, labels: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with one row per contender, the first one on top."""
    figure, ax = new_figure(analysis, (WIDTH, max(2.2, BASE_HEIGHT + ROW_HEIGHT * len(labels))))
    name_rows(ax, labels)
    return figure, ax


def _series(analysis: StudyAnalysis, standing: Standing) -> str:
    return f"series-{[s.label for s in analysis.standings].index(standing.label)}"


@styled
def final_values(analysis: StudyAnalysis, styles: Styles) -> Picture | None:
    """The seeds of every contender, their mean and its interval; below, hollow, at the usual learning rate."""
    shown = analysis.ranked
    if not shown:
        return None
    figure, ax = _row_figure(analysis, [s.label for s in shown])
    with_untuned = analysis.study.searches and any(s.untuned_spread for s in shown)
    spreads = [spread for s in shown for spread in (s.spread, s.untuned_spread if with_untuned else None) if spread]
    finite = [value for spread in spreads for value in spread.values if math.isfinite(value)]
    if wants_log(finite, analysis.measure.better):
        ax.set_xscale("log")
    offset = 0.17 if with_untuned else 0.0
    for row, standing in enumerate(shown):
        gid, style = _series(analysis, standing), styles[standing.label]
        if standing.spread:
            _draw_spread(ax, standing.spread, row - offset, style.light, style.light, gid)
        if with_untuned and standing.untuned_spread:
            _draw_spread(ax, standing.untuned_spread, row + offset, style.light, CARD, gid)
    ax.set_xlabel(wrapped(f"{analysis.measure.label} {phrasing.ARROWS[analysis.measure.better]}"))
    plain_ticks(ax, "x", log=ax.get_xscale() == "log")
    hollow = " Hollow: at the usual learning rate, without search." if with_untuned else ""
    return Picture(
        "final",
        f"Final {analysis.measure.label}",
        f"One dot per seed; the bar is their mean, the band its 95 % interval.{hollow} The best mean is on top.",
        f"Final {analysis.measure.label} of {phrasing.listed(s.label for s in shown)}, one dot per seed",
        figure,
    )


def _draw_spread(ax: Axes, spread: Spread, y: float, colour: str, face: str, gid: str) -> None:
    """The interval of the mean as a band, the seeds as dots, the mean as a bar; diverged seeds as text."""
    values = [value for value in spread.values if math.isfinite(value)]
    if math.isfinite(spread.low):
        ax.plot([spread.low, spread.high], [y, y], color=colour, linewidth=5, alpha=0.25, gid=gid)
    ax.scatter(values, [y] * len(values), s=13, color=face, edgecolors=colour, linewidths=0.8, gid=gid)
    if math.isfinite(spread.mean):
        ax.plot([spread.mean], [y], marker="|", markersize=11, markeredgewidth=2, color=colour, gid=gid)
    if spread.diverged:
        note = f"{spread.diverged} of {len(spread.values)} diverged"
        ax.text(0.995, y, note, transform=ax.get_yaxis_transform(), ha="right", va="center", fontsize=7.5, gid=gid)


@styled
def differences(analysis: StudyAnalysis, styles: Styles) -> Picture | None:
    """The paired differences from the reference, one dot per seed, the interval of their mean, and the verdict."""
    shown = [s for s in analysis.standings if s.difference is not None]
    if not shown:
        return None
    shown.sort(key=lambda s: -s.difference.mean if s.difference and not math.isnan(s.difference.mean) else math.inf)
    figure, ax = _row_figure(analysis, [s.label for s in shown])
    for row, standing in enumerate(shown):
        assert standing.difference is not None
        _draw_difference(ax, standing.difference, row, styles[standing.label], _series(analysis, standing))
    centre_on_zero(ax)
    margin, band = margin_of(analysis), ""
    if margin:
        band = f" In the dark band around 0, ±{100 * analysis.study.margin:g} %, contenders count as equal."
        ax.axvspan(-margin, margin, color=MUTED, alpha=0.16, zorder=0.5, linewidth=0)
    reference = analysis.study.reference
    ax.set_xlabel(wrapped(f"gain in {analysis.measure.label} over {clipped(reference, REFERENCE_WIDTH)}"))
    plain_ticks(ax, "x")
    return Picture(
        "differences",
        f"Paired difference from {reference}",
        "One dot per seed, with the same initial weights and order of the data. The line is the 95 % interval of the "
        f"mean. A filled marker is a verdict; a hollow one means that these seeds cannot tell.{band}",
        f"Paired differences in {analysis.measure.label} of {phrasing.listed(s.label for s in shown)} from {reference}",
        figure,
    )


def margin_of(analysis: StudyAnalysis) -> float:
    """The difference that counts, in the units of the measure; 0 without looks. The task states it as a ratio."""
    spread = analysis.reference.spread
    known = analysis.study.looks and spread is not None and math.isfinite(spread.mean)
    return analysis.study.margin * abs(spread.mean) if known and spread else 0.0


def _draw_difference(ax: Axes, difference: Difference, row: int, style: Style, gid: str) -> None:
    finite = [d for d in difference.differences if math.isfinite(d)]
    ax.scatter(finite, [row + 0.19] * len(finite), s=10, color=style.light, alpha=0.55, linewidths=0, gid=gid)
    if math.isfinite(difference.low):
        ax.plot([difference.low, difference.high], [row - 0.07] * 2, color=style.light, linewidth=2, gid=gid)
    if math.isfinite(difference.mean):
        sure = verdict_kind(difference.verdict) != "unsure"
        marks: dict[str, Any] = dict(markerfacecolor=style.light if sure else CARD, markeredgecolor=style.light)
        ax.plot(
            [difference.mean], [row - 0.07], marker=style.marker, markersize=7, markeredgewidth=1.4, gid=gid, **marks
        )
    note_verdict(ax, row, difference, gid)
    if len(finite) < len(difference.differences):
        note = f"{len(difference.differences) - len(finite)} decided by divergence"
        ax.text(0.995, row, note, transform=ax.get_yaxis_transform(), ha="right", va="center", fontsize=7.5, gid=gid)


def note_verdict(ax: Axes, row: float, difference: Difference, gid: str) -> None:
    """Write a verdict and its number of seeds at the right of a row."""
    kind = verdict_kind(difference.verdict)
    colour = {"better": GOOD, "worse": BAD}.get(kind, MUTED)
    verdict = "cannot tell" if difference.too_few_seeds else shortened(difference.verdict)
    seeds = phrasing.count_seeds(len(difference.differences))
    place: dict[str, Any] = dict(transform=ax.get_yaxis_transform(), clip_on=False, gid=gid)
    ax.text(1.02, row + 0.08, verdict, va="bottom", fontsize=8.5, color=colour, **place)
    ax.text(1.02, row + 0.12, seeds, va="top", fontsize=6.5, color=MUTED, **place)


def centre_on_zero(ax: Axes) -> None:
    """Put zero in the middle, and shade the side of the losses."""
    ax.axvline(0, color=INK, linewidth=0.9, zorder=1)
    left, right = ax.get_xlim()
    reach = max(abs(left), abs(right))
    ax.set_xlim(-reach, reach)
    ax.axvspan(-reach, 0, color=SHADE, zorder=0, linewidth=0)
    label_sides(ax, "← worse", "better →")


@styled
def to_target(analysis: StudyAnalysis, styles: Styles) -> Picture | None:
    """Steps, and seconds if they were measured, to the final value of the reference, as ratios."""
    shown = [s for s in analysis.standings if s.to_target is not None]
    reference = analysis.study.reference
    if analysis.target is None or len(shown) < 2:
        return None
    shown.sort(key=lambda s: s.to_target.ratio if s.to_target and s.to_target.ratio is not None else math.inf)
    figure, ax = _row_figure(analysis, [s.label for s in shown])
    timed = any(s.to_target and s.to_target.seconds_ratio is not None for s in shown)
    for row, standing in enumerate(shown):
        gid, style, reached = _series(analysis, standing), styles[standing.label], standing.to_target
        assert reached is not None
        if reached.ratio is None:
            options: dict[str, Any] = dict(
                transform=ax.get_yaxis_transform(), ha="right", va="center", fontsize=7.5, color=MUTED
            )
            ax.text(0.995, row, "not reached", gid=gid, **options)
            continue
        ax.plot([1, reached.ratio], [row, row], color=style.light, linewidth=2, alpha=0.5, gid=gid)
        ax.plot([reached.ratio], [row], marker=style.marker, markersize=7, color=style.light, gid=gid)
        if reached.ratio_interval is not None and math.isfinite(reached.ratio_interval.high):
            ax.plot(reached.ratio_interval[1:], [row, row], color=style.light, linewidth=1, gid=gid)
        if reached.seconds_ratio is not None:
            hollow: dict[str, Any] = dict(markerfacecolor=CARD, markeredgecolor=style.light, markeredgewidth=1.4)
            ax.plot([reached.seconds_ratio], [row], marker=style.marker, markersize=7, gid=gid, **hollow)
    ax.axvline(1, color=INK, linewidth=0.9, zorder=1)
    left, right = ax.get_xlim()
    room = 0.3 * (right - left) if any(s.to_target and s.to_target.ratio is None for s in shown) else 0
    ax.set_xlim(min(left, 0.9), max(right + room, 1.1))
    label_sides(ax, "← sooner", "later →")
    ax.set_xlabel(wrapped(f"ratio to {clipped(reference, REFERENCE_WIDTH)}"))
    plain_ticks(ax, "x")
    target = phrasing.general(analysis.target.value, 4)
    hollow_means = " Filled: steps, with the 95 % interval over seeds; hollow: time." if timed else ""
    return Picture(
        "target",
        f"How soon {analysis.target.measure.label} {target} is reached",
        f"The target is the final mean of {reference}. All contenders use the same schedule, so a ratio is valid for "
        f"this length of training only.{hollow_means}",
        f"Steps to {analysis.target.measure.label} {target} as ratios to {reference}",
        figure,
    )


@styled
def overhead(analysis: StudyAnalysis, styles: Styles) -> Picture | None:
    """The time of a training step relative to the reference."""
    shown = [s for s in analysis.standings if s.cost is not None]
    if not shown:
        return None
    figure, ax = _row_figure(analysis, [s.label for s in shown])
    for row, standing in enumerate(shown):
        gid, style, cost = _series(analysis, standing), styles[standing.label], standing.cost
        assert cost is not None
        median, low, high = cost.ratio
        ax.plot([low, high], [row, row], color=style.light, linewidth=5, alpha=0.3, gid=gid)
        ax.plot([median], [row], marker=style.marker, markersize=7, color=style.light, gid=gid)
    ax.axvline(1, color=INK, linewidth=0.9, zorder=1)
    ax.set_xlabel(
        wrapped(f"time of a whole training step, ratio to {clipped(analysis.study.reference, REFERENCE_WIDTH)} ↓")
    )
    plain_ticks(ax, "x")
    return Picture(
        "overhead",
        "Cost of a training step",
        "Medians and quartiles of paired ratios, measured in turn in one process without other runs. "
        f"{analysis.study.reference} against itself shows the noise.",
        f"Time of a training step of {phrasing.listed(s.label for s in shown)} as ratios to {analysis.study.reference}",
        figure,
    )


@styled
def improvement(analysis: StudyAnalysis, styles: Styles) -> Picture | None:
    """The probability that a run beats a run of the reference."""
    shown = [s for s in analysis.standings if s.returns is not None and s.returns.last_improvement is not None]
    if not shown:
        return None
    figure, ax = _row_figure(analysis, [s.label for s in shown])
    for row, standing in enumerate(shown):
        gid, style = _series(analysis, standing), styles[standing.label]
        assert standing.returns is not None
        both = (standing.returns.last_improvement, -0.14, True), (standing.returns.best_improvement, 0.16, False)
        for probability, offset, filled in both:
            assert probability is not None
            face = style.light if filled else CARD
            ax.plot(
                [probability.low, probability.high],
                [row + offset] * 2,
                color=style.light,
                linewidth=2,
                alpha=0.6,
                gid=gid,
            )
            marks: dict[str, Any] = dict(markerfacecolor=face, markeredgecolor=style.light, markersize=6.5)
            ax.plot([probability.value], [row + offset], marker=style.marker, gid=gid, **marks)
    ax.axvline(0.5, color=INK, linewidth=0.9, zorder=1)
    ax.axvspan(0, 0.5, color=SHADE, zorder=0, linewidth=0)
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel(
        wrapped(f"probability that a run beats a run of {clipped(analysis.study.reference, REFERENCE_WIDTH)} ↑")
    )
    plain_ticks(ax, "x")
    return Picture(
        "improvement",
        f"Probability of improvement over {analysis.study.reference}",
        "With 95 % bootstrap intervals. Filled: the last evaluation; hollow: the best in the last tenth of the steps.",
        f"Probability of improvement over {analysis.study.reference}",
        figure,
    )


@styled
def interquartile_means(analysis: StudyAnalysis, styles: Styles) -> Picture | None:
    """The mean of the middle half of the runs."""
    shown = [s for s in analysis.ranked if s.returns is not None]
    if not shown:
        return None
    figure, ax = _row_figure(analysis, [s.label for s in shown])
    for row, standing in enumerate(shown):
        gid, style = _series(analysis, standing), styles[standing.label]
        assert standing.returns is not None
        for mean, offset, filled in ((standing.returns.last, -0.14, True), (standing.returns.best, 0.16, False)):
            if not math.isfinite(mean.value):
                continue
            ends = [end for end in (mean.low, mean.high) if math.isfinite(end)]
            ax.plot(
                [mean.value, *ends],
                [row + offset] * (1 + len(ends)),
                color=style.light,
                linewidth=2,
                alpha=0.6,
                gid=gid,
            )
            marks: dict[str, Any] = dict(
                markerfacecolor=style.light if filled else CARD, markeredgecolor=style.light, markersize=6.5
            )
            ax.plot([mean.value], [row + offset], marker=style.marker, gid=gid, **marks)
    ax.set_xlabel(wrapped(f"interquartile mean of {analysis.measure.label} ↑"))
    plain_ticks(ax, "x")
    return Picture(
        "iqm",
        "Interquartile means",
        "The mean of the middle half of the runs, with 95 % bootstrap intervals. Filled: the last evaluation; hollow: "
        "the best in the last tenth of the steps.",
        f"Interquartile means of {analysis.measure.label} of {phrasing.listed(s.label for s in shown)}",
        figure,
    )
