"""Optuna: `python examples/optuna_search.py`, with optuna installed: learning rate and γ of RADAR on a small task."""

import optuna
import torch
from torch import nn

import aimopt


def final_loss(trial: optuna.Trial) -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    gamma = trial.suggest_float("gamma", 0.0, 0.2)
    optimizer = aimopt.RADAR(model.parameters(), lr=lr, gamma=gamma)
    x = torch.randn(64, 8)
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(final_loss, n_trials=12)
    print(f"best of {len(study.trials)}: lr {study.best_params['lr']:.2g}, loss {study.best_value:.3f}")


if __name__ == "__main__":
    main()
