"""`aimopt compare`: tune and compare optimizers on tasks."""

import argparse

from aimopt.cli.arguments import Subparsers, command
from aimopt.cli.lab_arguments import (
    DEFAULT_SCALE,
    add_study_arguments,
    protocol_of,
    run_studies,
    study_fields,
)

ALL = "all"


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "compare",
        "tune and compare optimizers on tasks: table, verdicts and report",
        "aimopt compare digits --scale demo --optimizers RADAR AdamW 'RADAR(gamma=0)' torch.optim:Adagrad",
        _compare,
        extra="lab",
    )
    parser.add_argument(
        "tasks",
        nargs="+",
        metavar="task",
        help=f"task by name (see `aimopt tasks`) or import path (file.py:Class); {ALL}: the paper's seven tasks",
    )
    parser.add_argument(
        "--optimizers",
        nargs="+",
        metavar="NAME",
        help="optimizers, such as RADAR, 'RADAR(gamma=0.05)' or module:Class (default: the paper's eight)",
    )
    parser.add_argument(
        "--reference", metavar="NAME", help="the optimizer that the others are compared with (default: AdamW)"
    )
    parser.add_argument("--no-untuned", action="store_true", help="skip the runs at the usual learning rates")
    add_study_arguments(parser)


def task_names(given: list[str]) -> list[str]:
    """The names without repetition; the names of the paper's tasks replace `all`."""
    from aimopt.paper.entries import TASKS

    return list(dict.fromkeys(name for one in given for name in (TASKS if one == ALL else (one,))))


def _compare(arguments: argparse.Namespace) -> int:
    from aimopt.lab import Contender, compare

    fields = study_fields(arguments)
    if arguments.reference is not None:
        fields["reference"] = Contender.named(arguments.reference).label
    if arguments.no_untuned:
        fields["untuned"] = False
    scale = arguments.scale or DEFAULT_SCALE
    studies = [
        compare(
            task,
            scale,
            optimizers=arguments.optimizers or (),
            protocol=protocol_of(task, scale),
            options=arguments.option,
            **fields,
        )
        for task in task_names(arguments.tasks)
    ]
    return run_studies(studies, arguments)
