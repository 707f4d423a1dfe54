"""Checks that all ranks of a process group make together; `test_sharded_training.py` starts the ranks.

Each rank makes the one-process run itself, from the same parameters and gradients, and compares its shards with it.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import aimopt
from aimopt.optimizers import NAMED
from optimizer_driver import NEEDS_MATRICES, count_paths, parameters, push

SHAPES = ((6, 4), (7,), (3, 4, 2), (1, 5), (4, 1))  # uneven, and with empty shards
MATRICES = ((6, 4), (4, 9), (3, 2, 2, 2), (8, 8), (8, 8), (1, 4))


def begin() -> None:
    """Join the process group. A rank that waits for another one too long fails."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))


def layouts() -> dict[str, tuple[Any, list[Any]]]:
    """Ways to distribute a tensor: a mesh, and a placement per dimension of the mesh."""
    world = dist.get_world_size()
    line = init_device_mesh("cpu", (world,))
    grid = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("outer", "inner"))
    return {
        "Shard(0)": (line, [Shard(0)]),
        "Shard(1)": (line, [Shard(1)]),
        "Replicate": (line, [Replicate()]),
        "Replicate, Shard(0)": (grid, [Replicate(), Shard(0)]),
        "Shard(0), Shard(1)": (grid, [Shard(0), Shard(1)]),
    }


def distributed(x: Tensor, mesh: Any, placements: list[Any]) -> Any:
    """A distributed tensor; a dimension that the tensor lacks is replicated."""
    possible = [p if getattr(p, "dim", -1) < x.ndim else Replicate() for p in placements]
    return distribute_tensor(x.detach().clone(), mesh, possible)


def push_both(whole: list[Tensor], shards: list[Any], step: int) -> None:
    """Give parameters and their distributed twins the same gradients."""
    push(whole, step)
    for p, shard in zip(whole, shards, strict=True):
        shard.grad = distributed(p.grad, shard.device_mesh, list(shard.placements))


def run_pair(Optimizer: Any, layout: Any, shapes: Any, dtype: torch.dtype, steps: int = 3, **options: Any) -> Any:
    """A one-process run and a distributed one: their parameters, their optimizers, and the paths of the latter."""
    whole = parameters(shapes, dtype)
    shards = [distributed(p, *layout).requires_grad_() for p in whole]
    reference, optimizer = Optimizer(whole, lr=0.01, **options), Optimizer(shards, lr=0.01, **options)
    for step in range(steps):
        push_both(whole, shards, step)
        reference.step()
        with count_paths() as paths:
            optimizer.step()
    return whole, shards, reference, optimizer, paths


def assert_equal(whole: list[Tensor], shards: list[Any], tolerance: float = 0.0) -> None:
    for p, shard in zip(whole, shards, strict=True):
        torch.testing.assert_close(shard.full_tensor().detach(), p.detach(), rtol=tolerance, atol=tolerance)


def check_named_optimizers() -> None:
    for name, layout in layouts().items():
        for Optimizer in NAMED:
            takes_matrices = Optimizer.__name__ in NEEDS_MATRICES
            shapes = MATRICES if takes_matrices else SHAPES
            whole, shards, reference, optimizer, paths = run_pair(
                Optimizer, layout, shapes, torch.float32, weight_decay=0.1
            )
            assert paths == {"foreach" if takes_matrices else "fused": len(shapes)}, (name, Optimizer, paths)
            assert_equal(whole, shards, 1e-5 if takes_matrices else 0.0)
            for p, shard in zip(whole, shards, strict=True):
                for key, value in reference.state[p].items():
                    ours = optimizer.state[shard][key]
                    ours = ours.full_tensor() if hasattr(ours, "full_tensor") else ours
                    torch.testing.assert_close(ours, value, rtol=0, atol=0)


def check_rounding() -> None:
    """16-bit parameters and state do not depend on the sharding, on any path."""
    for name, layout in layouts().items():
        for options in ({}, {"foreach": True}, {"foreach": False}, {"fused": True}):
            for state_dtype in (None, "bfloat16"):
                whole, shards, _, _, paths = run_pair(
                    aimopt.RADAR, layout, SHAPES, torch.bfloat16, state_dtype=state_dtype, **options
                )
                expected = "fused" if options in ({}, {"fused": True}) else "foreach" if options["foreach"] else "plain"
                assert paths == {expected: len(SHAPES)}, (name, paths)
                assert_equal(whole, shards)
        whole, shards, *_ = run_pair(aimopt.Muon, layout, MATRICES, torch.bfloat16)
        different = sum(int((s.full_tensor() != p).sum()) for p, s in zip(whole, shards, strict=True))
        assert different <= 3, (name, different)  # an arithmetic difference of 1e-7 rarely rounds otherwise


CHECKS = {name.removeprefix("check_"): f for name, f in list(globals().items()) if name.startswith("check_")}


def run_checks() -> dict[str, str | None]:
    """Run all checks; per check None, or what went wrong on this rank."""
    import traceback

    begin()
    outcomes: dict[str, str | None] = {}
    for name, check in CHECKS.items():
        try:
            check()
            outcomes[name] = None
        except Exception:
            outcomes[name] = traceback.format_exc()
        dist.barrier()
    return outcomes
