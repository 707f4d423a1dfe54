"""Run a study: prepare the data, train the runs, measure the costs, analyse the results.

    findings = run(compare("spirals", optimizers=["Mine", "torch.optim:AdamW"]), store="results")
    findings = analyse(study, store="results")          the same without training anything

Nothing is printed unless `progress` is set. The command line calls these functions and prints what they return.
"""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from aimopt.lab import report
from aimopt.lab.analysis.analyse import analyse_study
from aimopt.lab.analysis.explored import Explored
from aimopt.lab.defaults import ROUNDS, STORE
from aimopt.lab.execution.console import CleanConsole
from aimopt.lab.execution.cost_forecast import TIMING_SECONDS, CostForecast, forecast_cost
from aimopt.lab.execution.cost_measurement import measure_costs
from aimopt.lab.execution.engines import open_engine
from aimopt.lab.execution.log_lines import log_on_stderr
from aimopt.lab.execution.progress import show_progress
from aimopt.lab.execution.resources import DEFAULT_ENGINE, Resources
from aimopt.lab.execution.scheduler import ExecutionState, RunSource, SingleRun, execute
from aimopt.lab.findings import Findings, write_report
from aimopt.lab.protocol import tasks
from aimopt.lab.protocol.exploration import Exploration
from aimopt.lab.protocol.lengths import lengths
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.study import Study
from aimopt.lab.protocol.user_code import explain
from aimopt.lab.results.claims import Holder
from aimopt.lab.results.costs import Overhead
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store
from aimopt.messages.reason import Reason

REFRESH_SECONDS = 5.0
DEFAULT_RESOURCES = Resources()


@dataclass(frozen=True)
class BatchResult:
    """The results of several studies that were run together."""

    findings: list[Findings]
    runs: int  # finished, diverged or failed
    reused_runs: int  # the part of `runs` that was in the store before
    failed: list[Run]
    seconds: float
    problems: list[Reason] = field(default_factory=list)  # what could not be prepared or measured, with the reason


def run(
    study: Study,
    store: str | Path | Store = STORE,
    *,
    engine: str = DEFAULT_ENGINE,
    resources: Resources = DEFAULT_RESOURCES,
    costs: bool = True,
    progress: bool | Console = False,
) -> Findings:
    """Train every run of a study that the store does not have yet, and analyse them all.

    Args:
        study: what to compare; see `compare` and `sensitivity`.
        store: the folder of the runs. Finished runs in it are never trained again.
        engine: what starts the runs: "local", "ray" or "slurm".
        resources: number of runs at once, devices, threads.
        costs: also measure time and memory of a step on this machine, after all runs; not if a cluster's GPUs train.
        progress: show progress on the terminal, or on this console.

    A run that fails does not stop the others: see `Findings.failed`. After Ctrl-C, the same call continues.
    """
    with _shown_log(progress):
        tasks.prepare(study.task, study.make_task())
    opened_store = _store(store)
    studies = [opened_store.save_study(study)]
    return _run_prepared(studies, opened_store, engine, resources, costs, _console(progress)).findings[0]


def run_all(
    studies: Sequence[Study],
    store: str | Path | Store = STORE,
    *,
    engine: str = DEFAULT_ENGINE,
    resources: Resources = DEFAULT_RESOURCES,
    costs: bool = True,
    progress: bool | Console = False,
) -> BatchResult:
    """Run several studies together: they share runs and workers. The arguments are those of `run`."""
    opened_store, problems = _store(store), list[Reason]()
    studies = [opened_store.save_study(study) for study in studies]
    with _shown_log(progress):
        for study in studies:
            try:
                tasks.prepare(study.task, study.make_task())
            except Exception as error:  # its runs fail with this reason; other studies continue
                problems.append(Reason(f"cannot prepare {study.task}: {explain(error)}"))
    batch = _run_prepared(studies, opened_store, engine, resources, costs, _console(progress))
    return dataclasses.replace(batch, problems=problems + batch.problems)


def run_lengths(
    batch: BatchResult,
    store: str | Path | Store = STORE,
    factors: Sequence[float] = (0.5, 2.0),
    *,
    engine: str = DEFAULT_ENGINE,
    resources: Resources = DEFAULT_RESOURCES,
    progress: bool | Console = False,
) -> BatchResult:
    """Also train the reference of each comparison at other lengths, so that its differences can be stated in steps.

    `batch` is the result of `run_all`, `factors` are multiples of the steps; the other arguments are those of `run`.
    """
    opened_store = _store(store)
    studies = [found.study for found in batch.findings]
    runs = opened_store.runs()
    at_lengths = [other for study in studies for other in lengths(study, runs, factors)]
    added = run_all(at_lengths, opened_store, engine=engine, resources=resources, costs=False, progress=progress)
    return BatchResult(
        findings=analyse_all(studies, opened_store),
        runs=batch.runs + added.runs,
        reused_runs=batch.reused_runs + added.reused_runs,
        failed=batch.failed + added.failed,
        seconds=batch.seconds + added.seconds,
        problems=batch.problems + added.problems,
    )


def run_one(
    config: RunConfig,
    store: str | Path | Store = STORE,
    *,
    engine: str = DEFAULT_ENGINE,
    resources: Resources = DEFAULT_RESOURCES,
    progress: bool | Console = False,
) -> Run:
    """Train a single run, or return it from the store if it was finished before."""
    with _shown_log(progress):
        tasks.prepare(config.task, config.make_task())
    summary = _execute([SingleRun(config)], _store(store), engine, resources, _console(progress))
    (ended_run,) = summary.ended_runs.values()
    return ended_run


def explore(
    exploration: Exploration,
    store: str | Path | Store = STORE,
    *,
    engine: str = DEFAULT_ENGINE,
    resources: Resources = DEFAULT_RESOURCES,
    progress: bool | Console = False,
) -> Explored:
    """Train every run of an exploration that the store does not have yet. The arguments are those of `run`."""
    study, opened_store = exploration.study, _store(store)
    with _shown_log(progress):
        tasks.prepare(study.task, study.make_task())
    summary = _execute([exploration], opened_store, engine, resources, _console(progress))
    return Explored(exploration, exploration.plan(summary.ended_runs), summary.failed)


def analyse(study: Study, store: str | Path | Store = STORE) -> Findings:
    """The results of a study from the runs in a store so far; trains nothing."""
    return analyse_all([study], store)[0]


def analyse_all(studies: Sequence[Study], store: str | Path | Store = STORE) -> list[Findings]:
    """The results of several studies; reads the store once."""
    opened_store = _store(store)
    opened_store.check_exists()
    runs = opened_store.runs()
    return [Findings(analyse_study(study, runs, opened_store.overhead(study)), opened_store) for study in studies]


def forecast(
    study: Study,
    store: str | Path | Store = STORE,
    resources: Resources = DEFAULT_RESOURCES,
    seconds: float = TIMING_SECONDS,
) -> CostForecast:
    """The time, memory and disk space that a study needs, after `seconds` of timing at most. Downloads nothing."""
    return forecast_cost(study, _store(store).runs(), resources, seconds)


@dataclass(frozen=True)
class StoreStatus:
    """The runs of a store, and the missing runs of its studies."""

    # With the number of runs per status. Besides those of a `Run`, there are `interrupted` and `missing`.
    studies: list[tuple[Study, Counter[str]]]
    in_no_study: Counter[str]
    failed: list[Run]
    silent: list[tuple[Run, Holder]]  # counted as interrupted, but a process that claimed them may still exist
    set_aside: dict[str, str]  # folder -> reason
    unreadable: dict[str, str]  # file -> reason


def status(store: Store, *, trust: bool = False) -> StoreStatus:
    """The status of every study in a store; `trust` loads the code that studies of older versions name."""
    studies = store.studies(trust=trust)
    adaptive = any(study.search or study.looks for study in studies)
    search_runs = {cell.config.identity for study in studies for cell in study.cells({}) if cell.role == "search"}
    # With a grid and fixed seeds only the curves of search runs decide which runs there are; else, all of them do.
    runs = store.runs() if adaptive else store.runs(in_full=search_runs)
    begun = {identity: store.holder(run.config) for identity, run in runs.items() if run.status == "running"}
    interrupted = {identity for identity, holder in begun.items() if holder is None or not holder.alive}

    def state(identity: str) -> str:
        if identity in interrupted:
            return "interrupted"
        return runs[identity].status if identity in runs else "missing"

    counts = []
    in_no_study = set(runs)
    for study in studies:
        identities = {cell.config.identity for cell in study.cells(runs)}
        in_no_study -= identities
        states = Counter(map(state, identities))
        states["missing"] += study.count_unknown_runs(runs)
        counts.append((study, states))
    failed = [run for run in runs.values() if run.status == "failed"]
    silent = [(runs[i], holder) for i, holder in begun.items() if holder and holder.may_exist]
    return StoreStatus(
        counts, Counter(map(state, in_no_study)), failed, silent, store.set_aside_reasons(), store.unreadable
    )


def serve_report(
    store: Store, folder: Path | None, port: int, announce: Callable[[str], None], *, trust: bool = False
) -> None:
    """Serve the report to browsers on this machine until Ctrl-C, and update it while runs are trained."""
    report_folder = folder or store.root / "report"

    def refresh() -> None:
        write_report(analyse_all(store.studies(trust=trust), store), report_folder, refresh=REFRESH_SECONDS)

    with report.serve(report_folder, refresh, port=port) as server:  # before the slow refresh: the port may be in use
        refresh()
        announce(f"the report is at {server.url} until Ctrl-C")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            announce("stopped")


def measure_overhead(study: Study, *, device: str = "cpu", rounds: int = ROUNDS) -> Overhead:
    """Time and memory of a training step with each contender. Nothing else should run on the machine."""
    tasks.prepare(study.task, study.make_task())
    return measure_costs(study, device=device, rounds=rounds)


def _run_prepared(
    studies: Sequence[Study], store: Store, engine: str, resources: Resources, costs: bool, console: Console | None
) -> BatchResult:
    """Train and analyse studies that the store has, and whose data are there."""
    summary = _execute(studies, store, engine, resources, console)
    seconds = summary.seconds
    # This machine does not have the GPUs that a cluster trained on.
    measurable = engine == DEFAULT_ENGINE or not resources.cluster_gpus
    reasons = [_measure_costs(study, store, resources, console) for study in studies] if costs and measurable else []
    return BatchResult(
        findings=analyse_all(studies, store),
        runs=len(summary.ended_runs),
        reused_runs=summary.reused,
        failed=summary.failed,
        seconds=seconds,
        problems=[reason for reason in reasons if reason is not None],
    )


def _execute(
    sources: Sequence[RunSource], store: Store, engine: str, resources: Resources, console: Console | None
) -> ExecutionState:
    progress = contextlib.nullcontext(lambda _: None) if console is None else show_progress(console, store)
    with open_engine(engine, store, resources) as opened_engine, progress as on_change:
        return execute(sources, store, opened_engine, on_change)


def _measure_costs(study: Study, store: Store, resources: Resources, console: Console | None) -> Reason | None:
    """Measure the costs of the contenders that could be trained; the result is the reason if this failed."""
    runs = store.runs()
    cells = [cell for cell in study.cells(runs) if cell.role == "final" and cell.config.identity in runs]
    trained = {cell.contender for cell in cells if runs[cell.config.identity].settled}
    if study.axes or store.overhead(study) is not None or study.reference not in trained:
        return None
    device = (*resources.devices, "cpu")[0]
    message = f"measuring time and memory of a step on {study.task}"
    try:
        with contextlib.nullcontext() if console is None else console.status(message):
            measured = measure_costs(study, trained, device=device, threads=resources.threads)
        store.check_exists()
        store.save_overhead(study, measured)
    except Exception as error:  # the results of the runs are not affected
        return Reason(f"cannot measure the costs on {study.task}: {explain(error)}")
    return None


def _store(store: str | Path | Store) -> Store:
    return store if isinstance(store, Store) else Store(store)


def _shown_log(progress: bool | Console) -> contextlib.AbstractContextManager[None]:
    """Show the progress of downloads if progress is shown at all."""
    return log_on_stderr() if progress else contextlib.nullcontext()


def _console(progress: bool | Console) -> Console | None:
    if isinstance(progress, bool):
        return CleanConsole() if progress else None
    return progress
