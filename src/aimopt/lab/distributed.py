"""Several processes on one run, started by torchrun; one process alone is the usual case.

The first writes the results. All read the same checkpoint and take the same steps.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class World:
    """The processes of a run, and which of them this is."""

    rank: int = 0
    size: int = 1

    @classmethod
    def joined(cls, device: str) -> "World":
        """The processes that torchrun started with this one, each on a device of its own if they are GPUs."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1 or not torch.distributed.is_torchelastic_launched():
            return cls()
        if not torch.distributed.is_initialized():
            if device == "cuda":
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
        return cls(torch.distributed.get_rank(), size)

    def device(self, device: str) -> torch.device:
        """This process's device, of those of a kind."""
        if self.size > 1 and device == "cuda":
            return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        return torch.device(device)

    def agree(self, value: Any) -> Any:
        """What the first process says."""
        if self.size == 1:
            return value
        said = [value]
        torch.distributed.broadcast_object_list(said)
        return said[0]
