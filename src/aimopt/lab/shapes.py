"""What data from a file must look like, said once for each kind of file.

    COST = fields({"label": text, "ratio": list_of(number(above=0), length=3)})
    COST({"label": "RADAR", "ratio": [1, 1]}, "a cost")     ValueError: ratio of a cost must be a list of 3, got [1, 1]

A shape is a function of a value and its name that raises `ValueError` where the value is of another shape. A value that
passes can be used without further checks.
"""

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any, str], None]
LARGEST = 2**63  # a larger whole number is an error, and may be too large for a float
DEEPEST = 20  # levels of lists and mappings in an option or a setting


def text(value: Any, name: str) -> None:
    """A text."""
    if type(value) is not str:
        _refuse(name, "a text", value)


def flag(value: Any, name: str) -> None:
    """Yes or no."""
    if type(value) is not bool:
        _refuse(name, "true or false", value)


def whole(minimum: int = -LARGEST) -> Shape:
    """A whole number."""

    def check(value: Any, name: str) -> None:
        if type(value) is not int or not minimum <= value < LARGEST:
            _refuse(name, "a whole number" + (f" from {minimum}" if minimum > -LARGEST else ""), value)

    return check


def number(*, above: float = -math.inf) -> Shape:
    """A finite number."""

    def check(value: Any, name: str) -> None:
        if not is_number(value) or value <= above:
            _refuse(name, "a number" + (f" above {above:g}" if above > -math.inf else ""), value)

    return check


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and not true or false."""
    return math.isfinite(value) if type(value) is float else type(value) is int and -LARGEST <= value < LARGEST


def one_of(*values: str) -> Shape:
    """One of these texts."""

    def check(value: Any, name: str) -> None:
        if type(value) is not str or value not in values:
            _refuse(name, f"one of {', '.join(values)}", value)

    return check


def nothing_or(shape: Shape) -> Shape:
    """What the shape says, or None."""

    def check(value: Any, name: str) -> None:
        if value is not None:
            shape(value, name)

    return check


def list_of(shape: Shape, length: int | None = None) -> Shape:
    """A list whose items all have a shape."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, list | tuple) or length not in (None, len(value)):
            _refuse(name, "a list" + (f" of {length}" if length is not None else ""), value)
        for index, item in enumerate(value):
            shape(item, f"item {index + 1} of {name}")

    return check


def map_of(shape: Shape) -> Shape:
    """Names and values, whose values all have a shape."""

    def check(value: Any, name: str) -> None:
        _check_mapping(value, name)
        for key, item in value.items():
            shape(item, f"{reprlib.repr(key)} of {name}")

    return check


def fields(
    required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None, *, others: Shape | None = None
) -> Shape:
    """Known names, each with its shape; other names are refused unless their shape is given."""
    known = {**required, **(optional or {})}

    def check(value: Any, name: str) -> None:
        _check_mapping(value, name)
        for key in required:
            if key not in value:
                raise ValueError(f"{name} lacks {key!r}; its fields are {', '.join(known)}")
        for key, item in value.items():
            shape = known.get(key, others)
            if shape is None:
                raise ValueError(f"{name} has no {reprlib.repr(key)}; its fields are {', '.join(known)}")
            shape(item, f"{key} of {name}")

    return check


def plain(value: Any, name: str) -> None:
    """What an option or a setting may be: numbers, texts, true, false, None, and lists and mappings of them."""
    _check_plain(value, name, DEEPEST)


def _check_plain(value: Any, name: str, levels: int) -> None:
    if value is None or type(value) in (str, bool) or is_number(value):
        return
    if levels and isinstance(value, list | tuple):
        for item in value:
            _check_plain(item, name, levels - 1)
    elif levels and isinstance(value, Mapping):
        _check_mapping(value, name)
        for item in value.values():
            _check_plain(item, name, levels - 1)
    else:
        _refuse(name, "made of finite numbers, texts, lists and names, not nested too deeply", value)


def _check_mapping(value: Any, name: str) -> None:
    if not isinstance(value, Mapping) or not all(type(key) is str for key in value):
        _refuse(name, "names and values", value)


def _refuse(name: str, wanted: str, value: Any) -> None:
    raise ValueError(f"{name} must be {wanted}, got {reprlib.repr(value)}")
