"""Parts from texts, for config files and command lines. A text has names of parts and literals, and is never run.

part_from_text("EMA(0.9)", "filter")                                   EMA(0.9)
part_from_text("Sign", "geometry")                                     Sign()
part_from_text("Cautious(FixedPoint(ell_ratio=0.1))", "correction")    a part that wraps another of its axis

`repr` of a part is such a text, with all of its hyperparameters.
"""

import ast
from typing import Any

from aimopt.parts.composition import AXES


def part_from_text(text: str, axis: str) -> Any:
    """The part of an axis that a text names, with literals as its arguments."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unreadable(text, axis) from None
    return _part(node, text, axis)


def _part(node: ast.expr, text: str, axis: str) -> Any:
    if isinstance(node, ast.Name):
        return AXES[axis].lookup(node.id)()
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise _unreadable(text, axis)
    part: Any = AXES[axis].lookup(node.func.id)
    positional = [_value(argument, text, axis) for argument in node.args]
    named = {keyword.arg or "": _value(keyword.value, text, axis) for keyword in node.keywords}
    if "" in named or len(named) < len(node.keywords):
        raise _unreadable(text, axis)
    try:
        return part(*positional, **named)
    except TypeError as error:
        raise ValueError(f"{axis} {text!r}: {str(error).replace('.__init__()', '')}") from None


def _value(node: ast.expr, text: str, axis: str) -> Any:
    if isinstance(node, ast.Call | ast.Name):
        return _part(node, text, axis)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise _unreadable(text, axis) from None


def _unreadable(text: str, axis: str) -> ValueError:
    return ValueError(
        f"cannot read the {axis} {text!r}; write the name of a part and its arguments, as in Name(0.9, option=2)"
    )
