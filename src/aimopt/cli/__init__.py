"""The command line: `aimopt COMMAND …`. Without a command it prints the execution paths of this machine and the help.

A command is a module with `add_to`, which adds it to the parser. It imports what it needs when it runs.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType

from aimopt import __version__
from aimopt.cli import bench, compare, explore, lists, overhead, results, run, sweep, theory
from aimopt.cli.arguments import STOPPED, Parser
from aimopt.lab.execution.log_lines import log_on_stderr
from aimopt.messages.clean_text import clean_output
from aimopt.messages.text_table import text_table

COMMANDS = (compare, sweep, explore, run, overhead, results, lists, bench, theory)


def main(arguments: Sequence[str] | None = None, *, before_run: Callable[[], None] = lambda: None) -> int:
    """Run a command and return the exit status. `before_run` is called when its arguments and imports are there."""
    if "_ARGCOMPLETE" in os.environ:
        from aimopt.cli.completion import complete

        complete(program())
    with clean_output(), log_on_stderr():
        try:
            return _run(program(), arguments, before_run)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            return STOPPED


def _run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None, before_run: Callable[[], None]) -> int:
    options = parser.parse_args(arguments)
    if hasattr(options, "run"):
        _import_for(sys.modules[options.module])
    before_run()
    if not hasattr(options, "run"):
        print(f"{overview()}\n\n{parser.format_help()}", end="")
        return 0
    return int(options.run(options))


def _import_for(command: ModuleType) -> None:
    """Import what a command lists in IMPORTS. If one is missing, the command reports it."""
    for name in getattr(command, "IMPORTS", ()):
        with suppress(ImportError):
            import_module(name)


def program() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = Parser("aimopt", description="Optimizers of parts: filter, geometry, correction, decay, iterate.")
    parser.add_argument("--version", action="version", version=f"aimopt {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for module in COMMANDS:
        module.add_to(commands)
    return parser


def overview() -> str:
    """The version, and the state of each execution path of a step on this machine."""
    from aimopt import kernels

    paths = text_table([("", path, state) for path, state in kernels.status().items()])
    return f"aimopt {__version__}\n{paths}"
