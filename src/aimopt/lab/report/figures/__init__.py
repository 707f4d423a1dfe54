"""The figures of a report. Each is drawn once and rendered for the page (SVG), for slides (PNG) and for paper (PDF)."""

import math
from collections.abc import Mapping
from io import BytesIO

from matplotlib.lines import Line2D
from PIL import Image

from aimopt.lab.analysis import Across, Findings
from aimopt.lab.report.figures import comparison, lines, sweeps
from aimopt.lab.report.figures.style import ACCENT, STYLES, VARIABLES, Picture, Style, save, styled, styles_of
from aimopt.lab.report.figures.svg import plot_data, svg

__all__ = [
    "ACCENT",
    "STYLES",
    "VARIABLES",
    "Picture",
    "Style",
    "for_paper",
    "of_study",
    "over_tasks",
    "plot_data",
    "render",
    "styles_of",
    "svg",
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


@styled
def render(picture: Picture, ending: str) -> bytes:
    """A picture as a file of a format: `png`, `pdf`."""
    content = BytesIO()
    metadata = {"CreationDate": None} if ending == "pdf" else {}  # the same picture, the same bytes
    save(picture, content, format=ending, metadata=metadata)
    picture.figure.set_layout_engine("none")  # the next format takes the same places: finding them is most of the work
    return _with_a_palette(content) if ending == "png" else content.getvalue()


def _with_a_palette(content: BytesIO) -> bytes:
    """A PNG in a third of the space: few colours are all a picture of lines has."""
    smaller = BytesIO()
    Image.open(content).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(smaller, "png", optimize=True)
    return smaller.getvalue()


@styled
def for_paper(picture: Picture, styles: Mapping[str, Style]) -> Picture:
    """With the title and the legend that a page shows beside it."""
    ax = picture.figure.axes[0]
    room = 16.0  # points between the axes and the title
    if picture.lines:
        drawn = [(str(line["label"]), styles[str(line["label"])]) for line in picture.lines]
        handles = [Line2D([], [], color=s.light, linestyle=s.dash, linewidth=1.6, label=name) for name, s in drawn]
        columns = min(4, len(handles))
        height = 13.0 * math.ceil(len(handles) / columns)
        room += height
        picture.figure.set_figheight(picture.figure.get_figheight() + height / 72)
        ax.legend(
            handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, handlelength=3
        )
    ax.set_title(picture.title, fontsize=10.5, fontweight="bold", pad=room)
    return picture
