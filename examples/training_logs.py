"""TensorBoard and Weights & Biases: `python examples/training_logs.py`, with tensorboard or wandb installed.

`aimopt.log_to` calls any function of (tag, value, step). Nothing leaves the machine: W&B runs offline here.
"""

import os
import tempfile
from importlib.util import find_spec

import torch
from torch import nn

import aimopt


def train(log: aimopt.diagnostics.Log) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = aimopt.RADAR(model.parameters(), lr=1e-2)
    aimopt.log_to(optimizer, log, every=5)
    x = torch.randn(64, 8)
    for step in range(1, 21):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        log("loss", loss.item(), step)


def with_tensorboard(folder: str) -> str:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder) as writer:
        train(writer.add_scalar)
    return f"TensorBoard: {len(os.listdir(folder))} event file"


def with_wandb(folder: str) -> str:
    import wandb

    with wandb.init(project="aimopt", mode="offline", dir=folder) as run:
        train(lambda tag, value, step: run.log({tag: value}, step=step))
        logged = [name for name in dict(run.summary) if not name.startswith("_")]
    return f"Weights & Biases, offline: {len(logged)} series"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for package, run in {"tensorboard": with_tensorboard, "wandb": with_wandb}.items():
            print(run(f"{folder}/{package}") if find_spec(package) else f"{package} is not installed")


if __name__ == "__main__":
    main()
