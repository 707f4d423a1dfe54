"""Where runs are trained: the engines by name, and what a run may use.

Resources(workers=4, threads=2)                 four runs at the same time, with two threads each
Resources(devices=("cuda:0", "cuda:1"))         one run per GPU of this machine
Resources(gpus=1)                               one GPU per run, on a cluster
Resources(gpus=4, processes=4)                  four processes per run with one GPU each, on a cluster
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# The first one is the default.
ENGINES = {
    "local": "aimopt.lab.execution.engines.local:LocalEngine",
    "ray": "aimopt.lab.execution.engines.ray:RayEngine",
    "slurm": "aimopt.lab.execution.engines.slurm:SlurmEngine",
}
DEFAULT_ENGINE = next(iter(ENGINES))


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a run may use, and how often it is saved."""

    workers: int | None = None  # runs at the same time; None: as many as the machine has cores for
    threads: int = 1  # per process of a run
    devices: Sequence[str] = ()  # of this machine, one run at a time per device; empty: the CPU
    gpus: float = 0.0  # per run, on Ray and Slurm; on Ray it may be a fraction
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
        if self.processes > 1 and self.gpus not in (0, self.processes):
            raise ValueError(
                f"Resources: {self.processes} processes of a run need one GPU each, got gpus={self.gpus:g}; "
                f"use gpus={self.processes}"
            )

    @property
    def cluster_gpus(self) -> float:
        """The GPUs that a cluster reserves for one run."""
        on_cuda = any(device.partition(":")[0] == "cuda" for device in self.devices)
        return self.gpus or (self.processes if on_cuda else 0)

    @property
    def cluster_device(self) -> str:
        """The device of a run on a cluster: there, a run sees only the GPUs that were reserved for it."""
        return "cuda" if self.cluster_gpus else next(iter(self.devices), "cpu")


def check_engine(engine: str, resources: Resources) -> None:
    """Refuse options of another engine, which would be ignored."""
    if resources.slurm and engine != "slurm":
        options = ", ".join(resources.slurm)
        raise ValueError(
            f"the options of Slurm ({options}) are for the engine slurm, not for {engine}; choose --engine slurm"
        )
