"""What data from a file must look like, said once for each kind of file.

    COST = fields({"label": text, "ratio": list_of(number(above=0), length=3)})
    COST({"label": "RADAR", "ratio": [1, 1]}, "a cost")     ValueError: ratio of a cost must be a list of 3, got [1, 1]

A shape is a function of a value and its name that raises `ValueError` where the value is of another shape. A value that
passes can be used without further checks. A name is put together only when it is needed: stores have many values.
"""

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Name = str | tuple[Any, Any]  # a text, or a part of something that has a name
Shape = Callable[[Any, Name], None]
LARGEST = 2**63  # a larger whole number is an error, and may be too large for a float
_TEXT = frozenset({str})
_OTHER_SCALARS = frozenset({str, bool, type(None)})
_INFINITY = math.inf
DEEPEST = 20  # levels of lists and mappings in an option or a setting


def text(value: Any, name: Name) -> None:
    """A text."""
    if type(value) is not str:
        _refuse(name, "a text", value)


def filled(value: Any, name: Name) -> None:
    """A text that is not empty."""
    text(value, name)
    if not value.strip():
        _refuse(name, "a text that is not empty", value)


def flag(value: Any, name: Name) -> None:
    """Yes or no."""
    if type(value) is not bool:
        _refuse(name, "true or false", value)


def whole(minimum: int = -LARGEST) -> Shape:
    """A whole number."""

    def check(value: Any, name: Name) -> None:
        if type(value) is not int or not minimum <= value < LARGEST:
            _refuse(name, "a whole number" + (f" from {minimum}" if minimum > -LARGEST else ""), value)

    return check


def number(*, above: float = -math.inf) -> Shape:
    """A finite number."""

    def check(value: Any, name: Name) -> None:
        if not is_number(value) or value <= above:
            _refuse(name, "a number" + (f" above {above:g}" if above > -math.inf else ""), value)

    return check


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and not true or false."""
    return math.isfinite(value) if type(value) is float else type(value) is int and -LARGEST <= value < LARGEST


def one_of(*values: str) -> Shape:
    """One of these texts."""

    def check(value: Any, name: Name) -> None:
        if type(value) is not str or value not in values:
            _refuse(name, f"one of {', '.join(values)}", value)

    return check


def nothing_or(shape: Shape) -> Shape:
    """What the shape says, or None."""

    def check(value: Any, name: Name) -> None:
        if value is not None:
            shape(value, name)

    return check


def list_of(shape: Shape, length: int | None = None) -> Shape:
    """A list whose items all have a shape."""

    def check(value: Any, name: Name) -> None:
        if not isinstance(value, list | tuple) or length not in (None, len(value)):
            _refuse(name, "a list" + (f" of {length}" if length is not None else ""), value)
        for index, item in enumerate(value):
            shape(item, (index, name))

    return check


def map_of(shape: Shape) -> Shape:
    """Names and values, whose values all have a shape."""

    def check(value: Any, name: Name) -> None:
        _check_mapping(value, name)
        if (shape is text and _TEXT.issuperset(map(type, value.values()))) or (
            shape is plain and _is_plain(value.values(), DEEPEST)
        ):
            return  # the usual case, without a call per value
        for key, item in value.items():
            shape(item, (key, name))

    return check


def fields(
    required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None, *, others: Shape | None = None
) -> Shape:
    """Known names, each with its shape; other names are refused unless their shape is given."""
    known = {**required, **(optional or {})}

    def check(value: Any, name: Name) -> None:
        _check_mapping(value, name)
        for key in required:
            if key not in value:
                raise ValueError(f"{_said(name)} lacks {key!r}; its fields are {', '.join(known)}")
        for key, item in value.items():
            shape = known.get(key, others)
            if shape is None:
                raise ValueError(f"{_said(name)} has no {reprlib.repr(key)}; its fields are {', '.join(known)}")
            shape(item, (key, name))

    return check


def plain(value: Any, name: Name) -> None:
    """What an option or a setting may be: numbers, texts, true, false, None, and lists and mappings of them."""
    if not _is_plain((value,), DEEPEST):
        _refuse(name, "made of finite numbers, texts, lists and names, not nested too deeply", value)


def _is_plain(values: Iterable[Any], levels: int) -> bool:
    for value in values:
        kind = type(value)
        if kind is float:
            if not -_INFINITY < value < _INFINITY:
                return False
        elif kind is int:
            if not -LARGEST <= value < LARGEST:
                return False
        elif kind is list or kind is tuple:
            if not levels or not _is_plain(value, levels - 1):
                return False
        elif kind is dict:
            if not levels or not _TEXT.issuperset(map(type, value)) or not _is_plain(value.values(), levels - 1):
                return False
        elif kind not in _OTHER_SCALARS:
            return False
    return True


def _check_mapping(value: Any, name: Name) -> None:
    if not isinstance(value, Mapping) or not _TEXT.issuperset(map(type, value)):
        _refuse(name, "names and values", value)


def _refuse(name: Name, wanted: str, value: Any) -> None:
    raise ValueError(f"{_said(name)} must be {wanted}, got {reprlib.repr(value)}")


def _said(name: Name) -> str:
    if isinstance(name, str):
        return name
    part, whole_name = name
    return f"{f'item {part + 1}' if isinstance(part, int) else reprlib.repr(part)[1:-1]} of {_said(whole_name)}"
