"""RADAR, AdamW and the others on scikit-learn's handwritten digits, compared fairly and in about a minute.

The paper's protocol in miniature: a learning-rate search with its own seed, then fresh seeds at the chosen rate; the
same initial weights, batches and split for every optimizer of a seed. Run it with `make demo`.
"""

import math
import statistics
import time

import torch
from scipy import stats
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import aimopt

OPTIMIZERS = ("RADAR", "RAD", "Adam", "AdamW", "NAdam", "Adan", "AdaBelief", "Lion")
GRID = (0.1, 0.5, 1.0, 5.0, 10.0)
BASE_LR = 5e-3
SCALE = {"Adan": 2.5, "Lion": 0.1}  # their usual rates relative to Adam's, as in the paper
TUNING_SEED, SEEDS = 5, (0, 1, 2, 3, 4)
EPOCHS, BATCH, WEIGHT_DECAY = 12, 64, 5e-5

Images = tuple[Tensor, Tensor]


def load() -> tuple[Images, Images, Images]:
    """Training, validation and test images; the learning rate never sees the last."""
    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(images / 16.0, labels, test_size=0.3, random_state=0, stratify=labels)
    x_train, x_valid, y_train, y_valid = train_test_split(x, y, test_size=0.25, random_state=0, stratify=y)
    parts = ((x_train, y_train), (x_valid, y_valid), (x_test, y_test))
    train, valid, test = ((torch.as_tensor(x).float(), torch.as_tensor(y)) for x, y in parts)
    return train, valid, test


def held_out_loss(name: str, lr: float, seed: int, training: Images, held_out: Images) -> float:
    """Train a small network; return its loss on images it has not seen, infinite if training diverged."""
    x_train, y_train = training
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 10))
    optimizer = aimopt.create(name, model, lr=lr, weight_decay=WEIGHT_DECAY)
    steps = EPOCHS * (len(x_train) // BATCH)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, cycle_momentum=False)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x_train)).split(BATCH)[: len(x_train) // BATCH]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x_train[batch]), y_train[batch]).backward()
            optimizer.step()
            scheduler.step()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(held_out[0]), held_out[1]).item()
    return loss if math.isfinite(loss) else math.inf


def verdict(losses: list[float], reference: list[float]) -> str:
    """Whether the paired differences to AdamW are of one sign, by their 95 % t-interval."""
    differences = [a - b for a, b in zip(losses, reference, strict=True)]
    if not all(map(math.isfinite, differences)):
        return "diverged"
    if not any(differences):
        return ""
    mean = statistics.mean(differences)
    half = stats.t.ppf(0.975, len(SEEDS) - 1) * statistics.stdev(differences) / math.sqrt(len(SEEDS))
    word = "better" if mean + half < 0 else "worse" if mean - half > 0 else f"cannot tell with {len(SEEDS)} seeds"
    return f"{mean:+.4f} ± {half:.4f}  {word}"


def main() -> None:
    (training, validation, test), began = load(), time.perf_counter()
    results: dict[str, tuple[float, list[float]]] = {}
    for name in OPTIMIZERS:
        rates = [BASE_LR * SCALE.get(name, 1.0) * factor for factor in GRID]
        searched = {lr: held_out_loss(name, lr, TUNING_SEED, training, validation) for lr in rates}
        best = min(searched, key=lambda lr: searched[lr])
        results[name] = best, [held_out_loss(name, best, seed, training, test) for seed in SEEDS]
        edge = " (at the edge of the grid)" if best in (rates[0], rates[-1]) else ""
        print(f"{name}: lr {best:g} of {len(rates)}{edge}, {time.perf_counter() - began:.0f} s", flush=True)
    print(f"\nTest loss on digits, a 64-96-96-10 network, {EPOCHS} epochs, {len(SEEDS)} seeds (lower is better)\n")
    print(f"{'optimizer':<11}{'lr':>8}   {'mean ± std':<19}{'minus AdamW, paired, 95 % interval'}")
    reference = results["AdamW"][1]
    for name, (lr, losses) in sorted(results.items(), key=lambda item: statistics.mean(item[1][1])):
        spread = f"{statistics.mean(losses):.4f} ± {statistics.stdev(losses):.4f}"
        print(f"{name:<11}{lr:>8g}   {spread:<19}{verdict(losses, reference)}")
    print("\nA small network on a small data set: it shows the package at work, not which optimizer to use for yours.")


if __name__ == "__main__":
    main()
