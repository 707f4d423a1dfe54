"""Ray Tune: `python examples/ray_tune_search.py`, with ray[tune] installed: the learning rate of the hybrid."""

import logging
import tempfile
from typing import Any

import ray
import torch
from ray import tune
from torch import nn

import aimopt


def train(config: dict[str, Any]) -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = aimopt.create("hybrid", model, lr=config["lr"], weight_decay=0.0)
    x = torch.randn(64, 8)
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            train,
            param_space={"lr": tune.grid_search([1e-3, 1e-2, 1e-1])},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        best = tuner.fit().get_best_result()
    ray.shutdown()
    config, metrics = best.config or {}, best.metrics or {}
    print(f"best learning rate: {config['lr']:g}, loss {metrics['loss']:.3f}")


if __name__ == "__main__":
    main()
