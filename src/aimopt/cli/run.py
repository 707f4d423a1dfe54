"""`aimopt run`: train one run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aimopt.cli.arguments import (
    FAILED,
    Subparsers,
    add_assignments,
    command,
    finite_number,
    path,
    positive_integer,
    seed,
)
from aimopt.cli.lab_arguments import (
    add_run_arguments,
    add_trust,
    from_file,
    print_line,
    print_stopped,
    protocol_of,
    refuse_options_stated_in_file,
    resources_of,
    save,
)
from aimopt.lab.defaults import SCALE

if TYPE_CHECKING:
    from aimopt.lab import RunConfig


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "run",
        "train one run",
        "aimopt run digits --optimizer RADAR --lr 1e-3 --seed 0 --option gamma=0.05",
        _run,
        extra="lab",
    )
    parser.add_argument("task", help="task by name or import path, or a file with a run (run.toml)")
    parser.add_argument("--optimizer", help="name of the optimizer (default: the subject of the task's protocol)")
    parser.add_argument(
        "--lr",
        type=finite_number(0, above=True),
        metavar="X",
        help="learning rate (default: the usual one on this task)",
    )
    parser.add_argument("--seed", type=seed, metavar="N", help="seed of the run (default: 0)")
    parser.add_argument(
        "--steps", type=positive_integer, metavar="N", help="stop after this many steps of the schedule"
    )
    add_assignments(parser, "--option", "option of the optimizer; may be repeated")
    parser.add_argument("--save", type=path, metavar="FILE", help="write the run to a TOML file and stop")
    add_trust(parser)
    add_run_arguments(parser)


def _run(arguments: argparse.Namespace) -> int:
    from aimopt.lab import Store, api
    from aimopt.lab.execution.console import CleanConsole

    config = _config(arguments)
    config.check_optimizer()
    if arguments.save is not None:
        return save(arguments.save, config.to_dict(), "run", [config.task, config.optimizer])
    console, store = CleanConsole(), Store(arguments.store)
    try:
        ended_run = api.run_one(
            config, store, engine=arguments.engine, resources=resources_of(arguments), progress=console
        )
    except KeyboardInterrupt:
        return print_stopped(console)
    last = dict(ended_run.history[-1]) if ended_run.history else {}
    reason = f" ({ended_run.reason})" if ended_run.reason else ""
    measures = ", ".join(f"{name} {value:.6g}" for name, value in last.items() if name != "step")
    print_line(console, "; ".join(filter(None, (f"{config}: {ended_run.status}{reason}", measures))))
    if store.folder(config).is_dir():  # with a full disk there may be no folder
        print_line(console, f"stored in {store.folder(config)}")
    return FAILED if ended_run.status == "failed" else 0


def _config(arguments: argparse.Namespace) -> "RunConfig":
    from aimopt.lab import Contender, RunConfig
    from aimopt.lab.protocol import study_files

    if Path(arguments.task).suffix in study_files.ENDINGS:
        refuse_options_stated_in_file(arguments, "optimizer", "lr", "seed", "steps", "option", "set", "scale")
        return from_file(arguments.task, lambda content: _config_in_file(content, arguments))
    scale = arguments.scale or SCALE
    protocol = protocol_of(arguments.task, scale)
    optimizer = arguments.optimizer or protocol.subject
    if optimizer is None:
        raise ValueError(f"the protocol of {arguments.task} has no subject; name an optimizer: --optimizer NAME")
    contender = Contender.named(optimizer)
    duplicates = [name for name in arguments.option if name in contender.options]
    if duplicates:
        raise ValueError(f"{contender.label} and --option both set {duplicates[0]}; set it once")
    return RunConfig.create(
        arguments.task,
        scale,
        optimizer=contender.optimizer,
        lr=arguments.lr,
        seed=arguments.seed or 0,
        steps=arguments.steps,
        options={**contender.options, **arguments.option},
        settings=arguments.set,
        protocol=protocol,
    )


def _config_in_file(content: dict[str, Any], arguments: argparse.Namespace) -> "RunConfig":
    from aimopt.lab import RunConfig
    from aimopt.lab.protocol import import_paths

    config = RunConfig.from_dict(content)
    import_paths.check_trusted((config.task, config.optimizer), arguments.trust)
    return config.completed()
