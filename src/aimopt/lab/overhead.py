"""What an optimizer costs beside another: time of a whole training step, peak memory, bytes of state.

Measured for all contenders in turn, in one process, with nothing else running: never beside the runs of a study.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one contender costs."""

    label: str
    step_seconds: float  # median
    ratio: tuple[float, float, float]  # of the step to the reference's: median and quartiles of paired ratios
    peak_bytes: int  # of a process that trains under it
    state_bytes: float  # a parameter


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """The costs of a study's contenders, and the machine they were taken on."""

    reference: str
    costs: Sequence[Cost]
    machine: Mapping[str, str]
