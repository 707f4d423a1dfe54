"""Engines: train runs in processes of this machine, on a Ray cluster or on a Slurm cluster. Same runs, same store.

with open_engine("local", Store("results"), Resources()) as engine:
engine.submit(config)
engine.collect(timeout=1.0)           [EndedRun(config, "finished", "")]
open_engine("slurm", store, Resources(slurm={"partition": "gpu"}, devices=("cuda",)))
"""

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from aimopt.lab.execution.runner import Outcome
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.results.store import Store

ENGINES = ("local", "ray", "slurm")
MAX_ATTEMPTS = 3  # how often a run is tried if its process dies
SAVE_SECONDS = 60.0  # time for a run to write its checkpoint after it was asked to stop


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a run may use, and how often it is saved."""

    workers: int | None = None  # runs at the same time; None: as many as the machine has cores for
    threads: int = 1  # per process of a run
    devices: Sequence[str] = ()  # one run at a time per device; empty: the CPU
    gpu_share: float = 0.0  # of one GPU per run, on Ray
    processes: int = 1  # per run; more than one are started by torchrun
    checkpoint_seconds: float = 30.0
    keep_weights: bool = False
    slurm: dict[str, Any] = field(default_factory=dict)  # options of submitit: partition, time, …

    def __post_init__(self) -> None:
        numbered = [device for device in self.devices if ":" in device]
        if self.processes > 1 and numbered:
            raise ValueError(
                f"Resources: {self.processes} processes of a run cannot share {numbered[0]}; "
                "use the device cuda, then each process takes its own GPU"
            )


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
        raise ValueError(f"the engine needs {package}, which is not installed: pip install 'aimopt[{extra}]'") from None


def open_engine(name: str, store: Store, resources: Resources) -> AbstractContextManager[Engine]:
    """An engine by name. When its context is left, running runs write a checkpoint and stop."""
    openers: dict[str, Callable[[], AbstractContextManager[Engine]]] = {
        "local": lambda: _local(store, resources),
        "ray": lambda: _ray(store, resources),
        "slurm": lambda: _slurm(store, resources),
    }
    if name not in openers:
        raise ValueError(f"there is no engine {name!r}; use one of {', '.join(ENGINES)}")
    store.create()
    return openers[name]()


def _local(store: Store, resources: Resources) -> AbstractContextManager[Engine]:
    from aimopt.lab.execution.engines.local import LocalEngine

    return LocalEngine(store, resources)


def _ray(store: Store, resources: Resources) -> AbstractContextManager[Engine]:
    from aimopt.lab.execution.engines.ray import RayEngine

    return RayEngine(store, resources)


def _slurm(store: Store, resources: Resources) -> AbstractContextManager[Engine]:
    from aimopt.lab.execution.engines.slurm import SlurmEngine

    return SlurmEngine(store, resources)
