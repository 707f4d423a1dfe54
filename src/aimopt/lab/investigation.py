"""From a question to an answer: prepare the data, make the runs, measure the costs, write the report.

investigate([compare("digits", "demo")], "results")
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from aimopt.clean_text import one_line
from aimopt.lab import references, report, tasks
from aimopt.lab.analysis import Findings, analyse
from aimopt.lab.config import RunConfig
from aimopt.lab.console import CleanConsole
from aimopt.lab.engines import Resources, open_engine
from aimopt.lab.estimate import estimate
from aimopt.lab.execution import OneRun, execute
from aimopt.lab.measurement import measure
from aimopt.lab.progress import duration, shown
from aimopt.lab.runner import explain
from aimopt.lab.store import Store
from aimopt.lab.study import Study

FAILED, STOPPED = 1, 130  # exit status
REFRESH_SECONDS = 5.0


def investigate(
    studies: Sequence[Study],
    root: str | Path = "results",
    *,
    engine: str = "local",
    resources: Resources = Resources(),  # noqa: B008, it is frozen
    costs: bool = True,
    folder: Path | None = None,
    console: Console | None = None,
) -> int:
    """Carry studies out and show what came of them, in the terminal and as a report; the result is the exit status."""
    say, store = console or CleanConsole(), Store(root)
    for study in studies:
        store.save_study(study)
        try:
            tasks.prepare(study.task, study.make_task())
        except Exception as error:  # its runs fail one by one, with this reason; other studies go on
            _print(say, f"cannot prepare {study.task}: {explain(error)}")
    try:
        with open_engine(engine, store, resources) as opened, shown(say, store) as watch:
            situation = execute(studies, store, opened, watch)
        took = duration(situation.seconds)
        if costs:
            _measure_costs(studies, store, resources, say)
    except KeyboardInterrupt:
        _print(say, f"stopped; nothing is lost. Go on with: {_command_line()}")
        return STOPPED
    for found in findings(store, studies):
        say.print(report.terminal_table(found))
    for run in situation.failed:
        _print(say, run.failure())
    _print(say, f"{len(situation.ended)} runs in {took}, {situation.found} of them found")
    _print(say, f"report: {write_report(store, studies, folder)}")
    return FAILED if situation.failed else 0


def make_run(config: RunConfig, root: str | Path, engine: str, resources: Resources, console: Console) -> int:
    """Make one run and show what came of it; the result is the exit status."""
    store = Store(root)
    tasks.prepare(config.task, config.make_task())
    try:
        with open_engine(engine, store, resources) as opened, shown(console, store) as watch:
            situation = execute([OneRun(config)], store, opened, watch)
    except KeyboardInterrupt:
        _print(console, f"stopped; nothing is lost. Go on with: {_command_line()}")
        return STOPPED
    (run,) = situation.ended.values()
    measures = {name: value for name, value in (run.history[-1] if run.history else {}).items() if name != "step"}
    told = ", ".join(f"{name} {value:.6g}" for name, value in measures.items())
    _print(console, f"{config}: {run.status}{f' ({run.reason})' if run.reason else ''}; {told}")
    if store.folder(config).is_dir():  # a full disk may have kept nothing
        _print(console, f"kept in {store.folder(config)}")
    return FAILED if run.status == "failed" else 0


def foresee(studies: Sequence[Study], root: str | Path, resources: Resources, console: Console) -> None:
    """Say what studies will take, from a few timed steps."""
    store = Store(root)
    for study in studies:
        tasks.prepare(study.task, study.make_task())
        seen = estimate(study, store.runs(), resources)
        _print(
            console,
            f"{study.name} of {study.task} at scale {study.scale}: {seen.runs} runs at most, {seen.found} found; "
            f"{seen.step_seconds * 1e3:.1f} ms a step, {seen.evaluation_seconds:.2f} s an evaluation; "
            f"about {duration(seen.seconds)} with {seen.at_once} runs at once; "
            f"{seen.peak_bytes / 2**20:.0f} MiB of memory a run, {seen.disk_bytes / 2**20:.1f} MiB of disk",
        )


def findings(store: Store, studies: Sequence[Study]) -> list[Findings]:
    """What the runs so far say."""
    store.check_exists()
    runs = store.runs()
    return [analyse(study, runs, store.overhead(study)) for study in studies]


def write_report(
    store: Store, studies: Sequence[Study], folder: Path | None = None, *, refresh: float | None = None
) -> Path:
    """Write the report of studies; the result is its page."""
    again = "\n".join(
        shlex.join(
            ["aimopt", "sweep", str(store.study_file(study)), *references.trust_needed(study.task_and_optimizers())]
        )
        for study in studies
    )
    return report.write(folder or store.root / "report", findings(store, studies), refresh=refresh, command=again)


def serve_report(store: Store, folder: Path | None, port: int, console: Console, *, trust: bool = False) -> None:
    """Show the report to a browser on this machine, made anew while runs are made, until Ctrl-C."""
    place = folder or store.root / "report"

    def again() -> None:
        write_report(store, store.studies(trust=trust), place, refresh=REFRESH_SECONDS)

    with report.serve(place, again, port=port) as server:  # first: a port that is in use is told of at once
        again()
        _print(console, f"the report is at {server.url} until Ctrl-C")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            _print(console, "stopped")


def _measure_costs(studies: Sequence[Study], store: Store, resources: Resources, console: Console) -> None:
    """Time the contenders of comparisons that can be trained, when no run is made any more."""
    for study in studies:
        runs = store.runs()
        cells = [cell for cell in study.cells(runs) if cell.role == "final" and cell.config.identity in runs]
        trained = {cell.contender for cell in cells if runs[cell.config.identity].settled}
        if study.axes or store.overhead(study) is not None or study.reference not in trained:
            continue
        place = (*resources.devices, "cpu")[0]
        try:
            with console.status(f"measuring time and memory of a step on {study.task}"):
                measured = measure(study, trained, device=place, threads=resources.threads)
            store.check_exists()
            store.save_overhead(study, measured)
        except Exception as error:  # the results are there all the same
            _print(console, f"cannot measure the costs on {study.task}: {explain(error)}")


def _command_line() -> str:
    return shlex.join(["aimopt", *sys.argv[1:]])


def _print(console: Console, text: str) -> None:
    console.print(one_line(text), markup=False, highlight=False, soft_wrap=True)
