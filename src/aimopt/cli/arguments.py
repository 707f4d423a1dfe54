"""What all commands share: a help text with an example, argument types, and error messages of one sentence.

Options are checked when they are parsed: `type=integer(1)`, `type=folder`, `action=Assign`. An option that is given
twice, an empty text and an unknown option are errors in every command.
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

from aimopt.__main__ import STOPPED as STOPPED
from aimopt.messages.extras import install_command
from aimopt.messages.spelling import suggestion

Subparsers = Any  # argparse keeps the type private
# Exit status; 0 means success. STOPPED, by Ctrl-C, is in `aimopt.__main__`, which needs it before anything is imported.
FAILED, WRONG_USAGE = 1, 2
ADVICE = {
    errno.ENOSPC: "; free some disk space, and give the command again to continue",
    errno.EROFS: "; choose a folder that can be written to",
    errno.EACCES: "; choose a folder that you have access to",
}
MAX_PARALLEL = 4096  # workers, threads or processes; a larger number is a typing error, and would exhaust the machine


class Parser(argparse.ArgumentParser):
    """Stricter than argparse, which accepts an option twice and an empty text, and does not suggest option names."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        for name in (None, "store"):
            self.register("action", name, _StoreOnce)
        self.register("type", None, nonempty_text)

    def add_subparsers(self, **kwargs: Any) -> Any:
        """Leave the check of the arguments of a command to the parser of that command."""
        action: Any = super().add_subparsers(**kwargs)
        action.type = str
        return action

    def error(self, message: str) -> NoReturn:
        """Exit with one sentence, as for every other error."""
        self.exit(WRONG_USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown arguments with the name of the command that got them."""
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
            raise argparse.ArgumentError(self, "given twice, but only the last would be used; give it once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


class Assign(argparse.Action):
    """Collect assignments in a dictionary."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        (name, value), assigned = values, getattr(namespace, self.dest)
        if name in assigned:
            raise argparse.ArgumentError(
                self, f"{name} is given twice, as {assigned[name]!r} and as {value!r}; give it once"
            )
        setattr(namespace, self.dest, {**assigned, name: value})


def add_assignments(parser: Any, option: str, help_text: str, metavar: str = "NAME=VALUE") -> None:
    """Add an option of the form NAME=VALUE that may be given several times; its value is a dictionary."""
    parser.add_argument(option, action=Assign, type=assignment, default={}, metavar=metavar, help=help_text)


def command(
    subparsers: Subparsers,
    name: str,
    summary: str,
    example: str,
    work: Callable[[argparse.Namespace], int | None],
    *,
    extra: str,
) -> argparse.ArgumentParser:
    """Add a command that calls `work`, which returns the exit status; `extra` installs the packages it needs."""

    def run(arguments: argparse.Namespace) -> int:
        try:
            return work(arguments) or 0
        except BrokenPipeError:  # the reader of the output closed it, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except ModuleNotFoundError as error:
            print(f"{parser.prog} needs {error.name}: {install_command(extra)}", file=sys.stderr)
        except (ValueError, ImportError, OSError, NotImplementedError) as error:
            print(f"{parser.prog}: {_error_sentence(error)}", file=sys.stderr)
        return WRONG_USAGE

    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, module=work.__module__)
    return parser


def _error_sentence(error: Exception) -> str:
    """The message of an error; for a file, its path, the system's message and what to do."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}{ADVICE.get(error.errno or 0, '')}"
    return str(error)


def nonempty_text(value: str) -> str:
    """Argument type: text with at least one visible character."""
    _check_not_empty(value)
    _check_utf8(value)
    return value


def _check_not_empty(value: str) -> None:
    if not value.strip():
        raise argparse.ArgumentTypeError(f"must not be empty, got {value!r}")


def _check_utf8(value: str) -> None:
    """Refuse text that a UTF-8 file cannot store; only paths may have other bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"must be text in UTF-8, got {value!r}") from None


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """Argument type: an integer of at least `low` and at most `high`."""
    requirement = f"must be a whole number from {low}" + (f" to {high}" if high is not None else "")

    def read(value: str) -> int:
        try:
            parsed = int(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{requirement}, got {value!r}") from None
        if parsed < low or (high is not None and parsed > high):
            raise argparse.ArgumentTypeError(f"{requirement}, got {value!r}")
        return parsed

    return read


positive_integer = integer(1)
seed = integer(0, 2**63 - 1)
parallel_count = integer(1, MAX_PARALLEL)


def number(value: str) -> float:
    """Argument type: a number, whose range is checked where it is used."""
    try:
        return float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {value!r}") from None


def finite_number(low: float, *, above: bool = False) -> Callable[[str], float]:
    """Argument type: a finite number ≥ `low`, or > `low` if `above`."""
    requirement = f"must be a finite number {'>' if above else '≥'} {low:g}"

    def read(value: str) -> float:
        try:
            parsed = float(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{requirement}, got {value!r}") from None
        if not math.isfinite(parsed) or parsed < low or (above and parsed == low):
            raise argparse.ArgumentTypeError(f"{requirement}, got {value!r}")
        return parsed

    return read


def path(value: str) -> Path:
    """Argument type: a path."""
    _check_not_empty(value)
    if "\0" in value:
        raise argparse.ArgumentTypeError(f"must be a path, got {value!r}")
    return Path(value)


def folder(value: str) -> Path:
    """Argument type: a folder that exists or can be made."""
    parsed = path(value)
    try:
        existing = next(parent for parent in (parsed, *parsed.absolute().parents) if parent.exists())
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{value!r} cannot be a folder: {error.strerror}; give another name") from None
    if not existing.is_dir():
        raise argparse.ArgumentTypeError(f"{str(existing)!r} is a file, but a folder is needed; give another name")
    return parsed


def output_file(endings: Sequence[str] = ()) -> Callable[[str], Path]:
    """Argument type: a file to write; its name must have one of `endings`, if any are given."""

    def read(value: str) -> Path:
        parsed = path(value)
        try:
            if parsed.is_dir():
                raise argparse.ArgumentTypeError(f"{value!r} is a folder; give the name of a file")
            if parsed.exists() and not parsed.is_file():
                raise argparse.ArgumentTypeError(f"{value!r} is a device or a pipe; give the name of a file")
        except OSError as error:
            raise argparse.ArgumentTypeError(
                f"{value!r} cannot be a file: {error.strerror}; give another name"
            ) from None
        if not parsed.parent.is_dir():
            raise argparse.ArgumentTypeError(f"there is no folder {str(parsed.parent)!r}; make it first")
        if endings and parsed.suffix.lower() not in endings:
            raise argparse.ArgumentTypeError(f"must end in {', '.join(endings)}, got {value!r}")
        return parsed

    return read


def device(name: str) -> str:
    """Argument type: a torch device that this machine has."""
    import torch

    try:
        torch.zeros(1, device=nonempty_text(name)).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise argparse.ArgumentTypeError(f"there is no device {name!r} here: {reason}") from None
    return name


def assignment(text: str) -> tuple[str, Any]:
    """Argument type: NAME=VALUE. A value is a number, several numbers (0.9,0.999), True, None, or otherwise text."""
    _check_utf8(text)
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals and value):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, for example gamma=0.1, got {text!r}")
    return name, python_literal(value)


def python_literal(text: str) -> Any:
    """The value of a Python literal; the text itself if it is not a literal."""
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):  # a list as a key, too deep a nesting
        return text
