"""Pure bfloat16 training: how parameters should be rounded.

A small network is trained on scikit-learn's digits with parameters, gradients and activations in bfloat16, with four
methods to round updated parameters:

    float32       parameters in float32: the loss that the others should reach
    nearest       rounded to the nearest bfloat16: most small updates are lost
    stochastic    rounded up or down at random (`stochastic_rounding=True`): no extra memory
    Kahan         the rounding error is stored in a second bfloat16: two bytes per parameter

and, with stochastic rounding, the optimizer's state in bfloat16 as well. Run `python benchmarks/bfloat16.py`.
"""

import os
import statistics

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some virtual machines report AMX but cannot run it

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy

import aimopt

STEPS, BATCH, SEEDS = 1500, 128, 5


def network(seed: int, dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 128), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(128, 10)).to(dtype)


def train(method: str, seed: int, images: Tensor, labels: Tensor) -> float:
    """The mean training loss over all images at the end."""
    dtype = torch.float32 if method == "float32" else torch.bfloat16
    model = network(seed, dtype)
    params = list(model.parameters())
    stepped = [p.detach().float().requires_grad_() for p in params] if method == "Kahan" else params
    rounding_errors = [torch.zeros_like(p) for p in params]
    optimizer = aimopt.RADAR(
        stepped,
        lr=3e-4,
        stochastic_rounding=method != "nearest",
        state_dtype="bfloat16" if method == "stochastic, state too" else None,
    )
    order = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        batch = torch.randint(len(images), (BATCH,), generator=order)
        optimizer.zero_grad()
        cross_entropy(model(images[batch].to(dtype)).float(), labels[batch]).backward()
        if method == "Kahan":
            with torch.no_grad():
                for p, exact, error in zip(params, stepped, rounding_errors, strict=True):
                    exact.copy_(p.float() + error.float())
                    exact.grad = None if p.grad is None else p.grad.float()
                    p.grad = None
                optimizer.step()
                for p, exact, error in zip(params, stepped, rounding_errors, strict=True):
                    p.copy_(exact)
                    error.copy_(exact - p.float())
        else:
            optimizer.step()
    with torch.no_grad():
        return float(cross_entropy(model(images.to(dtype)).float(), labels))


def main() -> None:
    digits = load_digits()
    images, labels = torch.tensor(digits.data / 16 - 0.5), torch.tensor(digits.target)
    torch.set_num_threads(1)
    methods = ("float32", "nearest", "stochastic", "Kahan", "stochastic, state too")
    print(f"training loss after {STEPS} steps of RADAR, {SEEDS} seeds: mean ± standard deviation")
    for method in methods:
        losses = [train(method, seed, images.float(), labels) for seed in range(SEEDS)]
        print(f"  {method:<24}{statistics.mean(losses):.4f} ± {statistics.stdev(losses):.4f}")


if __name__ == "__main__":
    main()
