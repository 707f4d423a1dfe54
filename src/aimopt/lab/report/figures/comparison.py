"""Contenders side by side: final values, paired differences, time to a target, cost, returns."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aimopt.lab.analysis import Findings, Standing
from aimopt.lab.report import words
from aimopt.lab.report.figures.style import (
    CARD,
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

Styles = Mapping[str, Style]
HEIGHT, ROW = 1.1, 0.3  # inches: of what surrounds the rows, and of a row


def _rows(found: Findings | str, labels: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with a row a contender, the first on top."""
    figure, ax = new_figure(found, (WIDTH, max(2.2, HEIGHT + ROW * len(labels))))
    ax.set_ylim(len(labels) - 0.45, -0.55)
    ax.set_yticks(range(len(labels)), labels)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
    ax.spines["left"].set_visible(False)
    return figure, ax


def _ends(ax: Axes, left: str, right: str) -> None:
    """What the two sides mean."""
    for x, side, text in ((0, "left", left), (1, "right", right)):
        where: dict[str, Any] = dict(transform=ax.transAxes, ha=side, va="bottom", fontsize=8, color=MUTED)
        ax.text(x, 1.01, text, **where)


def _series(found: Findings, standing: Standing) -> str:
    return f"series-{[s.label for s in found.standings].index(standing.label)}"


@styled
def final_values(found: Findings, styles: Styles) -> Picture | None:
    """The seeds of every contender, their mean and its interval; untuned ones beside, hollow."""
    shown = found.ranked
    if not shown:
        return None
    figure, ax = _rows(found, [s.label for s in shown])
    tuned_beside = found.study.searches and any(s.untuned_spread for s in shown)
    finite = [
        v
        for s in shown
        for spread in (s.spread, s.untuned_spread if tuned_beside else None)
        if spread
        for v in spread.values
        if math.isfinite(v)
    ]
    if wants_log(finite, found.measure.better):
        ax.set_xscale("log")
    for row, standing in enumerate(shown):
        gid, style = _series(found, standing), styles[standing.label]
        offset = 0.17 if tuned_beside else 0.0
        spreads = [(standing.spread, row - offset, True)]
        if tuned_beside:
            spreads.append((standing.untuned_spread, row + offset, False))
        for spread, y, tuned in spreads:
            if spread is None:
                continue
            values = [v for v in spread.values if math.isfinite(v)]
            face = style.light if tuned else CARD
            if math.isfinite(spread.low):
                ax.plot([spread.low, spread.high], [y, y], color=style.light, linewidth=5, alpha=0.25, gid=gid)
            ax.scatter(values, [y] * len(values), s=13, color=face, edgecolors=style.light, linewidths=0.8, gid=gid)
            if math.isfinite(spread.mean):
                ax.plot([spread.mean], [y], marker="|", markersize=11, markeredgewidth=2, color=style.light, gid=gid)
            if spread.diverged:
                note = f"{spread.diverged} of {len(spread.values)} diverged"
                ax.text(
                    0.995, y, note, transform=ax.get_yaxis_transform(), ha="right", va="center", fontsize=7.5, gid=gid
                )
    ax.set_xlabel(f"{found.measure.label} {words.ARROWS[found.measure.better]}")
    plain_ticks(ax, "x", log=ax.get_xscale() == "log")
    hollow = " Hollow: at the usual learning rate, without search." if tuned_beside else ""
    return Picture(
        "final",
        f"Final {found.measure.label}",
        f"A dot a seed; the bar is their mean, the band its 95 % interval.{hollow} The best mean is on top.",
        f"Final {found.measure.label} of {words.listed(s.label for s in shown)}, a dot a seed",
        figure,
    )


@styled
def differences(found: Findings, styles: Styles) -> Picture | None:
    """The paired differences from the reference, seed by seed, and the interval of their mean."""
    shown = [s for s in found.standings if s.difference is not None]
    if not shown:
        return None
    shown.sort(key=lambda s: -s.difference.mean if s.difference and not math.isnan(s.difference.mean) else math.inf)
    figure, ax = _rows(found, [s.label for s in shown])
    for row, standing in enumerate(shown):
        gid, style, difference = _series(found, standing), styles[standing.label], standing.difference
        assert difference is not None
        finite = [d for d in difference.differences if math.isfinite(d)]
        ax.scatter(finite, [row + 0.19] * len(finite), s=10, color=style.light, alpha=0.55, linewidths=0, gid=gid)
        if math.isfinite(difference.low):
            ax.plot([difference.low, difference.high], [row - 0.07] * 2, color=style.light, linewidth=2, gid=gid)
        if math.isfinite(difference.mean):
            sure = not words.is_unsure(difference.verdict)
            ax.plot(
                [difference.mean],
                [row - 0.07],
                marker=style.marker,
                markersize=7,
                markerfacecolor=style.light if sure else CARD,
                markeredgecolor=style.light,
                markeredgewidth=1.4,
                gid=gid,
            )
        if len(finite) < len(difference.differences):
            note = f"{len(difference.differences) - len(finite)} decided by divergence"
            ax.text(
                0.995, row, note, transform=ax.get_yaxis_transform(), ha="right", va="center", fontsize=7.5, gid=gid
            )
    ax.axvline(0, color=INK, linewidth=0.9, zorder=1)
    left, right = ax.get_xlim()
    reach = max(abs(left), abs(right))
    ax.set_xlim(-reach, reach)
    ax.axvspan(-reach, 0, color=SHADE, zorder=0, linewidth=0)
    reference = found.study.reference
    _ends(ax, "← worse", "better →")
    ax.set_xlabel(f"gain in {found.measure.label} over {reference}")
    plain_ticks(ax, "x")
    return Picture(
        "differences",
        f"Paired difference from {reference}",
        "A dot is one seed: same initial weights, same order of the data. The line is the 95 % interval of their mean. "
        "A filled marker is a verdict, a hollow one means that these seeds cannot tell.",
        f"Paired differences in {found.measure.label} of {words.listed(s.label for s in shown)} from {reference}",
        figure,
    )


@styled
def to_target(found: Findings, styles: Styles) -> Picture | None:
    """Steps, and seconds where they were measured, to where the reference ends, as ratios."""
    shown = [s for s in found.standings if s.to_target is not None]
    reference = found.study.reference
    if found.target is None or len(shown) < 2:
        return None
    shown.sort(key=lambda s: s.to_target.ratio if s.to_target and s.to_target.ratio is not None else math.inf)
    figure, ax = _rows(found, [s.label for s in shown])
    timed = any(s.to_target and s.to_target.seconds_ratio is not None for s in shown)
    for row, standing in enumerate(shown):
        gid, style, reached = _series(found, standing), styles[standing.label], standing.to_target
        assert reached is not None
        if reached.ratio is None:
            where: dict[str, Any] = dict(
                transform=ax.get_yaxis_transform(), ha="right", va="center", fontsize=7.5, color=MUTED
            )
            ax.text(0.995, row, "not reached", gid=gid, **where)
            continue
        ax.plot([1, reached.ratio], [row, row], color=style.light, linewidth=2, alpha=0.5, gid=gid)
        ax.plot([reached.ratio], [row], marker=style.marker, markersize=7, color=style.light, gid=gid)
        if reached.seconds_ratio is not None:
            hollow: dict[str, Any] = dict(markerfacecolor=CARD, markeredgecolor=style.light, markeredgewidth=1.4)
            ax.plot([reached.seconds_ratio], [row], marker=style.marker, markersize=7, gid=gid, **hollow)
    ax.axvline(1, color=INK, linewidth=0.9, zorder=1)
    left, right = ax.get_xlim()
    room = 0.3 * (right - left) if any(s.to_target and s.to_target.ratio is None for s in shown) else 0
    ax.set_xlim(min(left, 0.9), max(right + room, 1.1))
    _ends(ax, "← sooner", "later →")
    ax.set_xlabel(f"ratio to {reference}'s")
    plain_ticks(ax, "x")
    target = words.general(found.target.value, 4)
    hollow_means = " Filled: steps; hollow: time, with seconds a step measured alone." if timed else ""
    return Picture(
        "target",
        f"How soon {found.target.measure.label} {target} is reached",
        f"The target is the mean with which {reference} ends. All follow the same schedule, so a ratio speaks of this "
        f"length of training.{hollow_means}",
        f"Steps to {found.target.measure.label} {target} as ratios to {reference}'s",
        figure,
    )


@styled
def overhead(found: Findings, styles: Styles) -> Picture | None:
    """What a training step costs beside the reference's."""
    shown = [s for s in found.standings if s.cost is not None]
    if not shown:
        return None
    figure, ax = _rows(found, [s.label for s in shown])
    for row, standing in enumerate(shown):
        gid, style, cost = _series(found, standing), styles[standing.label], standing.cost
        assert cost is not None
        median, low, high = cost.ratio
        ax.plot([low, high], [row, row], color=style.light, linewidth=5, alpha=0.3, gid=gid)
        ax.plot([median], [row], marker=style.marker, markersize=7, color=style.light, gid=gid)
    ax.axvline(1, color=INK, linewidth=0.9, zorder=1)
    ax.set_xlabel(f"time of a whole training step, ratio to {found.study.reference}'s ↓")
    plain_ticks(ax, "x")
    return Picture(
        "overhead",
        "What a training step costs",
        "Medians and quartiles of paired ratios, measured in turn in one process with nothing beside it. "
        f"{found.study.reference} against itself shows the noise.",
        f"Time of a training step of {words.listed(s.label for s in shown)} as ratios to {found.study.reference}'s",
        figure,
    )


@styled
def improvement(found: Findings, styles: Styles) -> Picture | None:
    """The chance that a run beats one of the reference."""
    shown = [s for s in found.standings if s.returns is not None and s.returns.last_improvement is not None]
    if not shown:
        return None
    figure, ax = _rows(found, [s.label for s in shown])
    for row, standing in enumerate(shown):
        gid, style = _series(found, standing), styles[standing.label]
        assert standing.returns is not None
        both = (standing.returns.last_improvement, -0.14, True), (standing.returns.best_improvement, 0.16, False)
        for chance, offset, filled in both:
            assert chance is not None
            face = style.light if filled else CARD
            ax.plot([chance.low, chance.high], [row + offset] * 2, color=style.light, linewidth=2, alpha=0.6, gid=gid)
            marks: dict[str, Any] = dict(markerfacecolor=face, markeredgecolor=style.light, markersize=6.5)
            ax.plot([chance.value], [row + offset], marker=style.marker, gid=gid, **marks)
    ax.axvline(0.5, color=INK, linewidth=0.9, zorder=1)
    ax.axvspan(0, 0.5, color=SHADE, zorder=0, linewidth=0)
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel(f"probability that a run beats one of {found.study.reference} ↑")
    plain_ticks(ax, "x")
    return Picture(
        "improvement",
        f"Probability of improvement over {found.study.reference}",
        "With 95 % bootstrap intervals. Filled: the last evaluation; hollow: the best of the last tenth.",
        f"Probability of improvement over {found.study.reference}",
        figure,
    )


@styled
def interquartile_means(found: Findings, styles: Styles) -> Picture | None:
    """The mean of the middle half of the runs."""
    shown = [s for s in found.ranked if s.returns is not None]
    if not shown:
        return None
    figure, ax = _rows(found, [s.label for s in shown])
    for row, standing in enumerate(shown):
        gid, style = _series(found, standing), styles[standing.label]
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
    ax.set_xlabel(f"interquartile mean of {found.measure.label} ↑")
    plain_ticks(ax, "x")
    return Picture(
        "iqm",
        "Interquartile means",
        "The mean of the middle half of the runs, with 95 % bootstrap intervals. Filled: the last evaluation; hollow: "
        "the best of the last tenth.",
        f"Interquartile means of {found.measure.label} of {words.listed(s.label for s in shown)}",
        figure,
    )
