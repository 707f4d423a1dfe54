"""What every command of the command line shares: a help that ends with an example, and mistakes told in a sentence.

Exit status: 0 done, 1 done but something failed, 2 wrong usage, 130 stopped by Ctrl-C.

Options are checked where they are read: `type=whole(1)`, `type=folder`, `action=Assign`. An option that is given twice,
an empty text and an unknown option are mistakes for every command.
"""

import argparse
import ast
import errno
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from aimopt.spelling import suggestion

Subparsers = Any  # argparse keeps the type private
ADVICE = {
    errno.ENOSPC: "; make room, and give the command again to go on",
    errno.EROFS: "; choose a folder that can be written to",
    errno.EACCES: "; choose a folder that you may use",
}
MOST_AT_ONCE = 4096  # workers, threads or processes; more is a slip of the hand that would end the machine


class Parser(argparse.ArgumentParser):
    """argparse takes the last of two values, an empty text for a default, and says little of an unknown option."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        for name in (None, "store"):
            self.register("action", name, _StoreOnce)
        self.register("type", None, text)

    def add_subparsers(self, **kwargs: Any) -> Any:
        """The command's own parser checks what follows it."""
        action: Any = super().add_subparsers(**kwargs)
        action.type = str
        return action

    def error(self, message: str) -> NoReturn:
        """One sentence, as for every other mistake."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is not known here, in the command it was given to."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            options = [option for option in self._option_string_actions if option.startswith("--")]
            hint = f"; {suggestion(name, options)}" if name.startswith("--") else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return known, unknown


class _StoreOnce(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        given: set[str] = vars(namespace).setdefault("given", set())
        if option is not None and self.dest in given:
            raise argparse.ArgumentError(self, "given twice, but only one would count; give it once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


class Assign(argparse.Action):
    """Collect what `assignment` reads in a dictionary."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        (name, value), known = values, getattr(namespace, self.dest)
        if name in known:
            raise argparse.ArgumentError(
                self, f"{name} is given twice, as {known[name]!r} and as {value!r}; give it once"
            )
        setattr(namespace, self.dest, {**known, name: value})


def add_assignments(parser: Any, option: str, what: str, metavar: str = "NAME=VALUE") -> None:
    """Add an option that may be given several times, each time with another name: a dictionary."""
    parser.add_argument(option, action=Assign, type=assignment, default={}, metavar=metavar, help=what)


def command(
    subparsers: Subparsers,
    name: str,
    summary: str,
    example: str,
    work: Callable[[argparse.Namespace], int | None],
    *,
    extra: str,
) -> argparse.ArgumentParser:
    """Add a command that does `work`, whose result is the exit status; `extra` is what brings the packages it needs."""

    def run(arguments: argparse.Namespace) -> int:
        try:
            return work(arguments) or 0
        except BrokenPipeError:  # whoever reads the output has enough of it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except ModuleNotFoundError as error:
            print(f"{parser.prog} needs {error.name}: pip install 'aimopt[{extra}]'", file=sys.stderr)
        except (ValueError, ImportError, OSError, NotImplementedError) as error:
            print(f"{parser.prog}: {_sentence(error)}", file=sys.stderr)
        return 2

    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _sentence(error: Exception) -> str:
    """What went wrong; of a file, its path and what the system says of it."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}{ADVICE.get(error.errno or 0, '')}"
    return str(error)


def text(value: str) -> str:
    """A text that says something."""
    _check_filled(value)
    _check_utf8(value)
    return value


def _check_filled(value: str) -> None:
    if not value.strip():
        raise argparse.ArgumentTypeError(f"must not be empty, got {value!r}")


def _check_utf8(value: str) -> None:
    """Refuse what a file could not keep; only a path may be of other bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"must be text in UTF-8, got {value!r}") from None


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """A whole number from `low` on, as an argument."""
    wanted = f"must be a whole number from {low}" + (f" to {high}" if high is not None else "")

    def read(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{wanted}, got {value!r}") from None
        if number < low or (high is not None and number > high):
            raise argparse.ArgumentTypeError(f"{wanted}, got {value!r}")
        return number

    return read


positive = whole(1)
seed = whole(0, 2**63 - 1)
at_once = whole(1, MOST_AT_ONCE)


def number(low: float, *, above: bool = False) -> Callable[[str], float]:
    """A finite number that is at least `low`, or above it, as an argument."""
    wanted = f"must be a finite number {'>' if above else '≥'} {low:g}"

    def read(value: str) -> float:
        try:
            given = float(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{wanted}, got {value!r}") from None
        if not math.isfinite(given) or given < low or (above and given == low):
            raise argparse.ArgumentTypeError(f"{wanted}, got {value!r}")
        return given

    return read


def path(value: str) -> Path:
    """A path, as an argument."""
    _check_filled(value)
    if "\0" in value:
        raise argparse.ArgumentTypeError(f"must be a path, got {value!r}")
    return Path(value)


def folder(value: str) -> Path:
    """A folder that is there or can be made."""
    given = path(value)
    try:
        there = next(place for place in (given, *given.absolute().parents) if place.exists())
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{value!r} cannot be a folder: {error.strerror}") from None
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"{str(there)!r} is a file, where a folder is needed; give another name")
    return given


def new_file(endings: Sequence[str] = ()) -> Callable[[str], Path]:
    """A file that can be written, with one of these endings if there are any."""

    def read(value: str) -> Path:
        given = path(value)
        if given.is_dir():
            raise argparse.ArgumentTypeError(f"{value!r} is a folder; give the name of a file")
        if not given.parent.is_dir():
            raise argparse.ArgumentTypeError(f"there is no folder {str(given.parent)!r}; make it first")
        if endings and given.suffix.lower() not in endings:
            raise argparse.ArgumentTypeError(f"must end in {', '.join(endings)}, got {value!r}")
        return given

    return read


def device(name: str) -> str:
    """A device that is here, as an argument."""
    import torch

    try:
        torch.zeros(1, device=text(name)).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise argparse.ArgumentTypeError(f"there is no device {name!r} here: {reason}") from None
    return name


def assignment(text: str) -> tuple[str, Any]:
    """NAME=VALUE, as an argument; a value is a number, several (0.9,0.999), True, None or else a text."""
    _check_utf8(text)
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals and value):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, such as gamma=0.1, got {text!r}")
    return name, literal(value)


def literal(text: str) -> Any:
    """What a text says in Python, or else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
