"""Checkpoints of sharded training, which another number of ranks can continue.

    torchrun --nproc-per-node 2 examples/distributed_checkpoint.py --folder /tmp/checkpoint      begins
    torchrun --nproc-per-node 4 examples/distributed_checkpoint.py --folder /tmp/checkpoint      goes on

Every rank writes its shards. On loading, each one reads the parts that it holds now.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import aimopt


def main() -> None:
    """Train for twenty steps from the checkpoint, or from the beginning if there is none, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    dist.init_process_group()
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    torch.manual_seed(0)
    teacher = nn.Linear(16, 4, device=device)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(device)
    fully_shard(model, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
    optimizer = aimopt.RADAR(model.named_parameters(), lr=1e-2)

    begun = folder.exists()
    dist.barrier()  # every rank has looked before the first one writes
    if begun:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)  # into the same tensors
        set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)

    torch.manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(20):
        x = torch.randn(32, 16, device=device)
        loss = (model(x) - teacher(x).detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model_state, optimizer_state = get_state_dict(model, optimizer)
    save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    if dist.get_rank() == 0:
        steps = int(next(iter(optimizer.state.values()))["step"])
        print(f"{steps} steps, now on {dist.get_world_size()} ranks: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
