"""`aimopt tasks`, `aimopt optimizers`, `aimopt prepare` and `aimopt completion`: names for other commands, and data."""

import argparse
import sys

from aimopt.cli.arguments import FAILED, Subparsers, command
from aimopt.cli.lab_arguments import TASKS_HELP, add_scale, task_names
from aimopt.lab.defaults import SCALE

SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")  # the shells that argcomplete supports


def add_to(subparsers: Subparsers) -> None:
    """Add the commands."""
    command(subparsers, "tasks", "list the tasks and their scales", "aimopt tasks", _tasks, extra="lab")
    command(subparsers, "optimizers", "list the optimizers", "aimopt optimizers", _optimizers, extra="lab")
    prepare = command(
        subparsers, "prepare", "fetch and check the data of tasks", "aimopt prepare digits", _prepare, extra="lab"
    )
    prepare.add_argument(
        "tasks",
        nargs="+",
        metavar="task",
        help=TASKS_HELP,
    )
    add_scale(prepare)
    completion = command(
        subparsers,
        "completion",
        "print code that lets a shell complete commands, options, tasks, optimizers and stores",
        'eval "$(aimopt completion bash)"',
        _completion,
        extra="lab",
    )
    completion.add_argument("shell", choices=SHELLS, help="the shell to complete in")


def _tasks(arguments: argparse.Namespace) -> None:
    from aimopt.lab.protocol.tasks import available, find
    from aimopt.messages.text_table import text_table

    rows = [("task", "title", "scales", "reported measure")]
    for name in available():
        try:
            task = find(name)
        except ValueError as error:  # in another package; the other tasks can still be used
            rows.append((name, f"cannot be used: {error}", "", ""))
            continue
        rows.append(
            (name, task.title, ", ".join(task.scales), f"{task.measure.label}, {task.measure.better} is better")
        )
    print(text_table(rows))


def _optimizers(arguments: argparse.Namespace) -> None:
    from aimopt.lab.protocol.optimizers import describe
    from aimopt.messages.text_table import text_table
    from aimopt.paper.protocols import OPTIMIZERS

    rows = [(name, "paper" if name in OPTIMIZERS else "", summary) for name, summary in describe()]
    print(text_table([("optimizer", "", "description"), *rows]))
    print("\nAny other torch optimizer is named by its import path: torch.optim:Adagrad or file.py:Class")


def _prepare(arguments: argparse.Namespace) -> int:
    from aimopt.lab.protocol.tasks import find, prepare
    from aimopt.lab.protocol.user_code import user_code

    tasks = {name: find(name).at_scale(arguments.scale or SCALE) for name in task_names(arguments.tasks)}
    missing = 0
    for name, task in tasks.items():
        try:
            prepare(name, task)
            with user_code("the data cannot be read", explained=(OSError, ImportError, ValueError)):
                print(f"{name}: ready, data sha256 {task.checksum()}", flush=True)
        except (OSError, ImportError, ValueError) as error:  # the data of the other tasks may be available
            missing += 1
            print(f"{name}: {error}", file=sys.stderr)
    return FAILED if missing else 0


def _completion(arguments: argparse.Namespace) -> None:
    from aimopt.cli.completion import shell_code

    print(shell_code(arguments.shell))
