"""Loss against batch size, with the same number of tokens: `python benchmarks/batch_sizes.py --seeds 2`.

The miniature GPT-2 sees 32,000 blocks of 64 tokens in batches of 8 to 128 blocks. The learning rate follows the root of
the batch size, from the usual one of the task at 64. If optimizers differ at large batches and not at small ones, a
comparison needs large ones.
"""

import argparse
import math
import statistics

import torch

from aimopt.lab.execution.runner import start_training
from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.tasks import find

TASK, BLOCKS, USUAL = "wikitext103-gpt2", 32_000, 64
BATCHES = (8, 16, 32, 64, 128)
OPTIMIZERS = ("AdamW", "RADAR")


def test_loss(optimizer: str, batch: int, seed: int) -> float:
    """The test loss after training."""
    steps = BLOCKS // batch
    settings = {"batch_size": batch, "steps": steps, "warmup_steps": steps * 8 // 100, "evaluate_every": steps}
    rate = find(TASK).at_scale("mini").lr * math.sqrt(batch / USUAL)
    config = RunConfig.create(TASK, "mini", optimizer=optimizer, lr=rate, seed=seed, settings=settings)
    training = start_training(config, torch.device("cpu"))
    for index in range(steps):
        training.step(index)
    return training.evaluate()["test_loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| tokens per batch | steps | {' | '.join(OPTIMIZERS)} |")
    print("|---|---|---|---|")
    for batch in BATCHES:
        means = [statistics.mean(test_loss(o, batch, seed) for seed in range(arguments.seeds)) for o in OPTIMIZERS]
        losses = " | ".join(f"{mean:.3f}" for mean in means)
        print(f"| {batch * 64:,} | {BLOCKS // batch:,} | {losses} |", flush=True)


if __name__ == "__main__":
    main()
