"""Carry studies out: hand their runs to an engine as soon as they can be named, until none is left.

with open_engine("local", store, Resources()) as engine:
    execute([compare("digits", "demo")], store, engine)
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aimopt.lab.config import RunConfig
from aimopt.lab.engines import Engine
from aimopt.lab.runner import record_failure
from aimopt.lab.runs import Run
from aimopt.lab.store import Store
from aimopt.lab.study import Cell

TICK = 0.5  # seconds between two looks at the engine
BUSY_SECONDS = 5.0  # between two looks at a run that another process makes


class Plan(Protocol):
    """What runs there are: a study, or one run alone."""

    def cells(self, runs: Mapping[str, Run]) -> Sequence[Cell]:
        """Every run that can be named by now, given the runs so far by identity."""

    def unnamed(self, runs: Mapping[str, Run]) -> int:
        """How many more there may be."""


@dataclass(frozen=True)
class OneRun:
    """A run by itself."""

    config: RunConfig

    def cells(self, runs: Mapping[str, Run]) -> Sequence[Cell]:
        return [Cell(self.config.optimizer, "final", self.config)]

    def unnamed(self, runs: Mapping[str, Run]) -> int:
        return 0


@dataclass(kw_only=True)
class Situation:
    """How far the studies are."""

    room: int  # runs made at once
    total: int = 0  # runs, at most: learning rates that are chosen may coincide
    found: int = 0  # runs that were there before
    ended: dict[str, Run] = field(default_factory=dict)  # finished, diverged or failed
    open: dict[str, RunConfig] = field(default_factory=dict)  # being made, here or elsewhere, or waiting for room
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.began

    @property
    def failed(self) -> list[Run]:
        """The runs that could not be made."""
        return [run for run in self.ended.values() if run.status == "failed"]

    def seconds_left(self, running: Sequence[Run] = ()) -> float | None:
        """By the pace so far; unknown before a run is done."""
        done = len(self.ended) - self.found
        part = sum(run.history[-1]["step"] / run.config.steps for run in running if run.history)
        left = self.total - len(self.ended) - part
        return max(0.0, left) * self.seconds / (done + part) if done > 0 else None


def execute(
    plans: Sequence[Plan], store: Store, engine: Engine, watch: Callable[[Situation], None] = lambda _: None
) -> Situation:
    """Make every run of the studies that is not there yet. A run that fails is kept as that, and the others go on."""
    known = {identity: run for identity, run in store.runs().items() if run.settled}
    now = Situation(room=engine.room())
    busy: dict[str, float] = {}
    _name_runs(plans, known, now, engine)
    now.found = len(now.ended)
    watch(now)
    while now.open:
        ended = engine.finished(TICK)
        store.check_exists()
        for config, outcome, reason in ended:
            if outcome in ("busy", "stopped"):  # another process is at it, or who runs the cluster put an end to it
                busy[config.identity] = time.monotonic() + BUSY_SECONDS
            else:
                known[config.identity] = _ended(config, reason, store)
        for identity in [identity for identity, again in busy.items() if again <= time.monotonic()]:
            del busy[identity]
            if identity in now.open:
                engine.submit(now.open[identity])
        if ended:
            _name_runs(plans, known, now, engine)
        watch(now)
    return now


def _name_runs(plans: Sequence[Plan], known: dict[str, Run], now: Situation, engine: Engine) -> None:
    """Bring the situation up to date, and hand out the runs that can be named now."""
    cells = {cell.config.identity: cell.config for plan in plans for cell in plan.cells(known)}
    now.total = len(cells) + sum(plan.unnamed(known) for plan in plans)
    now.ended = {identity: known[identity] for identity in cells if identity in known}
    for identity in [identity for identity in now.open if identity in known or identity not in cells]:
        del now.open[identity]
    for identity, config in cells.items():
        if identity not in known and identity not in now.open:
            now.open[identity] = config
            engine.submit(config)


def _ended(config: RunConfig, reason: str, store: Store) -> Run:
    """What came of a run; a failure that it could not keep itself is kept for it, where the disk allows."""
    run = store.run(config)
    if run is None or run.status == "running":
        reason = record_failure(config, store, reason or "its process left no result")
        return Run(config=config, status="failed", reason=reason)
    return run
