"""A step of Muon on sharded matrices: by owners, against the same step repeated on every rank.

    torchrun --nproc-per-node 4 benchmarks/sharded_muon.py

Every matrix of the hidden layers of a small GPT is sharded over its rows. *Owners* is what a step of this package does:
each matrix is gathered on one rank, orthogonalized there, and sent back. *Repeated* gathers all gradients on all ranks
in one collective, and each rank orthogonalizes all matrices. Both are steps of `Muon`. Run it on an idle machine.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import aimopt
from aimopt.measure.timing import paired_ratio, time_in_turn


def hidden_shapes(width: int, layers: int) -> list[tuple[int, int]]:
    """The shapes of a GPT's hidden matrices: attention's input and output, and the two of the network after it."""
    return [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)] * layers


def by_owners(params: list[Tensor], grads: list[Tensor], mesh: Any) -> tuple[aimopt.Muon, Callable[[], None]]:
    """A step on shards."""
    shards = [distribute_tensor(p, mesh, [Shard(0)]).requires_grad_() for p in params]
    for shard, grad in zip(shards, grads, strict=True):
        shard.grad = distribute_tensor(grad, mesh, [Shard(0)])
    optimizer = aimopt.Muon(shards, lr=0.01)
    return optimizer, together(optimizer.step)


def repeated(params: list[Tensor], grads: list[Tensor]) -> tuple[aimopt.Muon, Callable[[], None]]:
    """The same step: gradients are sharded, and the rest is done by every rank."""
    world, rank = dist.get_world_size(), dist.get_rank()
    whole = [p.clone().requires_grad_() for p in params]
    shards = [grad.chunk(world)[rank].clone() for grad in grads]
    optimizer = aimopt.Muon(whole, lr=0.01)

    def step() -> None:
        for p, grad in zip(whole, gathered(shards), strict=True):
            p.grad = grad
        optimizer.step()

    return optimizer, together(step)


def together(step: Callable[[], object]) -> Callable[[], None]:
    """A step that begins and ends on all ranks at the same time: the slowest one counts."""

    def call() -> None:
        dist.barrier()
        step()
        dist.barrier()

    return call


def gathered(shards: list[Tensor]) -> list[Tensor]:
    """The whole tensors of all ranks' shards, in one collective."""
    flat = torch.cat([shard.reshape(-1) for shard in shards])
    parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, flat)
    columns = zip(*(part.split([shard.numel() for shard in shards]) for part in parts), strict=True)
    return [torch.cat(column).view(-1, shard.shape[1]) for column, shard in zip(columns, shards, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shapes = hidden_shapes(arguments.width, arguments.layers)
    params, grads = ([torch.randn(shape) for shape in shapes] for _ in range(2))
    ours, step = by_owners(params, grads, init_device_mesh("cpu", (dist.get_world_size(),)))
    theirs, repeated_step = repeated(params, grads)
    times = time_in_turn({"owners": step, "repeated": repeated_step}, arguments.rounds)
    for shard, p in zip(ours.param_groups[0]["params"], theirs.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(shard.full_tensor(), p, rtol=1e-4, atol=1e-4)
    if dist.get_rank() == 0:
        print(
            f"{dist.get_world_size()} ranks, {len(shapes)} matrices, width {arguments.width}: "
            f"owners / repeated {paired_ratio(times['owners'], times['repeated'])}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
