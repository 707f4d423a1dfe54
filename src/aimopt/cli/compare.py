"""`aimopt compare`: tune and compare optimizers on tasks."""

import argparse

from aimopt.cli.arguments import Subparsers, command, finite_number
from aimopt.cli.lab_arguments import (
    TASKS_HELP,
    add_optimizers,
    add_study_arguments,
    protocol_of,
    run_studies,
    study_fields,
    task_names,
)
from aimopt.lab.defaults import SCALE, TUNED


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
        help=TASKS_HELP,
    )
    add_optimizers(parser, "the optimizer that the others are compared with")
    parser.add_argument(
        "--tune",
        nargs="+",
        choices=TUNED,
        metavar="NAME",
        help=f"what is searched besides the learning rate: {' or '.join(TUNED)} (default: nothing)",
    )
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=finite_number(0, above=True),
        default=(),
        metavar="X",
        help="also train the reference at these multiples of the steps, such as 0.5 2: "
        "the report then says how many steps each contender saves (default: none)",
    )
    parser.add_argument("--no-untuned", action="store_true", help="skip the runs at the usual learning rates")
    add_study_arguments(parser)


def _compare(arguments: argparse.Namespace) -> int:
    from aimopt.lab import Contender, compare
    from aimopt.lab.protocol.lengths import check_factors

    fields = study_fields(arguments)
    if arguments.reference is not None:
        fields["reference"] = Contender.named(arguments.reference).label
    if arguments.no_untuned:
        fields["untuned"] = False
    scale = arguments.scale or SCALE
    studies = [
        compare(
            task,
            scale,
            optimizers=arguments.optimizers or (),
            protocol=protocol_of(task, scale, arguments.protocol),
            options=arguments.option,
            tune=arguments.tune or (),
            **fields,
        )
        for task in task_names(arguments.tasks)
    ]
    if arguments.lengths:  # its runs come last: a mistake is reported before anything is trained
        for study in studies:
            check_factors(study, arguments.lengths)
    return run_studies(studies, arguments, arguments.lengths)
