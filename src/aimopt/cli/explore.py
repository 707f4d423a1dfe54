"""`aimopt explore`: successive halving over optimizers and their options, on one task."""

import argparse

from aimopt.cli.arguments import FAILED, Subparsers, add_assignments, command, finite_number, positive_integer
from aimopt.cli.lab_arguments import (
    TASK_HELP,
    add_optimizers,
    add_run_arguments,
    print_line,
    print_stopped,
    protocol_of,
    resources_of,
)
from aimopt.lab.defaults import RATES, RUNGS, SCALE


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "explore",
        "try many optimizers on a task, the best third with more seeds; suggests what to compare",
        "aimopt explore digits --optimizers AdamW RADAR 'RADAR(gamma=0.4)' Muon 'Muon(rest=\"RADAR\")'",
        _explore,
        extra="lab",
    )
    parser.add_argument("task", help=TASK_HELP)
    add_optimizers(
        parser,
        "the optimizer that reaches the last rung in any case",
        default="those that the task's protocol explores",
    )
    parser.add_argument(
        "--rates",
        nargs="+",
        type=finite_number(0, above=True),
        default=list(RATES),
        metavar="X",
        help=f"learning rates, in units of the usual one (default: {' '.join(f'{rate:g}' for rate in RATES)})",
    )
    parser.add_argument(
        "--rungs",
        nargs="+",
        type=positive_integer,
        default=list(RUNGS),
        metavar="N",
        help=f"number of seeds per rung (default: {' '.join(map(str, RUNGS))})",
    )
    add_assignments(parser, "--option", "option for all optimizers that have it; may be repeated")
    add_run_arguments(parser)


def _explore(arguments: argparse.Namespace) -> int:
    from aimopt.lab import Exploration, explore
    from aimopt.lab.analysis.explored import PROVES_NOTHING
    from aimopt.lab.execution.console import CleanConsole

    scale = arguments.scale or SCALE
    exploration = Exploration.of(
        arguments.task,
        scale,
        optimizers=arguments.optimizers or (),
        rates=arguments.rates,
        rungs=arguments.rungs,
        reference=arguments.reference,
        protocol=protocol_of(arguments.task, scale),
        options=arguments.option,
        settings=arguments.set,
    )
    console = CleanConsole()
    try:
        explored = explore(
            exploration,
            arguments.store,
            engine=arguments.engine,
            resources=resources_of(arguments),
            progress=console,
        )
    except KeyboardInterrupt:
        return print_stopped(console)
    console.print(explored.table(), markup=False, highlight=False, soft_wrap=True)
    remark = [PROVES_NOTHING] if explored.best() else []
    for line in (*(run.failure() for run in explored.failed), *remark, explored.confirmation()):
        print_line(console, line)
    return FAILED if explored.failed else 0
