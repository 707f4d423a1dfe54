"""A config that names the optimizer by its import path, as torchtune's do: `python examples/config_file.py`.

No registration is needed: the classes are where their path says, and all options are plain values.
"""

import tomllib
from importlib import import_module
from typing import Any

import torch
from torch import nn

CONFIG = """
[optimizer]
_component_ = "aimopt.RADAR"
lr = 1e-2
betas = [0.9, 0.95]
gamma = 0.05
weight_decay = 0.01

[hybrid]
_component_ = "aimopt.create"
name = "hybrid"
lr = 3e-2
layer_decay = 0.8
"""


def instantiate(config: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
    """What such libraries do: import the component by its path, and call it."""
    options = {key: value for key, value in config.items() if key != "_component_"}
    module, _, name = config["_component_"].rpartition(".")
    return getattr(import_module(module), name)(*arguments, **options, **keywords)


class Network(nn.Module):
    """Two numbered blocks, so that learning rates can decay by depth."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Linear(8, 16), nn.Sequential(*(nn.Linear(16, 16) for _ in range(2)))
        self.head = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.blocks(torch.tanh(self.embed(x)))))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    x = torch.randn(64, 8)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    torch.manual_seed(0)
    config = tomllib.loads(CONFIG)
    model = Network()
    losses = train(model, instantiate(config["optimizer"], model.parameters()))
    print(f"aimopt.RADAR from a config: loss {losses[0]:.2f} → {losses[-1]:.3f}")
    model = Network()
    losses = train(model, instantiate(config["hybrid"], model_or_params=model))
    print(f"the hybrid from a config: loss {losses[0]:.2f} → {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
