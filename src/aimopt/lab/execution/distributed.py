"""Several processes that train one run together, started by torchrun. A single process is the usual case.

    world = World.join("cuda")              rank and number of processes; a world of one without torchrun
    world.broadcast(value)                  the value of the first process

The first process writes the results. All processes read the same checkpoint and take the same steps.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class World:
    """The processes of a run, and the rank of this one."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: str) -> "World":
        """Join the processes that torchrun started. Each process takes its own GPU if the device is cuda."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1 or not torch.distributed.is_torchelastic_launched():
            return cls()
        if not torch.distributed.is_initialized():
            if device == "cuda":
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
        return cls(torch.distributed.get_rank(), size)

    def device(self, device: str) -> torch.device:
        """The device of this process."""
        if self.size > 1 and device == "cuda":
            return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        return torch.device(device)

    def broadcast(self, value: Any) -> Any:
        """The value of the first process."""
        if self.size == 1:
            return value
        values = [value]
        torch.distributed.broadcast_object_list(values)
        return values[0]
