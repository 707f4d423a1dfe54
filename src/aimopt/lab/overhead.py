"""What an optimizer costs beside another: time of a whole training step, peak memory, bytes of state.

Measured for all contenders in turn, in one process, with nothing else running: never beside the runs of a study.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self


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

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, strings, lists and dictionaries."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """From what `to_dict` gave, perhaps through a file."""
        costs = [Cost(**{**cost, "ratio": tuple(cost["ratio"])}) for cost in fields["costs"]]
        return cls(reference=fields["reference"], costs=costs, machine=fields["machine"])
