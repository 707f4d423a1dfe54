"""A figure as an SVG element of a page: with the colours of the page, and elements that a script can find.

    svg(picture, "compare-images-rates")        <svg … aria-label="…" class="plot">…</svg>
    plot_data(picture)                          positions and values of the lines as JSON, for tooltips

matplotlib writes the `gid` of an element as its id. Here `series-3` becomes `data-series="3"`, and `band-3` the same
with the class `band`, which the page shows only while a reader points at the line. All other ids get the prefix of the
figure, because a page has many figures; and every colour with a variable in the style sheet becomes that variable. The
title is left out: the page shows it itself.
"""

import io
import json
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from aimopt.lab.report.figures.style import VARIABLES, Panel, Picture, save, styled
from aimopt.messages.clean_text import printable

SVG, LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
COLOUR = re.compile(r"#[0-9a-f]{6}")
DECIMALS = re.compile(r"(-?\d+\.\d{2})\d+")
REFERENCE = re.compile(r"url\(#([^)]+)\)")


@styled
def svg(picture: Picture, prefix: str) -> str:
    """The picture as an SVG element."""
    buffer = io.StringIO()
    save(picture, buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for part in root.findall(f"{{{SVG}}}metadata"):
        root.remove(part)
    for element in root.iter():
        _adapt(element, prefix)
    for size in ("width", "height"):
        root.attrib.pop(size, None)  # the page decides the size
    root.attrib.update({"role": "img", "aria-label": printable(picture.alt), "class": "plot"})
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", LINK)
    return ElementTree.tostring(root, encoding="unicode")


def _adapt(element: ElementTree.Element, prefix: str) -> None:
    name = element.attrib.pop("id", None)
    kind, _, series = (name or "").partition("-")
    if kind in ("series", "band") and series.isdecimal():
        element.set("data-series", series)
        if kind == "band":
            element.set("class", "band")
    elif name is not None:
        element.set("id", f"{prefix}-{name}")
    link = element.get(f"{{{LINK}}}href")
    if link is not None:
        element.set(f"{{{LINK}}}href", f"#{prefix}-{link[1:]}")
    for attribute in ("clip-path", "style"):
        value = element.get(attribute)
        if value is not None:
            value = REFERENCE.sub(lambda match: f"url(#{prefix}-{match[1]})", value)
            element.set(attribute, COLOUR.sub(_variable, value))
    for attribute in ("d", "points", "x", "y", "transform"):
        value = element.get(attribute)
        if value is not None:
            element.set(attribute, DECIMALS.sub(r"\1", value))


def _variable(match: re.Match[str]) -> str:
    return f"var({VARIABLES[match[0]]})" if match[0] in VARIABLES else match[0]


def plot_data(picture: Picture) -> str:
    """Positions and values of the lines as JSON. Call it after `svg`, which computes the layout."""
    return json.dumps([_panel_data(picture, panel) for panel in picture.panels]) if picture.panels else ""


def _panel_data(picture: Picture, panel: Panel) -> dict[str, Any]:
    ax = panel.axes
    width, height = (72 * inches for inches in picture.figure.get_size_inches())
    box = ax.get_position()
    place = [box.x0 * width, (1 - box.y1) * height, box.width * width, box.height * height]
    return {
        "box": [round(x, 2) for x in place],
        "x": {"limits": list(ax.get_xlim()), "log": ax.get_xscale() == "log", "label": printable(panel.x_label)},
        "y": {"limits": list(ax.get_ylim()), "log": ax.get_yscale() == "log", "label": printable(panel.y_label)},
        "otherAxes": panel.other_axes,
        "lines": [
            {
                "label": printable(line.label),
                "short": printable(line.short),
                "series": line.series,
                "stepSeconds": line.step_seconds,
                "band": line.band,
                "points": [_short(point) for point in line.points],
            }
            for line in panel.lines
        ],
    }


def _short(point: Sequence[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in point]
