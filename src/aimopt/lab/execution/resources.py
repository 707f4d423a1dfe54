"""Where runs are trained: the engines by name, and what a run may use.

Resources(workers=4, threads=2)                 four runs at the same time, with two threads each
Resources(devices=("cuda:0", "cuda:1"))         one run per GPU
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
