"""ZeRO stage 1: whole parameters on every rank, and the optimizer's state shared out among the ranks.

torchrun --nproc-per-node 2 examples/zero.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import aimopt


def main() -> None:
    dist.init_process_group()
    losses, here = train()
    if dist.get_rank() == 0:
        print(
            f"ZeRO on {dist.get_world_size()} ranks: loss {losses[0]:.3f} -> {losses[-1]:.3f}, {here} tensors of state"
        )
    # The model is gone by now: one with DDP that outlives its process group may hang (docs/distributed.md says why).
    dist.destroy_process_group()


def train() -> tuple[list[float], int]:
    """Train a small network to imitate another one; the losses, and the number of state tensors on this rank."""
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    torch.manual_seed(0)
    teacher = nn.Linear(16, 4, device=device)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(device))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=aimopt.RADAR, lr=1e-2, weight_decay=0.01, skip_nonfinite=True
    )

    torch.manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(40):
        x = torch.randn(32, 16, device=device)
        loss = (model(x) - teacher(x).detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, sum(len(state) for state in optimizer.optim.state.values())


if __name__ == "__main__":
    main()
