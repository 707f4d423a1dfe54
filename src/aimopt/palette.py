"""The colours of all plots and pages. Each has one shade for light pages and one for dark pages.

    palette.SERIES[0].light      the first line of a plot
    palette.INK.light            its text
    palette.css_variables()      --series-0: light-dark(#d1440c, #ff7a45); … for a style sheet

The eight colours of series were chosen by a search that maximized the distance between every two of them, in OKLab, for
normal, protan, deutan and tritan vision. Plots use dashes and markers as well, so that colour is never the only sign.
"""

from typing import NamedTuple


class Colour(NamedTuple):
    """One colour, as #rrggbb in lower case."""

    light: str
    dark: str


SERIES = (
    Colour("#d1440c", "#ff7a45"),
    Colour("#c4a452", "#f7d12e"),
    Colour("#52aef7", "#b6e6ff"),
    Colour("#262a9a", "#537bff"),
    Colour("#2b8470", "#73d2ad"),
    Colour("#83134b", "#d90a9e"),
    Colour("#9d3ed2", "#bf9eef"),
    Colour("#341a01", "#9b6c49"),
)
VERMILION, GOLD, SKY, NAVY, TEAL, MAROON, VIOLET, BROWN = SERIES

PAPER = Colour("#f7f5f1", "#101218")  # behind everything
CARD = Colour("#fffefc", "#191c24")  # behind a plot or a table
SHADE = Colour("#f1efe9", "#20242e")
INK = Colour("#1d2129", "#e8e9ee")
MUTED = Colour("#666c7a", "#9aa1b1")
GRID = Colour("#e3e1dc", "#2c313d")
LINE = Colour("#dedbd4", "#2c313d")
GOOD = Colour("#1b7f4d", "#55d197")
BAD = Colour("#b3261e", "#ff8a80")
WARN = Colour("#8a5a00", "#f0bd5c")

# By the name of their variable in a style sheet.
VARIABLES = {
    "--paper": PAPER,
    "--card": CARD,
    "--shade": SHADE,
    "--ink": INK,
    "--muted": MUTED,
    "--grid": GRID,
    "--line": LINE,
    "--good": GOOD,
    "--bad": BAD,
    "--warn": WARN,
    **{f"--series-{slot}": colour for slot, colour in enumerate(SERIES)},
}


def css_variables() -> str:
    """The colours as variables of a style sheet; its `color-scheme` decides which shade is shown."""
    lines = [f"  {name}: light-dark({colour.light}, {colour.dark});" for name, colour in VARIABLES.items()]
    return "\n".join([":root {", *lines, "}"])
