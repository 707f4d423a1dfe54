"""Completion in the shell: commands, options, and the names of tasks, presets, optimizers, scales and stores.

    eval "$(aimopt completion bash)"
    aimopt compare dig<TAB>                      aimopt compare digits
    aimopt compare digits --optimizers RA<TAB>   RAD  RADAR

argcomplete does the work: its shell code starts `aimopt` at every TAB, so newly installed names are completed too (the
script of shtab would not know them). torch takes seconds to import, so the names of tasks and presets come from the
metadata of installed packages, and the names of optimizers from the source of the package. Only the scales need the
tasks themselves, and with them torch.
"""

import argparse
import ast
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import argcomplete
from argcomplete.completers import BaseCompleter
from argcomplete.shell_integration import shellcode

from aimopt.cli.lab_arguments import ALL
from aimopt.cli.lab_arguments import task_names as task_names_of
from aimopt.lab.protocol.entry_points import PRESETS, TASKS

PACKAGE = Path(__file__).parents[1]


def shell_code(shell: str) -> str:
    """The code that a shell evaluates to complete `aimopt`; if nothing matches, the shell completes file names."""
    return shellcode(["aimopt"], shell=shell)


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the completions of the command line that the shell passes in environment variables, and exit."""
    add_completers(parser)
    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=_NoCompletions())


def add_completers(parser: argparse.ArgumentParser) -> None:
    """Set the completer of every argument of a parser and its commands, by the name of the argument."""
    for action in _all_actions(parser):
        action.type = None  # completion does not check values; a check may import torch
        if type(action).__module__ != "argparse":
            action.__class__ = argparse._StoreAction  # argcomplete calls only actions of argparse
        if action.dest in COMPLETERS and action.choices is None:
            action.completer = COMPLETERS[action.dest]  # type: ignore[attr-defined]


def _all_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _all_actions(command)
        else:
            yield action


def task_names() -> list[str]:
    """The installed tasks."""
    return TASKS.names()


def preset_names() -> list[str]:
    """The installed presets."""
    return PRESETS.names()


def optimizer_names() -> list[str]:
    """The optimizers of this package: the classes in the tuple `aimopt.optimizers.NAMED`, read from its source."""
    for statement in ast.parse((PACKAGE / "optimizers/__init__.py").read_text("utf-8")).body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "NAMED":
            assert isinstance(statement.value, ast.Tuple)
            return [ast.unparse(item) for item in statement.value.elts]
    return []


def scale_names(tasks: Iterable[str] = ()) -> list[str]:
    """The scales of these tasks; of all installed tasks if there are none."""
    from aimopt.lab.protocol.tasks import find

    scales: dict[str, None] = {}
    for name in list(tasks) or task_names():
        with contextlib.suppress(ValueError):  # a task that cannot be loaded has no scales
            scales |= dict.fromkeys(find(name).scales)
    return list(scales)


def folders(prefix: str) -> list[str]:
    """The folders that complete a path; a folder that is not a store ends with a slash, to continue inside it."""
    parent, start = os.path.split(prefix)
    try:
        entries = [entry for entry in os.scandir(os.path.expanduser(parent) or ".") if entry.is_dir()]
    except OSError:
        return []
    shown = [entry for entry in entries if entry.name.startswith(start) and (start or not entry.name.startswith("."))]
    return sorted(
        os.path.join(parent, entry.name) + ("" if os.path.isdir(os.path.join(entry.path, "studies")) else "/")
        for entry in shown
    )


class _NoCompletions(BaseCompleter):
    def __call__(self, **_: object) -> list[str]:
        return []


def _names(names: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    return lambda **_: list(names())


def _folders(prefix: str, **_: object) -> list[str]:
    return folders(prefix)


def _scales(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """The scales of the tasks that were typed before; `all` stands for several."""
    typed = getattr(parsed_args, "tasks", None) or [getattr(parsed_args, "task", None)]
    return scale_names(task_names_of([name for name in typed if name]))


COMPLETERS: Mapping[str, Callable[..., list[str]]] = {  # by the name under which argparse stores an argument
    "task": _names(task_names),
    "tasks": _names(lambda: [*task_names(), ALL]),
    "preset": _names(preset_names),
    "optimizer": _names(optimizer_names),
    "optimizers": _names(optimizer_names),
    "reference": _names(optimizer_names),
    "scale": _scales,
    "store": _folders,
    "report": _folders,
    "out": _folders,
}
