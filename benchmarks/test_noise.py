"""Is a test set large enough? The noise of its examples against the differences between seeds.

    python benchmarks/test_noise.py wikitext103-gpt2 cifar10-vit --seeds 3

AdamW and RADAR are trained at their usual rates with the same seeds. What a comparison sees per seed is the difference
of their test losses. The table has its mean and standard deviation over the seeds, and the standard error of the mean
that comes from the test examples, which all seeds share. The last column should be below 1/3.
"""

import argparse
import statistics

import torch
from torch import Tensor

from aimopt.lab.execution.runner import start_training
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.supervised import SupervisedTraining

OPTIMIZERS = ("AdamW", "RADAR")
CHUNK = 16  # examples per mean, of which the standard error is taken


def chunk_losses(task: str, optimizer: str, seed: int) -> Tensor:
    """The mean test losses of chunks of examples, after training."""
    config = RunConfig.create(task, "mini", optimizer=optimizer, seed=seed)
    training = start_training(config, torch.device("cpu"))
    assert isinstance(training, SupervisedTraining)
    for index in range(config.steps):
        training.step(index)
    training.model.eval()
    chunks = zip(*(tensor.split(CHUNK) for tensor in training.splits.test), strict=True)
    with torch.no_grad():
        losses = [training.task.measures(training.model, chunk)["loss"] for chunk in chunks]
    return torch.stack(losses).double()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| task | seeds | RADAR − AdamW | deviation over seeds | standard error in the test set | ratio |")
    print("|---|---|---|---|---|---|")
    for task in arguments.tasks:
        losses = [[chunk_losses(task, name, seed) for name in OPTIMIZERS] for seed in range(arguments.seeds)]
        differences = torch.stack([radar - adamw for adamw, radar in losses])
        by_seed = differences.mean(1).tolist()
        by_chunk = differences.mean(0)
        error = by_chunk.std().item() / len(by_chunk) ** 0.5
        deviation = statistics.stdev(by_seed)
        cells = (f"{statistics.mean(by_seed):+.4f}", f"{deviation:.4f}", f"{error:.4f}", f"{error / deviation:.2f}")
        print(f"| `{task}` | {arguments.seeds} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
