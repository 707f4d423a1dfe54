"""The measured costs of a study's contenders: time of a training step, peak memory, bytes of optimizer state.

    overhead = store.overhead(study)
    overhead.costs[0].ratio             1.08 [1.05, 1.12]: step time relative to the reference, median and quartiles

This module holds the data; `execution/cost_measurement.py` measures it, with no other run at the same time.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from aimopt.lab.protocol.schema import fields, integer, list_of, map_of, number, optional, text
from aimopt.measure.timing import Ratio

_COST = fields(
    {
        "label": text,
        "step_seconds": number(above=0),
        "ratio": list_of(number(above=0), length=3),
        "peak_bytes": integer(0),
        "state_bytes": number(),
    },
    {"rounds": optional(integer(1))},
)
SHAPE = fields({"reference": text, "costs": list_of(_COST), "machine": map_of(text)})


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The costs of one contender."""

    label: str
    step_seconds: float  # median
    ratio: Ratio  # step time relative to the reference
    peak_bytes: int  # of a process that trains with it
    state_bytes: float  # per parameter
    rounds: int | None = None  # the number of ratios; None: an older version did not store it


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """The costs of a study's contenders, and the machine on which they were measured."""

    reference: str
    costs: Sequence[Cost]
    machine: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, strings, lists and dictionaries."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """From the result of `to_dict`, possibly read from a file."""
        SHAPE(fields, "a measurement of costs")
        costs = [Cost(**{**cost, "ratio": Ratio(*cost["ratio"])}) for cost in fields["costs"]]
        return cls(reference=fields["reference"], costs=costs, machine=fields["machine"])
