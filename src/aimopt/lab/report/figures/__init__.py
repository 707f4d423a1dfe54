"""The figures of a report. Each is drawn once and rendered for the page (SVG), for slides (PNG) and for paper (PDF)."""

from collections.abc import Mapping

from aimopt.lab.analysis import Across, Findings
from aimopt.lab.report.figures import comparison, lines, sweeps
from aimopt.lab.report.figures.rendering import Drawn, draw_all
from aimopt.lab.report.figures.style import ACCENT, STYLES, VARIABLES, Picture, Style, styles_of

__all__ = [
    "ACCENT",
    "STYLES",
    "VARIABLES",
    "Drawn",
    "Picture",
    "Style",
    "draw_all",
    "of_study",
    "over_tasks",
    "styles_of",
]


def of_study(found: Findings, styles: Mapping[str, Style]) -> dict[str, list[Picture]]:
    """The pictures of a study by the part of the report they stand in; parts without any are left out."""
    if found.sweep is not None:
        parts = {"sweep": [sweeps.sweep(found), lines.learning_rates(found, styles)]}
    else:
        parts = {
            "verdicts": [comparison.differences(found, styles), comparison.final_values(found, styles)],
            "curves": [
                *(lines.curves(found, shown, styles) for shown in found.curves),
                lines.learning_rates(found, styles),
            ],
            "cost": [comparison.to_target(found, styles), comparison.overhead(found, styles)],
            "returns": [comparison.interquartile_means(found, styles), comparison.improvement(found, styles)],
        }
    drawn = {part: [picture for picture in pictures if picture is not None] for part, pictures in parts.items()}
    return {part: pictures for part, pictures in drawn.items() if pictures}


def over_tasks(over: Across, styles: Mapping[str, Style], stamp: str) -> list[Picture]:
    """The pictures over several tasks."""
    drawn = [lines.ranks(over, styles, stamp), lines.profile(over, styles, stamp)]
    return [picture for picture in drawn if picture is not None]
