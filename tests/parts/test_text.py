"""Parts from texts: what `repr` prints is read again, and nothing else is run."""

from inspect import isabstract

import pytest

import aimopt
from aimopt.parts.component import Component
from aimopt.parts.composition import AXES
from aimopt.parts.corrections import Cautious, FixedPoint
from aimopt.parts.filters import EMA
from aimopt.parts.text import part_from_text

PARTS = [
    part
    for axis in AXES.values()
    for part in axis.registry.values()
    if not isabstract(part) and part.__module__.startswith("aimopt.parts.")
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_the_text_of_a_part_is_read_again(part: type[Component]) -> None:
    assert part_from_text(repr(part()), part.axis) == part_from_text(part.__name__, part.axis) == part()


def test_arguments_by_position_and_by_name_and_parts_in_parts() -> None:
    assert part_from_text(" EMA(0.8, bias_correction=False) ", "filter") == EMA(0.8, bias_correction=False)
    expected = Cautious(FixedPoint(ell_ratio=0.1), rescale=False)
    assert part_from_text("Cautious(FixedPoint(ell_ratio=0.1), rescale=False)", "correction") == expected


@pytest.mark.parametrize(
    "text",
    ["", "EMA(", "EMA(0.9)()", "EMA.__class__", "EMA(0.9 .__class__)", "[EMA()]", "EMA(*(0.9,))", "EMA(**{'beta': 1})"],
)
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot read the filter"):
        part_from_text(text, "filter")


def test_only_parts_of_the_axis_are_known() -> None:
    for text in ("print('x')", "EMA", "Sign(EMA())"):
        with pytest.raises(ValueError, match="no geometry is called"):
            part_from_text(text, "geometry")


def test_an_optimizer_takes_texts_of_parts() -> None:
    optimizer = aimopt.create("AIM", [], lr=1e-3, filter="EMA(0.8)", geometry="Sign", correction="FixedPoint()")
    assert optimizer.defaults["betas"] == (0.8,)
    assert (optimizer.defaults["geometry"], optimizer.defaults["correction"]) == ("Sign", "FixedPoint")
