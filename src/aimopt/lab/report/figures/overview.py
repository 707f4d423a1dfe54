"""The first pictures of a report about several tasks: the subject against its reference, and all verdicts.

subject_by_task(analyses, "Mine", styles, stamp)   one row per task: paired differences of the subject
verdict_grid(analyses, styles, stamp)              one row per task, one column per contender: a sign per verdict
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.patches import Rectangle

from aimopt.lab.analysis.study_analysis import StudyAnalysis
from aimopt.lab.report import phrasing
from aimopt.lab.report.figures.comparison import centre_on_zero, margin_of, note_verdict
from aimopt.lab.report.figures.labels import REFERENCE_WIDTH, clipped, clipped_names, name_rows, wrapped
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
)
from aimopt.lab.report.verdicts import verdict_kind
from aimopt.lab.stats.paired import Difference

Styles = Mapping[str, Style]
ROW_HEIGHT = 0.36  # inches
MAX_COLUMNS = 16  # of the grid of verdicts
SIGNS: Mapping[str, tuple[str, str]] = {
    "better": ("▲", GOOD),
    "worse": ("▼", BAD),
    "equal": ("=", INK),
    "identical": ("=", MUTED),
    "unsure": ("·", MUTED),
}


class _Row(NamedTuple):
    task: str
    difference: Difference
    unit: float  # the standard deviation of the seeds of the reference
    margin: float  # the difference that counts; 0: not stated


@styled
def subject_by_task(analyses: Sequence[StudyAnalysis], reference: str, styles: Styles, stamp: str) -> Picture | None:
    """The paired differences of the subject from a reference, one row per task; None for fewer than two tasks."""
    subject = next((a.study.headline_contender for a in analyses if a.study.reference == reference), None)
    against = [analysis for analysis in analyses if analysis.study.reference == reference]
    titled = zip(phrasing.titles(against), against, strict=True)
    rows = [row for title, analysis in titled if (row := _row(title, analysis, subject)) is not None]
    if subject is None or len(rows) < 2:
        return None
    figure, ax = new_figure(stamp, (WIDTH, max(2.2, 1.1 + ROW_HEIGHT * len(rows))))
    name_rows(ax, [row.task for row in rows])
    style = styles[subject]
    for position, (_, difference, unit, margin) in enumerate(rows):
        gains = [gain / unit for gain in difference.differences if math.isfinite(gain)]
        ax.scatter(gains, [position + 0.2] * len(gains), s=9, color=style.light, alpha=0.5, linewidths=0)
        if math.isfinite(difference.low):
            ends = [difference.low / unit, difference.high / unit]
            ax.plot(ends, [position - 0.07] * 2, color=style.light, linewidth=2.2)
        if math.isfinite(difference.mean):
            face = CARD if verdict_kind(difference.verdict) == "unsure" else style.light
            marks: dict[str, Any] = dict(markerfacecolor=face, markeredgecolor=style.light, markeredgewidth=1.4)
            ax.plot([difference.mean / unit], [position - 0.07], marker="o", markersize=7.5, **marks)
        if margin:
            band: dict[str, Any] = dict(color=MUTED, alpha=0.16, zorder=0.5, linewidth=0)
            ax.fill_betweenx([position - 0.45, position + 0.45], -margin / unit, margin / unit, **band)
        note_verdict(ax, position, difference, "")
    centre_on_zero(ax)
    ax.set_xlabel(wrapped(f"gain over {clipped(reference, REFERENCE_WIDTH)}, in standard deviations of its seeds"))
    plain_ticks(ax, "x")
    return Picture(
        "subject",
        f"{subject} against {reference}",
        "One dot per seed: the paired difference, in units of the spread of the reference on that task. The line is "
        "the 95 % interval of the mean. A filled marker is a verdict; a hollow one means that these seeds cannot tell."
        f"{' In the dark bands around 0 contenders count as equal.' if any(row.margin for row in rows) else ''}",
        f"Paired differences of {subject} from {reference} on {phrasing.listed(row.task for row in rows)}",
        figure,
    )


def _row(title: str, analysis: StudyAnalysis, subject: str | None) -> _Row | None:
    """The subject on one task; None without a result, or if the reference has no finite spread."""
    standing = next((s for s in analysis.standings if s.label == subject), None)
    spread = analysis.reference.spread
    if standing is None or standing.difference is None or spread is None:
        return None
    if not math.isfinite(spread.std) or spread.std <= 0:
        return None
    return _Row(title, standing.difference, spread.std, margin_of(analysis))


@styled
def verdict_grid(analyses: Sequence[StudyAnalysis], styles: Styles, stamp: str) -> Picture | None:
    """The verdict on every contender and task, as a sign; None for fewer than two tasks or too many contenders."""
    shown = [analysis for analysis in analyses if any(s.difference for s in analysis.standings)]
    labels = list(dict.fromkeys(s.label for a in shown for s in a.standings if s.label != a.study.reference))
    if len(shown) < 2 or not 1 <= len(labels) <= MAX_COLUMNS:
        return None
    figure, ax = new_figure(stamp, (WIDTH, max(2.2, 1.5 + ROW_HEIGHT * len(shown))))
    name_rows(ax, phrasing.titles(shown))
    for row, analysis in enumerate(shown):
        for standing in analysis.standings:
            if standing.difference is None:
                continue
            column = labels.index(standing.label)
            sign, colour = SIGNS[verdict_kind(standing.difference.verdict)]
            ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=SHADE, edgecolor=CARD, linewidth=2))
            ax.text(column, row, sign, ha="center", va="center", fontsize=11, fontweight="bold", color=colour)
    ax.set_xlim(-0.55, len(labels) - 0.45)
    ax.set_xticks(range(len(labels)), clipped_names(labels, 18), rotation=40, ha="left", rotation_mode="anchor")
    ax.tick_params(axis="x", length=0, labeltop=True, labelbottom=False, pad=2)
    for tick, label in zip(ax.get_xticklabels(), labels, strict=True):
        tick.set_color(styles[label].light)
        tick.set_fontweight("bold" if styles[label].emphasized else "normal")
    ax.grid(visible=False)
    ax.spines["bottom"].set_visible(False)
    references = list(dict.fromkeys(analysis.study.reference for analysis in shown))
    return Picture(
        "verdicts",
        f"Every contender against {phrasing.listed(references)}",
        "▲ better, ▼ worse, = equal or identical; a dot: the seeds cannot tell, which is not the same as equal.",
        f"Verdicts on {phrasing.listed(labels)} against {phrasing.listed(references)}",
        figure,
    )
