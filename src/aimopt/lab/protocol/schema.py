"""What data from a file must look like, stated once per kind of file.

    COST = fields({"label": text, "ratio": list_of(number(above=0), length=3)})
    COST({"label": "Mine", "ratio": [1, 1]}, "a cost")     ValueError: ratio of a cost must be a list of 3, got [1, 1]

A shape is a function of a value and its name. It raises a `ValueError` if the value has another shape. A value that
passes can be used without further checks. Only a message composes the full name: stores have many values.
"""

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Name = str | tuple[Any, Any]  # "a study", or a key or index and the name of the container: (0, ("seeds", "a study"))
Shape = Callable[[Any, Name], None]
MAX_INTEGER = 2**63  # larger numbers are mistakes, and may be too large for a float
_TEXT = frozenset({str})
_OTHER_SCALARS = frozenset({str, bool, type(None)})
_INFINITY = math.inf
MAX_DEPTH = 20  # of nested lists and mappings in an option or a setting


def text(value: Any, name: Name) -> None:
    """A text."""
    if type(value) is not str:
        _refuse(name, "a text", value)


def nonempty_text(value: Any, name: Name) -> None:
    """A text that is not empty."""
    text(value, name)
    if not value.strip():
        _refuse(name, "a text that is not empty", value)


def flag(value: Any, name: Name) -> None:
    """True or false."""
    if type(value) is not bool:
        _refuse(name, "true or false", value)


def integer(minimum: int = -MAX_INTEGER) -> Shape:
    """A whole number."""

    def check(value: Any, name: Name) -> None:
        if type(value) is not int or not minimum <= value < MAX_INTEGER:
            _refuse(name, "a whole number" + (f" from {minimum}" if minimum > -MAX_INTEGER else ""), value)

    return check


def number(*, above: float = -math.inf) -> Shape:
    """A finite number."""

    def check(value: Any, name: Name) -> None:
        if not is_number(value) or value <= above:
            _refuse(name, "a number" + (f" above {above:g}" if above > -math.inf else ""), value)

    return check


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and not true or false."""
    return math.isfinite(value) if type(value) is float else type(value) is int and -MAX_INTEGER <= value < MAX_INTEGER


def one_of(*values: str) -> Shape:
    """One of these texts."""

    def check(value: Any, name: Name) -> None:
        if type(value) is not str or value not in values:
            _refuse(name, f"one of {', '.join(values)}", value)

    return check


def optional(shape: Shape) -> Shape:
    """A value of this shape, or None."""

    def check(value: Any, name: Name) -> None:
        if value is not None:
            shape(value, name)

    return check


def list_of(shape: Shape, length: int | None = None) -> Shape:
    """A list; all items have the same shape."""

    def check(value: Any, name: Name) -> None:
        if not isinstance(value, list | tuple) or length not in (None, len(value)):
            _refuse(name, "a list" + (f" of {length}" if length is not None else ""), value)
        for index, item in enumerate(value):
            shape(item, (index, name))

    return check


def map_of(shape: Shape) -> Shape:
    """A mapping of names to values; all values have the same shape."""

    def check(value: Any, name: Name) -> None:
        _check_mapping(value, name)
        if (shape is text and _TEXT.issuperset(map(type, value.values()))) or (
            shape is plain and _is_plain(value.values(), MAX_DEPTH)
        ):
            return  # the usual case, without a call per value
        for key, item in value.items():
            shape(item, (key, name))

    return check


def fields(
    required: Mapping[str, Shape], may_have: Mapping[str, Shape] | None = None, *, others: Shape | None = None
) -> Shape:
    """A mapping with known names, each with its shape; other names are refused, or have the shape `others`."""
    known = {**required, **(may_have or {})}

    def check(value: Any, name: Name) -> None:
        _check_mapping(value, name)
        for key in required:
            if key not in value:
                raise ValueError(f"{_full_name(name)} lacks {key!r}; its fields are {', '.join(known)}")
        for key, item in value.items():
            shape = known.get(key, others)
            if shape is None:
                raise ValueError(f"{_full_name(name)} has no {reprlib.repr(key)}; its fields are {', '.join(known)}")
            shape(item, (key, name))

    return check


def plain(value: Any, name: Name) -> None:
    """A value that an option or a setting may have: number, text, true, false, None, or lists and mappings of these."""
    if not _is_plain((value,), MAX_DEPTH):
        _refuse(name, "made of finite numbers below 2⁶³, texts, lists and mappings, not nested too deeply", value)


def _is_plain(values: Iterable[Any], levels: int) -> bool:
    for value in values:
        kind = type(value)
        if kind is float:
            if not -_INFINITY < value < _INFINITY:
                return False
        elif kind is int:
            if not -MAX_INTEGER <= value < MAX_INTEGER:
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
    raise ValueError(f"{_full_name(name)} must be {wanted}, got {reprlib.repr(value)}")


def _full_name(name: Name) -> str:
    if isinstance(name, str):
        return name
    part, container = name
    return f"{f'item {part + 1}' if isinstance(part, int) else reprlib.repr(part)[1:-1]} of {_full_name(container)}"
