"""Runs that take long enough to be disturbed, and what they should come to."""

import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import aimopt
from aimopt.lab.execution.engines import EndedRun, Engine
from aimopt.lab.execution.engines.worker import run_job
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.results.run import Run
from aimopt.lab.results.store import Store
from short_studies import curves

# A user's file. Its task needs no package besides torch, so that a process that makes it is soon at work.
OWN = """
import os, time
from dataclasses import dataclass
import torch
from torch.optim import AdamW
from aimopt.lab.protocol.supervised import Splits, Supervised

@dataclass(frozen=True, kw_only=True)
class Points(Supervised):
    title = "Points of three clouds"
    lr: float = 1e-2
    steps: int = 60
    log_every: int = 2
    evaluate_every: int = 20

    def data(self):
        draw = torch.Generator().manual_seed(0)
        labels = torch.arange(192) % 3
        points = torch.randn(192, 8, generator=draw) + torch.randn(3, 8, generator=draw)[labels]
        return Splits(*zip(points.chunk(3), labels.chunk(3)))

    def model(self):
        return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))

class Slow(AdamW):
    def step(self, closure=None):
        open("stepping", "w").close()
        time.sleep(0.02)
        return super().step(closure)

class Stuck(AdamW):
    def step(self, closure=None):
        open("stuck", "w").close()
        time.sleep(1000)

class Forking(AdamW):
    def step(self, closure=None):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        os.kill(os.getpid(), 9)

class Deadly(AdamW):
    def step(self, closure=None):
        os._exit(3)
"""


def work_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder; processes that are started there run the package that is under test."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(Path(aimopt.__file__).parents[1]))
    return folder


def user_run(folder: Path, optimizer: str = "Slow", **settings: Any) -> RunConfig:
    """A run of the task and an optimizer of a user's file in the current folder; a slow one takes a second or more."""
    (folder / "own.py").write_text(OWN)
    return RunConfig.create("own.py:Points", optimizer=f"own.py:{optimizer}", settings=settings)


def train_here(config: RunConfig, root: Path, until: int | None = None) -> Run:
    """The run, made or gone on with in this process; to its end unless it is to stop after so many steps."""
    threads, looks = torch.get_num_threads(), itertools.count()
    run_job(root, config.to_dict(), should_stop=lambda: next(looks) == until)
    torch.set_num_threads(threads)
    return stored_run(config, root)


def stored_run(config: RunConfig, root: Path) -> Run:
    run = Store(root).run(config)
    assert run is not None
    return run


def comparable_result(run: Run) -> tuple[Any, ...]:
    """All that must not depend on where and how often interrupted a run was made."""
    return run.status, run.reason, curves(run), run.facts["initial"], run.facts["final"]


def train_with(engine: Engine, config: RunConfig, meanwhile: Callable[[], None] = lambda: None) -> EndedRun:
    """Have a run made, and wait for it."""
    engine.submit(config)
    while True:
        meanwhile()
        for ended in engine.collect(0.02):
            return ended


def stop_midway(engine: Engine, slow: RunConfig, folder: Path) -> None:
    """Have a slow run made as far as its first step; it is for the engine to save it when it is left."""
    (folder / "stepping").unlink(missing_ok=True)
    engine.submit(slow)
    while not (folder / "stepping").exists():
        assert engine.collect(0.02) == []


def process_of_session(config: RunConfig, root: Path, session: int) -> int | None:
    """The process of a run's session, once it has saved the run; it wrote the manifest when it began."""
    folder, run = Store(root).folder(config), Store(root).run(config)
    if run is None or len(run.sessions) <= session:
        return None
    try:
        saved, began = ((folder / name).stat().st_mtime_ns for name in ("checkpoint.pt", "manifest.json"))
        claims = sorted(folder.glob("claim.*"), key=lambda path: int(path.suffix[1:]))
        return json.loads(claims[-1].read_bytes())["pid"] if saved > began and claims else None
    except FileNotFoundError:
        return None


class Signals:
    """Sends signals to the processes that make a run, one to each."""

    def __init__(self, config: RunConfig, root: Path, *numbers: signal.Signals):
        self.config, self.root, self.left, self.session = config, root, list(numbers), 0

    def __call__(self) -> None:
        if self.left and (pid := process_of_session(self.config, self.root, self.session)) is not None:
            os.kill(pid, self.left.pop(0))
            self.session += 1
