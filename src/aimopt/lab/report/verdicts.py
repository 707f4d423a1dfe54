"""Verdicts as the report shows them. The analysis gives a text; its first word decides the colour and the sign.

verdict_kind("equal within ±0.5 %")                 "equal"
verdict_kind("undecided with 40 seeds")             "unsure"
VERDICT_STYLES["better"].mark                       "▲"
shortened("cannot tell with 5 seeds")               "cannot tell"
"""

import re
from typing import Literal, NamedTuple

NUMBER_OF_SEEDS = re.compile(r" (with|after) \d+ seeds$")
Kind = Literal["better", "worse", "equal", "identical", "unsure"]
Tone = Literal["", "good", "bad", "equal", "unsure", "warning", "muted"]


class VerdictStyle(NamedTuple):
    """How a verdict is shown."""

    tone: Tone
    mark: str  # in tables
    colour: str  # on the terminal
    predicate: str  # in a sentence, before the name of the reference


VERDICT_STYLES: dict[Kind, VerdictStyle] = {
    "better": VerdictStyle("good", "▲", "green", "is better than"),
    "worse": VerdictStyle("bad", "▼", "red", "is worse than"),
    "equal": VerdictStyle("equal", "=", "cyan", "is equal to"),
    "identical": VerdictStyle("equal", "", "cyan", "is identical to"),  # no seed differs: it is the same rule
    "unsure": VerdictStyle("unsure", "", "dim", "cannot be distinguished from"),
}


def verdict_kind(verdict: str) -> Kind:
    """The kind of a verdict; everything that decides nothing is unsure."""
    first = verdict.partition(" ")[0]
    return next((kind for kind in VERDICT_STYLES if kind == first), "unsure")


def verdict_style(verdict: str) -> VerdictStyle:
    """How a verdict is shown."""
    return VERDICT_STYLES[verdict_kind(verdict)]


def shortened(verdict: str) -> str:
    """A verdict for a narrow column: without the number of seeds."""
    return NUMBER_OF_SEEDS.sub("", verdict)
