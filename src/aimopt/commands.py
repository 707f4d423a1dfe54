"""What every command of the command line shares: a help that ends with an example, and mistakes told in a sentence.

Exit status: 0 done, 1 done but something failed, 2 wrong usage, 130 stopped by Ctrl-C.
"""

import argparse
import ast
import errno
import os
import sys
from collections.abc import Callable
from typing import Any

Subparsers = Any  # argparse keeps the type private
ADVICE = {
    errno.ENOSPC: "; make room, and give the command again to go on",
    errno.EROFS: "; choose a folder that can be written to",
    errno.EACCES: "; choose a folder that you may use",
}


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
            print(f"aimopt {name} needs {error.name}: pip install 'aimopt[{extra}]'", file=sys.stderr)
        except (ValueError, ImportError, OSError, NotImplementedError) as error:
            print(f"aimopt {name}: {_sentence(error)}", file=sys.stderr)
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


def positive(text: str) -> int:
    """A whole number from 1, as an argument."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def assignment(text: str) -> tuple[str, Any]:
    """NAME=VALUE, as an argument; a value is a number, several (0.9,0.999), True, None or else a text."""
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
