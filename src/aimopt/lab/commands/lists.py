"""`aimopt tasks`, `aimopt optimizers`, `aimopt prepare` and `aimopt completion`: what there could be."""

import argparse
import sys

from aimopt.commands import Subparsers, command


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
        help="a task (see `aimopt tasks`), yours (file.py:Class), or all: the paper's",
    )
    prepare.add_argument("--scale", default="mini", help="of the task (mini)")
    completion = command(
        subparsers,
        "completion",
        "print what a shell needs to complete commands",
        'eval "$(aimopt completion bash)"',
        _completion,
        extra="lab",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def _tasks(arguments: argparse.Namespace) -> None:
    from aimopt.bench.timing import aligned
    from aimopt.lab.tasks import available, find

    rows = [("task", "what", "scales", "reported")]
    for name in available():
        task = find(name)
        rows.append(
            (name, task.title, ", ".join(task.scales), f"{task.measure.label}, {task.measure.better} is better")
        )
    print(aligned(rows))


def _optimizers(arguments: argparse.Namespace) -> None:
    from aimopt.bench.timing import aligned
    from aimopt.lab.optimizers import PAPER, describe

    rows = [(name, "paper" if name in PAPER else "", summary) for name, summary in describe()]
    print(aligned([("optimizer", "", "what"), *rows]))
    print("\nAny torch optimizer is named by its place: torch.optim:Adagrad, or file.py:Class")


def _prepare(arguments: argparse.Namespace) -> int:
    from aimopt.lab.tasks import find, named, prepare
    from aimopt.lab.user_code import user_code

    tasks = {name: find(name).at(arguments.scale) for name in named(arguments.tasks)}
    missing = 0
    for name, task in tasks.items():
        try:
            prepare(name, task)
            with user_code("the data cannot be read", explained=(OSError, ImportError, ValueError)):
                print(f"{name}: ready, data sha256 {task.checksum()}", flush=True)
        except (OSError, ImportError, ValueError) as error:  # the others may be had
            missing += 1
            print(f"{name}: {error}", file=sys.stderr)
    return 1 if missing else 0


def _completion(arguments: argparse.Namespace) -> None:
    import shtab

    from aimopt.cli import program

    print(shtab.complete(program(), arguments.shell))
