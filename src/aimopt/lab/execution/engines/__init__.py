"""Engines: train runs in processes of this machine, on a Ray cluster or on a Slurm cluster. Same runs, same store.

    with open_engine("local", Store("results"), Resources()) as engine:
        engine.submit(config)
        engine.collect(timeout=1.0)           [EndedRun(config, "finished", "")]
    open_engine("slurm", store, Resources(slurm={"partition": "gpu"}, devices=("cuda",)))

`execution/resources.py` lists the engines by name.
"""

import importlib
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from aimopt.lab.execution.resources import ENGINES, Resources, check_engine
from aimopt.lab.execution.runner import Outcome
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.results.store import Store
from aimopt.messages.extras import install_command

MAX_ATTEMPTS = 3  # how often a run is tried if its process dies
SAVE_SECONDS = 60.0  # time for a run to write its checkpoint after it was asked to stop


class EndedRun(NamedTuple):
    """A run that ended. `reason` explains a failure that the process could not record in the store."""

    config: RunConfig
    outcome: Outcome
    reason: str


class Engine(Protocol):
    """Something that trains runs."""

    def submit(self, config: RunConfig) -> None:
        """Train a run as soon as there is capacity."""

    def collect(self, timeout: float) -> list[EndedRun]:
        """The runs that ended since the last call. Waits up to `timeout` seconds for the first one."""

    def capacity(self) -> int:
        """How many runs are trained at the same time."""


def job_arguments(config: RunConfig, store: Store, resources: Resources, device: str) -> dict[str, Any]:
    """The arguments of `worker.run_job` for a run, as plain values that can be sent to any process."""
    return {
        "store": str(store.root.resolve()),
        "must_exist": True,
        "config": config.to_dict(),
        "device": device,
        "threads": resources.threads,
        "processes": resources.processes,
        "checkpoint_seconds": resources.checkpoint_seconds,
        "keep_weights": resources.keep_weights,
    }


def import_extra(package: str, extra: str) -> Any:
    """Import a package that an engine needs, from one of the extras of this package."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise ValueError(f"the engine needs {package}, which is not installed: {install_command(extra)}") from None


def open_engine(name: str, store: Store, resources: Resources) -> AbstractContextManager[Engine]:
    """An engine by name. When its context is left, running runs write a checkpoint and stop."""
    if name not in ENGINES:
        raise ValueError(f"there is no engine {name!r}; use one of {', '.join(ENGINES)}")
    check_engine(name, resources)
    store.create()
    module, _, engine = ENGINES[name].partition(":")
    return getattr(importlib.import_module(module), engine)(store, resources)
