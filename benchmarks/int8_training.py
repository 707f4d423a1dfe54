"""The loss of runs with state in float32, bfloat16 and 8 bits, on two tasks and five seeds.

A seed decides the initial weights and the batches, which are the same for all three. The small GPT (words of
WikiText-2, or of Python's manual without AIMOPT_DATA) and the small ViT (scikit-learn's digits) are those of
`int8_codes.py`. The loss is the mean over the last 20 batches, before the step that they make. Run
`python benchmarks/int8_training.py`; each row also lists the loss of every seed, for differences between rows.
"""

import argparse
import statistics

import torch

import aimopt
from int8_codes import gpt, vit

STATE_DTYPES = ("float32", "bfloat16", "int8")
TASKS = {"GPT": gpt, "ViT": vit}


def train(task: str, state_dtype: str, seed: int, steps: int, lr: float) -> float:
    """The mean loss of the last 20 batches."""
    model, loss_of_a_batch = TASKS[task](seed)
    optimizer = aimopt.RADAR(model.parameters(), lr=lr, weight_decay=0.01, state_dtype=state_dtype)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, cycle_momentum=False)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of_a_batch()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        schedule.step()
    return statistics.mean(losses[-20:])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with state in several dtypes.")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--state-dtypes", nargs="+", choices=STATE_DTYPES, default=list(STATE_DTYPES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"loss after {arguments.steps} steps of RADAR, {arguments.seeds} seeds: mean ± standard deviation")
    for task in arguments.tasks:
        for state_dtype in arguments.state_dtypes:
            losses = [train(task, state_dtype, seed, arguments.steps, 3e-3) for seed in range(arguments.seeds)]
            row = f"{statistics.mean(losses):.4f} ± {statistics.stdev(losses):.4f}"
            print(f"  {task:<6}{state_dtype:<10}{row:>20}   " + " ".join(f"{loss:.4f}" for loss in losses), flush=True)


if __name__ == "__main__":
    main()
