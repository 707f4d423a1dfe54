"""From how many tensors on a step of RADAR is faster than torch's fused AdamW: `python benchmarks/few_tensors.py`.

The tensors are so small that a step is all overhead: torch's grows with every tensor, ours has a fixed part.
"""

import statistics
from collections.abc import Callable
from functools import partial

import torch

import aimopt
from aimopt.measure.timing import time_in_turn

COUNTS = (1, 6, 12, 24, 48, 100, 200)
TURNS, STEPS_PER_TURN = 40, 20
OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "torch's fused AdamW": lambda params: torch.optim.AdamW(params, lr=1e-3, fused=True),
    "RADAR": lambda params: aimopt.RADAR(params, lr=1e-3),
}


def vectors(count: int) -> list[torch.nn.Parameter]:
    """Vectors of 8 to 50 numbers, with gradients."""
    params = [torch.nn.Parameter(torch.randn(8 + 7 * i % 49)) for i in range(count)]
    for p in params:
        p.grad = torch.randn_like(p)
    return params


def microseconds_per_step(count: int) -> dict[str, float]:
    """The median of each optimizer; they take turns."""
    optimizers = {name: make(vectors(count)) for name, make in OPTIMIZERS.items()}
    times = time_in_turn({name: partial(make_steps, optimizer) for name, optimizer in optimizers.items()}, TURNS)
    return {name: 1e6 * statistics.median(turns) / STEPS_PER_TURN for name, turns in times.items()}


def make_steps(optimizer: torch.optim.Optimizer) -> None:
    for _ in range(STEPS_PER_TURN):
        optimizer.step()


if __name__ == "__main__":
    for count in COUNTS:
        medians = microseconds_per_step(count)
        print(f"{count:4} tensors:", ", ".join(f"{name} {median:.0f} µs" for name, median in medians.items()))
