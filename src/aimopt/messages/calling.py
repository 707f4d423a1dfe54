"""Errors of a constructor name the optimizer that was called, not the class or part that raised them.

RADAR(params, gama=1)               TypeError: RADAR() got an unexpected keyword argument 'gama'; did you mean 'gamma'?
RADAR(params, 1e-3, betas, 1e-8)    TypeError: RADAR() takes params, lr and betas by position, and got 4 arguments; …
RADAR(params, gamma=-1)             ValueError: RADAR: GradientDifference: gamma must be a number in [0, ∞), got -1
"""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from aimopt.messages.spelling import suggestion

# "Multiple values": the named optimizer passes this keyword itself, so its caller cannot.
_UNEXPECTED = re.compile(r"got (?:an unexpected|multiple values for) keyword argument '(\w+)'")
_TOO_MANY = re.compile(r"takes .*positional arguments? but \d+ (?:was|were) given")
_CONSTRUCTOR = re.compile(r"^\w+\.__init__\(\)")
# The order of torch.optim.AdamW: a call of it is what people replace.
_ADAMW = ("params", "lr", "betas", "eps", "weight_decay", "amsgrad")


def with_named_errors(
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
            elif isinstance(error, TypeError) and _TOO_MANY.search(text):
                text = _too_many(called, args) or text
            error.args = (naming(called, text),)
            raise

    return wrapper


def naming(called: type, text: str) -> str:
    """The text of an error, which begins with the class that was called."""
    text = _CONSTRUCTOR.sub(f"{called.__name__}()", text)
    return text if text.startswith(called.__name__) else f"{called.__name__}: {text}"


@contextmanager
def naming_errors(called: str) -> Iterator[None]:
    """Let a mistake's error begin with the function that was called."""
    try:
        yield
    except ValueError as error:
        error.args = (f"{called}: {error}",)
        raise


def _too_many(called: type, args: tuple[Any, ...]) -> str | None:
    """What to write instead of arguments that must be named; they usually come from a call of AdamW."""
    parameters = inspect.signature(called).parameters
    positional = [name for name, p in parameters.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    *names, last = positional
    extra = args[len(positional) :]
    if not extra:  # another function was called with too many
        return None
    text = f"{called.__name__}() takes {', '.join(names)} and {last} by position, and got {len(args)} arguments"
    if (
        positional[:3] == [*_ADAMW[:3]]
        and (*positional, *_ADAMW[len(positional) :]) == _ADAMW
        and len(extra) <= len(_ADAMW) - len(positional)
    ):
        order = zip(_ADAMW[len(positional) :], extra, strict=False)
        return f"{text}; if they are AdamW's, write {', '.join(f'{name}={value!r}' for name, value in order)}"
    return f"{text}; write the others by name: {', '.join(name for name in parameters if name not in positional)}"


def _hint(keyword: str, called: type, relatives: Iterable[type], part_names: Collection[str]) -> str:
    """What to write instead of a keyword that an optimizer does not take."""
    known = _keywords(called)
    if keyword in part_names:
        return f"the parts of {called.__name__} are fixed; choose others with AIM(params, lr, {keyword}=…, …)"
    ours = [relative for relative in relatives if relative.__module__.startswith("aimopt.")]  # not a user's classes
    accepting = [relative.__name__ for relative in ours if keyword in _keywords(relative)]
    if accepting:
        verb = "takes" if len(accepting) == 1 else "take"
        return f"{', '.join(accepting)} {verb} it, {called.__name__} takes {', '.join(known)}"
    return suggestion(keyword, known)


def _keywords(optimizer: type) -> list[str]:
    return [name for name in inspect.signature(optimizer).parameters if name != "params"]
