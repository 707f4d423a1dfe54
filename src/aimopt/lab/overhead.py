"""What an optimizer costs beside another: time of a whole training step, peak memory, bytes of state.

Measured for all contenders in turn, in one process, with nothing else running: never beside the runs of a study.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from aimopt.lab.shapes import fields, list_of, map_of, number, text, whole

_COST = fields({
    "label": text,
    "step_seconds": number(above=0),
    "ratio": list_of(number(above=0), length=3),
    "peak_bytes": whole(0),
    "state_bytes": number(),
})  # fmt: skip
SHAPE = fields({"reference": text, "costs": list_of(_COST), "machine": map_of(text)})


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
    def from_dict(cls, kept: Mapping[str, Any]) -> Self:
        """From what `to_dict` gave, perhaps through a file."""
        SHAPE(kept, "a measurement of costs")
        costs = [Cost(**{**cost, "ratio": tuple(cost["ratio"])}) for cost in kept["costs"]]
        return cls(reference=kept["reference"], costs=costs, machine=kept["machine"])
