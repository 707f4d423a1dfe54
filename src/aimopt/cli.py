"""The command line: `aimopt COMMAND …`, and without a command what is live here.

A command is a module with `add_to`, which adds it; what it needs is imported when it runs.
"""

import argparse
import sys
from collections.abc import Sequence

from aimopt import __version__
from aimopt.bench import commands as bench
from aimopt.clean_text import clean_output
from aimopt.commands import Parser
from aimopt.lab import commands as lab
from aimopt.theory import commands as theory

COMMANDS = (lab, bench, theory)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the result is the exit status."""
    with clean_output():
        try:
            return _run(program(), arguments)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            return 130


def _run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    options = parser.parse_args(arguments)
    if not hasattr(options, "run"):
        print(f"{overview()}\n\n{parser.format_help()}", end="")
        return 0
    return int(options.run(options))


def program() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser("aimopt", description="Optimizers of three parts: filter, geometry, correction.")
    parser.add_argument("--version", action="version", version=f"aimopt {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for module in COMMANDS:
        module.add_to(commands)
    return parser


def overview() -> str:
    """The version, and the paths a step may take here."""
    from aimopt import kernels

    paths = [f"  {path:<12}{state}" for path, state in kernels.status().items()]
    return "\n".join([f"aimopt {__version__}", *paths])
