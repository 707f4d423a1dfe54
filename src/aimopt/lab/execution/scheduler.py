"""The scheduler: submits the runs of studies to an engine as soon as their configs are known, until none is left.

    with open_engine("local", store, Resources()) as engine:
        state = execute([study], store, engine)
    state.failed                    the runs that failed
    state.reused                    how many runs were in the store before

The configs of the final runs are only known after the search has chosen the learning rates.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aimopt.lab.execution.engines import Engine
from aimopt.lab.execution.runner import record_failure
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.schedule import Cell
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store

POLL_SECONDS = 0.5  # between two calls of the engine
BUSY_SECONDS = 5.0  # until a run that another process trains is submitted again


class RunSource(Protocol):
    """Something that consists of runs: a study, or a single run."""

    def cells(self, runs: Mapping[str, Run]) -> Sequence[Cell]:
        """Every run with a known config, given the runs so far by identity."""

    def count_unknown_runs(self, runs: Mapping[str, Run]) -> int:
        """How many more runs there may be, with configs that are not known yet."""


@dataclass(frozen=True)
class SingleRun:
    """One run without a study."""

    config: RunConfig

    def cells(self, runs: Mapping[str, Run]) -> Sequence[Cell]:
        return [Cell(self.config.optimizer, "final", self.config)]

    def count_unknown_runs(self, runs: Mapping[str, Run]) -> int:
        return 0


@dataclass(kw_only=True)
class ExecutionState:
    """How far the studies are. Runs are counted by identity: a run in two studies counts once."""

    capacity: int  # how many runs the engine trains at the same time
    total: int = 0  # number of runs, at most: several searches may choose the same learning rate
    reused: int = 0  # number of runs that were in the store before
    ended_runs: dict[str, Run] = field(default_factory=dict)  # finished, diverged or failed
    pending: dict[str, RunConfig] = field(default_factory=dict)  # submitted and not ended
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def failed(self) -> list[Run]:
        """The runs that failed."""
        return [run for run in self.ended_runs.values() if run.status == "failed"]

    def seconds_left(self, running: Sequence[Run] = ()) -> float | None:
        """The remaining time at the present speed; None before the first run has ended."""
        done = len(self.ended_runs) - self.reused
        partly_done = sum(run.history[-1]["step"] / run.config.steps for run in running if run.history)
        left = self.total - len(self.ended_runs) - partly_done
        return max(0.0, left) * self.seconds / (done + partly_done) if done > 0 else None


def execute(
    sources: Sequence[RunSource],
    store: Store,
    engine: Engine,
    on_change: Callable[[ExecutionState], None] = lambda _: None,
) -> ExecutionState:
    """Train every run of the studies that is not in the store. A run that fails is recorded, and the others go on."""
    known = {identity: run for identity, run in store.runs().items() if run.settled}
    state = ExecutionState(capacity=engine.capacity())
    retry_times: dict[str, float] = {}  # identity -> when to submit again
    _submit_runs(sources, known, state, engine)
    state.reused = len(state.ended_runs)
    on_change(state)
    while state.pending:
        ended = engine.collect(POLL_SECONDS)
        store.check_exists()
        for config, outcome, reason in ended:
            if outcome in ("busy", "stopped"):  # another process trains it, or an administrator stopped its job
                retry_times[config.identity] = time.monotonic() + BUSY_SECONDS
            else:
                known[config.identity] = _ended_run(config, reason, store)
        for identity in [identity for identity, due in retry_times.items() if due <= time.monotonic()]:
            del retry_times[identity]
            if identity in state.pending:
                engine.submit(state.pending[identity])
        if ended:
            _submit_runs(sources, known, state, engine)
        on_change(state)
    return state


def _submit_runs(sources: Sequence[RunSource], known: dict[str, Run], state: ExecutionState, engine: Engine) -> None:
    """Update the state, and submit the runs with configs that are known now."""
    configs = {cell.config.identity: cell.config for source in sources for cell in source.cells(known)}
    state.total = len(configs) + sum(source.count_unknown_runs(known) for source in sources)
    state.ended_runs = {identity: known[identity] for identity in configs if identity in known}
    for identity in [identity for identity in state.pending if identity in known or identity not in configs]:
        del state.pending[identity]
    for identity, config in configs.items():
        if identity not in known and identity not in state.pending:
            state.pending[identity] = config
            engine.submit(config)


def _ended_run(config: RunConfig, reason: str, store: Store) -> Run:
    """A run that ended. If its process could not record its failure, it is recorded here, if the disk allows."""
    run = store.run(config)
    if run is None or run.status == "running":
        reason = record_failure(config, store, reason or "its process left no result")
        return Run(config=config, status="failed", reason=reason)
    return run
