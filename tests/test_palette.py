"""Colours are stated once, and the page knows all of them."""

import re
from pathlib import Path

import aimopt
from aimopt import palette

PACKAGE = Path(aimopt.__file__).parent
SUFFIXES = {".py", ".css", ".html", ".js"}


def test_no_other_file_of_the_package_has_a_colour() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.suffix in SUFFIXES and path.name != "palette.py"]
    assert any(path.name == "page.css" for path in files)
    colours = {path.name: re.findall(r"(?<!&)#[0-9a-fA-F]{3,8}\b(?![\w(])", path.read_text("utf-8")) for path in files}
    assert {name: values for name, values in colours.items() if values} == {}


def test_every_colour_has_two_shades_and_no_light_shade_occurs_twice() -> None:
    """The page finds the variable of a colour in a drawing by its light shade."""
    shades = [shade for colour in palette.VARIABLES.values() for shade in colour]
    assert all(re.fullmatch("#[0-9a-f]{6}", shade) for shade in shades)
    light = [colour.light for colour in palette.VARIABLES.values()]
    assert len(set(light)) == len(light)


def test_the_style_sheet_uses_only_variables_that_exist() -> None:
    css = (PACKAGE / "lab" / "report" / "html" / "page.css").read_text("utf-8")
    defined = set(re.findall(r"(--[\w-]+):", palette.css_variables() + css))
    used = set(re.findall(r"var\((--[\w-]+)\)", css))
    assert used <= defined
    assert {"--paper", "--series-0"} <= used
    assert set(palette.VARIABLES) <= defined
