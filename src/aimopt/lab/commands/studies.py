"""`aimopt compare`, `aimopt sweep` and `aimopt run`: commands that train."""

import argparse
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aimopt.commands import (
    Subparsers,
    add_assignments,
    at_once,
    command,
    device,
    folder,
    literal,
    number,
    path,
    positive,
    seed,
)

if TYPE_CHECKING:
    from aimopt.lab.config import RunConfig
    from aimopt.lab.engines import Resources
    from aimopt.lab.study import Study

T = TypeVar("T")
SCALE, OPTIMIZER = "mini", "RADAR"
PRESETS = ("ablation", "heatmap", "delta", "zeta")


def add_to(subparsers: Subparsers) -> None:
    """Add the commands."""
    compare = command(
        subparsers,
        "compare",
        "tune and compare optimizers on a task: table, verdicts and report",
        "aimopt compare digits --scale demo --optimizers RADAR AdamW 'RADAR(gamma=0)' torch.optim:Adagrad",
        _compare,
        extra="lab",
    )
    compare.add_argument(
        "tasks",
        nargs="+",
        metavar="task",
        help="a task (see `aimopt tasks`), yours (file.py:Class), or all: the paper's",
    )
    compare.add_argument(
        "--optimizers",
        nargs="+",
        metavar="NAME",
        help="names, with options: 'RADAR(gamma=0.05)', or module:Class (the paper's 8)",
    )
    compare.add_argument("--reference", metavar="NAME", help="whom verdicts are about (AdamW)")
    compare.add_argument("--no-untuned", action="store_true", help="skip the runs at the usual learning rates")
    _add_study_arguments(compare)

    sweep = command(
        subparsers,
        "sweep",
        "one optimizer over values of its options, or a study from a file",
        "aimopt sweep digits --over gamma=0,0.1,0.2 --over ell_ratio=0,0.01",
        _sweep,
        extra="lab",
    )
    sweep.add_argument("task", help="a task, or a study in a file: study.toml")
    sweep.add_argument("--preset", choices=PRESETS, help="a study of the paper")
    add_assignments(sweep, "--over", "an option's values", metavar="NAME=V,V")
    sweep.add_argument("--optimizer", help="whose options (RADAR)")
    sweep.add_argument("--save", type=path, metavar="FILE", help="write the study there (TOML, YAML, JSON) and stop")
    _add_trust(sweep)
    _add_study_arguments(sweep)

    run = command(
        subparsers,
        "run",
        "train one run",
        "aimopt run digits --optimizer RADAR --lr 1e-3 --seed 0 --option gamma=0.05",
        _run,
        extra="lab",
    )
    run.add_argument("task", help="a task, or a run in a file: run.toml")
    run.add_argument("--optimizer", help="its name (RADAR)")
    run.add_argument("--lr", type=number(0, above=True), help="learning rate (the task's)")
    run.add_argument("--seed", type=seed, help="seed (0)")
    run.add_argument("--steps", type=positive, help="stop after so many steps of the schedule")
    add_assignments(run, "--option", "of the optimizer")
    run.add_argument("--save", type=path, metavar="FILE", help="write the run there (TOML, YAML, JSON) and stop")
    _add_trust(run)
    _add_common_arguments(run)


def _add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trust", action="store_true", help="run the code that the file names; read it before")


def _add_study_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grid",
        nargs="+",
        type=number(0, above=True),
        metavar="X",
        help="learning rates, in units of η₀ (the task's: 0.1 0.5 1 5 10)",
    )
    parser.add_argument("--seeds", nargs="+", type=seed, metavar="N", help="final seeds (the task's: 0 1 2 3 4)")
    parser.add_argument("--dry-run", action="store_true", help="say what it would take, and stop")
    parser.add_argument("--no-costs", action="store_true", help="do not measure time and memory of a step")
    parser.add_argument("--report", type=folder, metavar="DIR", help="where the report goes (STORE/report)")
    _add_common_arguments(parser)


def _add_common_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", help="of the task: mini, paper, … (mini)")
    add_assignments(parser, "--set", "of the task")
    parser.add_argument(
        "--store", type=folder, default=Path("results"), metavar="DIR", help="where results are kept (results)"
    )
    place = parser.add_argument_group("where runs are made")
    place.add_argument("--engine", choices=("local", "ray", "slurm"), default="local")
    place.add_argument("--workers", type=at_once, help="runs at once (one a core, or a device)")
    place.add_argument("--threads", type=at_once, default=1, help="of a run (1)")
    place.add_argument(
        "--devices", nargs="+", type=device, default=[], metavar="DEVICE", help="such as cuda:0 cuda:1 (the processor)"
    )
    place.add_argument("--processes", type=at_once, default=1, help="of a run, started by torchrun (1)")
    place.add_argument("--gpu-share", type=number(0), default=0.0, help="of a GPU for a run, on Ray")
    add_assignments(place, "--slurm", "for submitit")
    place.add_argument("--checkpoint-seconds", type=number(0), default=30.0, help="between two checkpoints (30)")
    place.add_argument("--keep-weights", action="store_true", help="of finished runs")


def _compare(arguments: argparse.Namespace) -> int:
    from aimopt.lab import optimizers
    from aimopt.lab.study import Contender, compare
    from aimopt.lab.tasks import named

    overrides = _overrides(arguments)
    if arguments.reference is not None:
        overrides["reference"] = Contender.named(arguments.reference).label
    if arguments.no_untuned:
        overrides["untuned"] = False
    contenders = arguments.optimizers or optimizers.PAPER
    return _carry_out(
        [
            compare(task, arguments.scale or SCALE, optimizers=contenders, **overrides)
            for task in named(arguments.tasks)
        ],
        arguments,
    )


def _sweep(arguments: argparse.Namespace) -> int:
    from aimopt.lab import files

    study = _study_to_sweep(arguments)
    study.check()
    if arguments.save is not None:
        files.save(arguments.save, study.to_dict())
        command = _command("sweep", arguments.save, study.task_and_optimizers())
        print(f"written to {arguments.save}; carry it out with: {command}")
        return 0
    return _carry_out([study], arguments)


def _study_to_sweep(arguments: argparse.Namespace) -> "Study":
    from aimopt.lab import files, optimizers
    from aimopt.lab.study import DELTA, HEAT_MAP, ZETA, ablation, sensitivity

    if Path(arguments.task).suffix in files.ENDINGS:
        _refuse_what_the_file_says(arguments, "preset", "over", "optimizer", "scale", "set")
        return _made_from_file(arguments, lambda kept: _study_of(kept, arguments))
    if arguments.over and arguments.preset:
        raise ValueError(f"--over and --preset {arguments.preset} say two different things; give one")
    if arguments.preset == "ablation":
        if arguments.optimizer is not None and optimizers.canonical(arguments.optimizer) != OPTIMIZER:
            raise ValueError(
                f"--preset ablation takes {OPTIMIZER} apart, not {arguments.optimizer}; leave --optimizer out, "
                "or name what to sweep: --over weight_decay=0,0.1"
            )
        return ablation(arguments.task, arguments.scale or SCALE, **_overrides(arguments))
    presets = {"heatmap": HEAT_MAP, "delta": DELTA, "zeta": ZETA}
    over = {name: _values(name, value) for name, value in arguments.over.items()}
    axes = presets[arguments.preset] if arguments.preset else over
    if not axes:
        raise ValueError(f"say what to sweep: --over gamma=0,0.1 or --preset {{{','.join(PRESETS)}}}")
    return sensitivity(
        arguments.task,
        arguments.scale or SCALE,
        axes,
        optimizer=arguments.optimizer or OPTIMIZER,
        **_overrides(arguments),
    )


def _run(arguments: argparse.Namespace) -> int:
    from aimopt.lab import files
    from aimopt.lab.config import RunConfig
    from aimopt.lab.console import CleanConsole
    from aimopt.lab.investigation import make_run
    from aimopt.lab.study import Contender

    if Path(arguments.task).suffix in files.ENDINGS:
        _refuse_what_the_file_says(arguments, "optimizer", "lr", "seed", "steps", "option", "set", "scale")
        config = _made_from_file(arguments, lambda kept: _run_of(kept, arguments))
    else:
        named = Contender.named(arguments.optimizer or OPTIMIZER)
        twice = [name for name in arguments.option if name in named.options]
        if twice:
            raise ValueError(f"{named.label} and --option both say what {twice[0]} is; say it once")
        config = RunConfig.of(
            arguments.task,
            arguments.scale or SCALE,
            optimizer=named.optimizer,
            lr=arguments.lr,
            seed=arguments.seed or 0,
            steps=arguments.steps,
            options={**named.options, **arguments.option},
            settings=arguments.set,
        )
    config.check_optimizer()
    if arguments.save is not None:
        files.save(arguments.save, config.to_dict())
        command = _command("run", arguments.save, [config.task, config.optimizer])
        print(f"written to {arguments.save}; make the run with: {command}")
        return 0
    return make_run(config, arguments.store, arguments.engine, _resources(arguments), CleanConsole())


def _command(command: str, file: Path, names: Sequence[str]) -> str:
    """How to carry out what a file says that holds these names."""
    from aimopt.lab import references

    return shlex.join(["aimopt", command, str(file), *references.trust_needed(names)])


def _carry_out(studies: "list[Study]", arguments: argparse.Namespace) -> int:
    from aimopt.lab.console import CleanConsole
    from aimopt.lab.investigation import foresee, investigate

    if arguments.dry_run:
        foresee(studies, arguments.store, _resources(arguments), CleanConsole())
        return 0
    return investigate(
        studies,
        arguments.store,
        engine=arguments.engine,
        resources=_resources(arguments),
        costs=not arguments.no_costs,
        folder=arguments.report,
        console=CleanConsole(),
    )


def _made_from_file(arguments: argparse.Namespace, make: Callable[[dict[str, Any]], T]) -> T:
    """What a file on the command line says; a mistake in it is told with its name."""
    from aimopt.lab import files

    kept = files.read(Path(arguments.task))
    try:
        return make(kept)
    except ValueError as error:
        raise ValueError(f"{arguments.task}: {error}") from None


def _study_of(kept: dict[str, Any], arguments: argparse.Namespace) -> "Study":
    from aimopt.lab.study import Study

    asked = {name: value for name, value in kept.items() if name != "facts"}  # the code of today decides what is run
    return Study.from_record({**asked, **_overrides(arguments)}, trust=arguments.trust)


def _run_of(kept: dict[str, Any], arguments: argparse.Namespace) -> "RunConfig":
    from aimopt.lab import references
    from aimopt.lab.config import RunConfig

    config = RunConfig.from_dict(kept)
    references.check_trusted((config.task, config.optimizer), arguments.trust)
    config.check()
    return config


def _refuse_what_the_file_says(arguments: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(arguments, name) not in (None, {}):
            raise ValueError(
                f"{arguments.task} says what --{name} is; change it there, or name the task and not the file"
            )


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of a study that were said."""
    said: dict[str, Any] = {}
    if arguments.grid:
        said["grid"] = tuple(arguments.grid)
    if arguments.seeds:
        said["seeds"] = tuple(arguments.seeds)
    if arguments.set:
        said["settings"] = arguments.set
    return said


def _resources(arguments: argparse.Namespace) -> "Resources":
    from aimopt.lab.engines import Resources

    return Resources(
        workers=arguments.workers,
        threads=arguments.threads,
        devices=tuple(arguments.devices),
        gpu_share=arguments.gpu_share,
        processes=arguments.processes,
        checkpoint_seconds=arguments.checkpoint_seconds,
        keep_weights=arguments.keep_weights,
        slurm=arguments.slurm,
    )


def _values(name: str, value: Any) -> tuple[Any, ...]:
    """The values of an option; of texts, too, there may be several: exact,False."""
    if isinstance(value, str):
        return tuple(literal(part) for part in value.split(","))
    values = value if isinstance(value, tuple) else (value,)
    if not values:
        raise ValueError(f"--over {name} has no values; write --over {name}=0,0.1")
    return values
