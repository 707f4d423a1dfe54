"""Where runs are made: processes of this machine, a Ray cluster, a Slurm cluster. Same runs, same store.

with open_engine("local", Store("results"), Resources()) as engine:
    engine.submit(config)
    engine.finished(timeout=1.0)           [Ended(config, "finished", "")]
"""

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from aimopt.lab.config import RunConfig
from aimopt.lab.runner import Outcome
from aimopt.lab.store import Store

ENGINES = ("local", "ray", "slurm")
ATTEMPTS = 3  # at a run whose process dies
PATIENCE = 60.0  # seconds that runs have to save themselves when they are asked to stop


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a run may use, and how it is looked after."""

    workers: int | None = None  # at once; as many as the machine has room for unless said
    threads: int = 1  # of a run
    devices: Sequence[str] = ()  # one run at a time on each; the processor unless said
    gpu_share: float = 0.0  # of one GPU for a run, on Ray
    processes: int = 1  # of a run; several are started by torchrun
    checkpoint_seconds: float = 30.0
    keep_weights: bool = False
    slurm: dict[str, Any] = field(default_factory=dict)  # what submitit is told: partition, time, …

    def __post_init__(self) -> None:
        numbered = [device for device in self.devices if ":" in device]
        if self.processes > 1 and numbered:
            raise ValueError(
                f"{self.processes} processes of a run cannot share {numbered[0]}; "
                "give the device cuda, and each takes a GPU of its own"
            )


class Ended(NamedTuple):
    """A run that an engine is done with. `reason` is for a failure that the store knows nothing of."""

    config: RunConfig
    outcome: Outcome
    reason: str


class Engine(Protocol):
    """Something that makes runs."""

    def submit(self, config: RunConfig) -> None:
        """Have a run made, when there is room."""

    def finished(self, timeout: float) -> list[Ended]:
        """The runs that ended since the last call; waits for the first of them, but not longer than said."""

    def room(self) -> int:
        """How many runs are made at once."""


def order(config: RunConfig, store: Store, resources: Resources, device: str) -> dict[str, Any]:
    """What `worker.work` is told to make a run, in words that any process understands."""
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


def installed(package: str, extra: str) -> Any:
    """A package that an engine is made of."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise ValueError(f"{package} is not installed here: pip install 'aimopt[{extra}]'") from None


def open_engine(name: str, store: Store, resources: Resources) -> AbstractContextManager[Engine]:
    """An engine by name; leaving its context lets the runs at work save themselves and stop."""
    openers: dict[str, Callable[[], AbstractContextManager[Engine]]] = {
        "local": lambda: _local(store, resources),
        "ray": lambda: _ray(store, resources),
        "slurm": lambda: _slurm(store, resources),
    }
    if name not in openers:
        raise ValueError(f"no engine is called {name!r}; choose one of {', '.join(ENGINES)}")
    store.create()
    return openers[name]()


def _local(store: Store, resources: Resources) -> AbstractContextManager[Engine]:
    from aimopt.lab.engines.local import LocalEngine

    return LocalEngine(store, resources)


def _ray(store: Store, resources: Resources) -> AbstractContextManager[Engine]:
    from aimopt.lab.engines.ray import RayEngine

    return RayEngine(store, resources)


def _slurm(store: Store, resources: Resources) -> AbstractContextManager[Engine]:
    from aimopt.lab.engines.slurm import SlurmEngine

    return SlurmEngine(store, resources)
