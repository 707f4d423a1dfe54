"""Data parallel training: DDP, FSDP2 or HSDP, with Muon on the hidden matrices and RADAR on the rest.

    torchrun --nproc-per-node 2 examples/data_parallel.py --scheme ddp
    torchrun --nproc-per-node 2 examples/data_parallel.py --scheme fsdp2
    torchrun --nproc-per-node 4 examples/data_parallel.py --scheme hsdp      2 replicas of 2 shards

Each rank trains on data of its own. With FSDP2 and HSDP every rank holds a shard of each parameter and of its state.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import aimopt


def wrap(model: nn.Sequential, scheme: str, device_type: str) -> nn.Module:
    """Distribute a model by one of the schemes."""
    if scheme == "ddp":
        return DistributedDataParallel(model)
    if scheme == "fsdp2":
        mesh = init_device_mesh(device_type, (dist.get_world_size(),))
    else:
        shards = dist.get_world_size() // 2
        mesh = init_device_mesh(device_type, (2, shards), mesh_dim_names=("replica", "shard"))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheme", choices=("ddp", "fsdp2", "hsdp"), default="fsdp2")
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    dist.init_process_group()  # NCCL for tensors on GPUs, gloo for those on the CPU
    losses = train(arguments.scheme, arguments.steps)
    if dist.get_rank() == 0:
        print(f"{arguments.scheme} on {dist.get_world_size()} ranks: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    # The model is gone by now: one with DDP that outlives its process group may hang (docs/distributed.md says why).
    dist.destroy_process_group()


def train(scheme: str, steps: int) -> list[float]:
    """Train a small network to imitate another one; the losses."""
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    torch.manual_seed(0)
    teacher = nn.Linear(16, 4, device=device)
    network = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)).to(device)
    model = wrap(network, scheme, device.type)

    # The optimizer is made after the model is wrapped: it then gets the shards.
    split = aimopt.groups.split(model)
    optimizer = aimopt.groups.combine(
        aimopt.Muon(split.matrices, lr=0.02, weight_decay=0.01),
        aimopt.RADAR(split.rest(weight_decay=0.01), lr=1e-2),
    )

    torch.manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(steps):
        x = torch.randn(32, 16, device=device)
        loss = (model(x) - teacher(x).detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    main()
