"""What the commands that train runs share: their arguments, and how they print results."""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aimopt.cli.arguments import (
    FAILED,
    STOPPED,
    add_assignments,
    device,
    finite_number,
    folder,
    parallel_count,
    positive_integer,
    seed,
)
from aimopt.lab.defaults import SCALE, STORE
from aimopt.lab.execution.resources import DEFAULT_ENGINE, ENGINES, Resources, check_engine
from aimopt.messages.clean_text import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from aimopt.lab import Protocol, Study

T = TypeVar("T")
PROTOCOLS = ("paper", "sequential")
ALL = "all"  # stands for the tasks of the paper
TASK_HELP = "task by name (see `aimopt tasks`) or import path (file.py:Class)"
TASKS_HELP = f"{TASK_HELP}; {ALL}: the paper's seven tasks"


def add_study_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that runs studies."""
    parser.add_argument(
        "--grid",
        nargs="+",
        type=finite_number(0, above=True),
        metavar="X",
        help="learning rates of the search, in units of the usual learning rate (default: the task's protocol)",
    )
    parser.add_argument(
        "--seeds", nargs="+", type=seed, metavar="N", help="seeds of the final runs (default: the task's protocol)"
    )
    parser.add_argument(
        "--search-steps",
        type=positive_integer,
        metavar="N",
        help="length of a search run (default: the task's protocol)",
    )
    add_assignments(parser, "--option", "option for all optimizers that have it; may be repeated")
    parser.add_argument(
        "--protocol",
        choices=PROTOCOLS,
        help="paper: a grid of learning rates, and five seeds; sequential: a search on three seeds, and seeds until a "
        "contender is decided (default: that of the task)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the time, memory and disk space that the runs need, and from what this is known; downloads nothing",
    )
    parser.add_argument("--no-costs", action="store_true", help="do not measure time and memory of a step")
    parser.add_argument("--report", type=folder, metavar="DIR", help="folder of the report (default: STORE/report)")
    add_run_arguments(parser)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that trains runs."""
    add_scale(parser)
    add_assignments(parser, "--set", "setting of the task; may be repeated")
    parser.add_argument(
        "--store", type=folder, default=Path(STORE), metavar="DIR", help=f"folder of the runs (default: {STORE})"
    )
    usual = Resources()
    resources = parser.add_argument_group("where runs are trained")
    resources.add_argument(
        "--engine",
        choices=tuple(ENGINES),
        default=DEFAULT_ENGINE,
        help=f"engine that starts the runs (default: {DEFAULT_ENGINE})",
    )
    resources.add_argument(
        "--workers",
        type=parallel_count,
        metavar="N",
        help="number of runs at once (default: one per core or device, 100 jobs on Slurm, all on Ray)",
    )
    resources.add_argument(
        "--threads",
        type=parallel_count,
        default=usual.threads,
        metavar="N",
        help=f"number of threads per run (default: {usual.threads})",
    )
    resources.add_argument(
        "--devices",
        nargs="+",
        type=device,
        default=[],
        metavar="DEVICE",
        help="devices of this machine, such as cuda:0 cuda:1 (default: the CPU)",
    )
    resources.add_argument(
        "--processes",
        type=parallel_count,
        default=usual.processes,
        metavar="N",
        help=f"number of processes per run, started by torchrun (default: {usual.processes})",
    )
    resources.add_argument(
        "--gpus",
        type=finite_number(0),
        default=usual.gpus,
        metavar="X",
        help=f"GPUs per run, with --engine slurm or ray; on Ray also a fraction (default: {usual.gpus:g})",
    )
    add_assignments(resources, "--slurm", "parameter of submitit, with --engine slurm; may be repeated")
    resources.add_argument(
        "--checkpoint-seconds",
        type=finite_number(0),
        default=usual.checkpoint_seconds,
        metavar="X",
        help=f"seconds between two checkpoints (default: {usual.checkpoint_seconds:g})",
    )
    resources.add_argument("--keep-weights", action="store_true", help="keep the weights of finished runs")


def add_optimizers(
    parser: argparse.ArgumentParser, reference: str, default: str = "those of the task's protocol"
) -> None:
    """Add the optimizers of a comparison; `reference` says what the reference is for."""
    parser.add_argument(
        "--optimizers",
        nargs="+",
        metavar="NAME",
        help=f"optimizers, such as RADAR, 'RADAR(gamma=0.05)' or module:Class (default: {default})",
    )
    parser.add_argument(
        "--reference",
        metavar="NAME",
        help=f"{reference} (default: that of the task's protocol; if it is not compared, the last optimizer)",
    )


def add_scale(parser: argparse.ArgumentParser) -> None:
    """Add the scale of the task; without it, `None`, so that a file that states a scale can refuse it."""
    parser.add_argument("--scale", help=f"scale of the task, of those that `aimopt tasks` lists (default: {SCALE})")


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the argument of a command that reads files; a file may name code."""
    parser.add_argument("--trust", action="store_true", help="run the code that the file names; read that code first")


def study_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of a study that are given as arguments."""
    given = {"grid": arguments.grid, "seeds": arguments.seeds}
    fields: dict[str, Any] = {name: tuple(values) for name, values in given.items() if values}
    if arguments.search_steps is not None:
        fields["search_steps"] = arguments.search_steps
    if arguments.set:
        fields["settings"] = arguments.set
    return fields


def protocol_of(task: str, scale: str, edition: str | None = None) -> "Protocol":
    """The protocol of a task, with the paper's optimizers if the task has none; `edition` is one of `PROTOCOLS`."""
    from aimopt.lab.protocol import tasks
    from aimopt.paper.protocols import PROTOCOL

    entry = tasks.entry(task)
    protocol = entry.protocol(scale) if entry.protocols else PROTOCOL.sequential()
    return {None: protocol, "paper": protocol.fixed(), "sequential": protocol.sequential()}[edition]


def task_names(given: list[str]) -> list[str]:
    """The names without repetition; the names of the paper's tasks replace `all`."""
    from aimopt.paper.entries import TASKS

    return list(dict.fromkeys(name for given_name in given for name in (TASKS if given_name == ALL else (given_name,))))


def resources_of(arguments: argparse.Namespace) -> Resources:
    """The resources for the runs, from the arguments."""
    resources = Resources(
        workers=arguments.workers,
        threads=arguments.threads,
        devices=tuple(arguments.devices),
        gpus=arguments.gpus,
        processes=arguments.processes,
        checkpoint_seconds=arguments.checkpoint_seconds,
        keep_weights=arguments.keep_weights,
        slurm=arguments.slurm,
    )
    check_engine(arguments.engine, resources)
    return resources


def run_studies(studies: "list[Study]", arguments: argparse.Namespace, lengths: Sequence[float] = ()) -> int:
    """Run studies, print their results and return the exit status.

    `lengths` are multiples of the steps at which the reference is trained too, after its search.
    """
    from aimopt.lab import api
    from aimopt.lab.execution.console import CleanConsole
    from aimopt.lab.execution.progress import format_duration
    from aimopt.lab.findings import write_report
    from aimopt.lab.report import terminal_table

    console = CleanConsole()
    if arguments.dry_run:
        for study in studies:
            _print_forecast(study, arguments, console, len(studies))
        if lengths:
            print_line(console, "- the reference at other lengths is not included")
        return 0
    execution = {"engine": arguments.engine, "resources": resources_of(arguments), "progress": console}
    try:
        batch = api.run_all(studies, arguments.store, costs=not arguments.no_costs, **execution)
        if lengths and not batch.failed:
            batch = api.run_lengths(batch, arguments.store, lengths, **execution)
    except KeyboardInterrupt:
        return print_stopped(console)
    for findings in batch.findings:
        console.print(terminal_table(findings.analysis))
    for line in (*map(str, batch.problems), *(run.failure() for run in batch.failed)):
        print_line(console, line)
    print_line(console, f"{batch.runs} runs in {format_duration(batch.seconds)}, {batch.reused_runs} of them reused")
    print_line(console, f"report: {write_report(batch.findings, arguments.report or arguments.store / 'report')}")
    return FAILED if batch.failed else 0


def _print_forecast(study: "Study", arguments: argparse.Namespace, console: "Console", studies: int) -> None:
    from aimopt.lab import api
    from aimopt.lab.execution.cost_forecast import TIMING_SECONDS
    from aimopt.lab.execution.progress import format_duration

    seconds = max(TIMING_SECONDS / studies, TIMING_SECONDS / 2)  # a process needs some seconds to start
    forecast = api.forecast(study, arguments.store, resources_of(arguments), seconds)
    runs = f"{forecast.runs} runs at most, {forecast.reused} reused"
    if forecast.step_seconds is None or forecast.seconds is None or forecast.first_seconds is None:
        times = ["the time is not known"]
    else:
        times = [f"{forecast.step_seconds * 1e3:.1f} ms per step"]
        times += [f"{forecast.evaluation_seconds:.2f} s per evaluation"] if forecast.evaluation_seconds else []
        least = f"{format_duration(forecast.first_seconds)} to " if forecast.first_runs < forecast.runs else ""
        at_once = f"{forecast.parallel_runs} run{'s' * (forecast.parallel_runs != 1)} at once"
        times += [f"about {least}{format_duration(forecast.seconds)} with {at_once}"]
    memory = [f"{forecast.peak_bytes / 2**20:.0f} MiB of memory per run"] if forecast.peak_bytes else []
    space = ", ".join([*memory, f"{forecast.disk_bytes / 2**20:.1f} MiB of disk"])
    print_line(
        console, f"{study.name} of {study.task} at scale {study.scale}: {'; '.join([runs, ', '.join(times), space])}"
    )
    for sentence in forecast.basis:
        print_line(console, f"- {sentence}")


def print_stopped(console: "Console") -> int:
    """Print how to continue after Ctrl-C and return the exit status."""
    print_line(console, f"stopped; nothing is lost. Continue with: {shlex.join(['aimopt', *sys.argv[1:]])}")
    return STOPPED


def print_line(console: "Console", text: str) -> None:
    """Print one line without markup."""
    console.print(one_line(text), markup=False, highlight=False, soft_wrap=True)


def from_file(file: str, make: Callable[[dict[str, Any]], T]) -> T:
    """Call `make` with the content of a file; a message about a mistake starts with the name of the file."""
    from aimopt.lab.protocol import study_files

    content = study_files.read(Path(file))
    try:
        return make(content)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def refuse_options_stated_in_file(arguments: argparse.Namespace, *names: str) -> None:
    """Refuse options that the file states."""
    for name in names:
        if getattr(arguments, name) not in (None, {}):
            option = name.replace("_", "-")
            raise ValueError(f"{arguments.task} states --{option}; change it in the file, or give a task instead")


def save(file: Path, content: dict[str, Any], command: str, names: Sequence[str]) -> int:
    """Write a study or a run to a file, print the command that runs it, and return the exit status."""
    from aimopt.lab.protocol import import_paths, study_files

    study_files.save(file, content)
    again = shlex.join(["aimopt", command, str(file), *import_paths.trust_needed(names)])
    print(f"written to {file}; run it with: {again}")
    return 0
