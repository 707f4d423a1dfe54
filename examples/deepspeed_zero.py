"""DeepSpeed with a client optimizer: `python examples/deepspeed_zero.py`, with deepspeed installed.

RADAR under ZeRO stages 0 to 3, without a GPU, on one process or by `torchrun --nproc-per-node 2` on several. Stages 1
to 3 flatten parameters into vectors, so that Muon and the hybrid, which need matrices, train in stage 0 alone;
elsewhere they refuse with a sentence.
"""

import os

import deepspeed
import torch
from torch import nn

import aimopt

ONE_PROCESS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}


def tiny_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, stage: int) -> list[float]:
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,  # DeepSpeed knows its own and torch's optimizers by name
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    x = torch.randn(16, 8)
    losses = []
    for _ in range(10):
        loss = nn.functional.mse_loss(engine(x), x.sum(1, keepdim=True))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def report(line: str) -> None:
    if os.environ["RANK"] == "0":
        print(line)


def main() -> None:
    for name, value in ONE_PROCESS.items():
        os.environ.setdefault(name, value)
    deepspeed.init_distributed("gloo")
    for stage in 0, 1, 2, 3:
        model = tiny_model()
        optimizer = aimopt.RADAR(aimopt.groups.split(model).all(weight_decay=0.01), lr=1e-2)
        losses = train(model, optimizer, stage)
        report(f"RADAR, ZeRO stage {stage}: loss {losses[0]:.2f} → {losses[-1]:.3f}")
    model = tiny_model()
    losses = train(model, aimopt.create("hybrid", model, lr=3e-2), stage=0)
    report(f"hybrid, ZeRO stage 0: loss {losses[0]:.2f} → {losses[-1]:.3f}")
    model = tiny_model()
    try:
        train(model, aimopt.create("hybrid", model, lr=3e-2), stage=1)
    except RuntimeError as error:
        report(f"hybrid, ZeRO stage 1: {error}")


if __name__ == "__main__":
    main()
