"""Fair timing: each round times every function once, and ratios are taken within a round.

The speed of a machine changes over time, and other programs use it too. Within one round, all functions meet almost the
same conditions. For example

    times = time_in_turn({"ours": ours.step, "theirs": theirs.step}, rounds=20)
    paired_ratio(times["ours"], times["theirs"])      0.87 [0.85, 0.90]: median and quartiles of the ratios per round
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch


class Ratio(NamedTuple):
    """The median of paired ratios, and their quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def time_in_turn(functions: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """The seconds of each function in every round.

    Every function is called once before the first round. The order rotates, so that no function always runs after the
    same other one.
    """
    names = list(functions)
    times: dict[str, list[float]] = {name: [] for name in names}
    for function in functions.values():
        function()
    for round_number in range(rounds):
        shift = round_number % len(names)
        for name in names[shift:] + names[:shift]:
            start = time.perf_counter()
            functions[name]()
            times[name].append(time.perf_counter() - start)
    return times


def paired_ratio(ours: list[float], theirs: list[float]) -> Ratio:
    """The time of ours divided by the time of theirs, round by round."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    if len(ratios) < 2:
        return Ratio(ratios[0], ratios[0], ratios[0])
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, low, high)


def state_bytes_per_parameter(optimizer: torch.optim.Optimizer) -> float:
    """The size of an optimizer's state, without scalars, in bytes per parameter."""
    states = (state for state in optimizer.state.values() if isinstance(state, Mapping))
    buffers = (x for state in states for x in state.values() if isinstance(x, torch.Tensor) and x.ndim)
    parameters = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    return sum(x.nbytes for x in buffers) / parameters
