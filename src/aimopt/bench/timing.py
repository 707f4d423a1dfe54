"""Contenders in turn: each round times every one of them once, and ratios are taken within a round.

A machine speeds up, slows down and is shared; what happens to one contender of a round mostly happens to the others as
well. For example

    times = in_turn({"ours": ours.step, "theirs": theirs.step}, rounds=20)
    ratio(times["ours"], times["theirs"])      0.87 [0.85, 0.90]: the median of the paired ratios, and their quartiles
"""

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from aimopt import __version__, kernels


class Ratio(NamedTuple):
    """The median of paired ratios, and the quartiles they spread over."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def in_turn(contenders: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """The seconds of each contender in every round; the order turns, so that none always follows the same one."""
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    for contender in contenders.values():
        contender()
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            begin = time.perf_counter()
            contenders[name]()
            times[name].append(time.perf_counter() - begin)
    return times


def ratio(ours: list[float], theirs: list[float]) -> Ratio:
    """How long ours takes for each second of theirs."""
    paired = [a / b for a, b in zip(ours, theirs, strict=True)]
    if len(paired) < 2:
        return Ratio(paired[0], paired[0], paired[0])
    low, median, high = statistics.quantiles(paired, n=4, method="inclusive")
    return Ratio(median, low, high)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as lines of text, the columns side by side."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def state_bytes(optimizer: torch.optim.Optimizer) -> float:
    """What an optimizer keeps, a parameter."""
    states = (state for state in optimizer.state.values() if isinstance(state, Mapping))
    kept = (x for state in states for x in state.values() if isinstance(x, torch.Tensor) and x.ndim)
    return sum(x.nbytes for x in kept) / sum(p.numel() for group in optimizer.param_groups for p in group["params"])


def machine() -> dict[str, str]:
    """What the times were taken on."""
    return {
        "processor": _processor(),
        "threads": str(torch.get_num_threads()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "aimopt": __version__,
        **{f"path: {name}": state for name, state in kernels.status().items()},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
