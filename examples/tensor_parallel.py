"""Tensor parallel training: the columns and rows of the matrices are on different ranks.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py

All ranks see the same data. RADAR steps the local parts; Muon would gather each matrix on one rank, its owner.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import aimopt


def main() -> None:
    """Train a small network to imitate another one."""
    dist.init_process_group()
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    torch.manual_seed(0)
    teacher = nn.Linear(16, 4, device=device)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4)).to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = aimopt.RADAR(model.parameters(), lr=1e-2)

    losses = []
    for _ in range(40):
        x = torch.randn(32, 16, device=device)
        loss = (model(x) - teacher(x).detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        print(f"tensor parallel on {dist.get_world_size()} ranks: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
