"""Errors of a constructor name the optimizer that was called, not the class or part that raised them.

RADAR(params, eps=1e-8)     TypeError: RADAR() got an unexpected keyword argument 'eps'; write zeta=eps² instead …
RADAR(params, gamma=-1)     ValueError: RADAR: GradientDifference: gamma must be a number in [0, ∞), got -1
"""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

from aimopt.messages.spelling import suggestion

# "Multiple values": the named optimizer passes this keyword itself, so its caller cannot.
_UNEXPECTED = re.compile(r"got (?:an unexpected|multiple values for) keyword argument '(\w+)'")


def explained(
    init: Callable[..., None], relatives: Callable[[], Iterable[type]], part_names: Collection[str]
) -> Callable[..., None]:
    """Wrap a constructor so that its errors name the class that was called.

    `relatives` are classes that may accept a keyword that this one does not. `part_names` are keywords of AIM alone.
    """

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        called = type(self)
        try:
            init(self, *args, **kwargs)
        except (TypeError, ValueError) as error:
            text = str(error)
            unexpected = _UNEXPECTED.search(text)
            if isinstance(error, TypeError) and unexpected and unexpected[1] in kwargs:
                hint = _hint(unexpected[1], called, relatives(), part_names)
                text = f"{called.__name__}() got an unexpected keyword argument {unexpected[1]!r}; {hint}"
            elif not text.startswith(called.__name__):
                text = f"{called.__name__}: {text}"
            error.args = (text,)
            raise

    return wrapper


def _hint(keyword: str, called: type, relatives: Iterable[type], part_names: Collection[str]) -> str:
    """What to write instead of a keyword that an optimizer does not take."""
    known = _keywords(called)
    if keyword in part_names:
        return f"the parts of {called.__name__} are fixed; choose others with AIM(params, lr, {keyword}=…, …)"
    if keyword == "eps" and "zeta" in known:
        return "write zeta=eps² instead, which is inside the square root: zeta=1e-16 for eps=1e-8"
    ours = [relative for relative in relatives if relative.__module__.startswith("aimopt.")]  # not a user's classes
    accepting = [relative.__name__ for relative in ours if keyword in _keywords(relative)]
    if accepting:
        verb = "takes" if len(accepting) == 1 else "take"
        return f"{', '.join(accepting)} {verb} it, {called.__name__} takes {', '.join(known)}"
    return suggestion(keyword, known)


def _keywords(optimizer: type) -> list[str]:
    return [name for name in inspect.signature(optimizer).parameters if name != "params"]
