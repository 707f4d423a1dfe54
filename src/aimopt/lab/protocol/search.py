"""The search in rounds: which points a contender is tried at, and what an option's name stands for.

    Search(points=7, seeds=(1001, 1002, 1003))                    7 points, the best of them on three tuning seeds
    search.points_of(usual_rate=1e-3, options={"betas": [0.9, 0.999]}, tuned=("beta1",))
    with_options({"betas": [0.9, 0.999]}, {"beta1": 0.8})         {"betas": [0.8, 0.999]}

A contender may tune more than its learning rate: `Mine(tune='beta1')`, `Mine(tune=('beta1', 'weight_decay'))`. The
number of points stays the same, and so does the list of quasi-random numbers that they are made from: every contender
has the same budget. `lab/stats/tuning.py` states the rule.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aimopt.lab.defaults import TUNED
from aimopt.lab.protocol.optimizers import DECAY, REST_OPTIONS
from aimopt.lab.protocol.schema import fields, integer, is_number, list_of
from aimopt.lab.stats.tuning import EXTENSION, MAX_EXTENSIONS, RATE_SPAN, Point, Span, points

MOMENTUM_SPAN = (0.5, 0.02)  # of 1 − β1; the points are even in its logarithm
DECAY_SPAN = 8.0  # from an eighth of the usual weight decay to eight times it
# The lowest and the highest rate that a search in rounds may try, in units of the usual one.
FARTHEST = (1 / (RATE_SPAN * EXTENSION**MAX_EXTENSIONS), RATE_SPAN * EXTENSION**MAX_EXTENSIONS)
MAX_TRIALS = 10_000  # points or seeds of a study; more would be a mistake, and would take hours to list
SHAPE = fields({"points": integer(1), "seeds": list_of(integer(0))})


@dataclass(frozen=True, kw_only=True)
class Search:
    """How many points are tried, and the tuning seeds."""

    points: int = 7
    seeds: tuple[int, ...] = (1001, 1002, 1003)

    def __post_init__(self) -> None:
        if self.points < 1 or not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(
                f"a search needs at least one point and different tuning seeds, got points={self.points} and "
                f"seeds={self.seeds}"
            )
        if max(self.points, len(self.seeds)) > MAX_TRIALS:
            raise ValueError(
                f"a search may have {MAX_TRIALS} points and tuning seeds at most, got points={self.points} and "
                f"{len(self.seeds)} seeds"
            )

    def points_of(self, usual_rate: float, options: Mapping[str, Any], tuned: Sequence[str]) -> list[Point]:
        """The points of a contender with these options."""
        return points(self.points, usual_rate, {name: _span(name, options) for name in tuned})


def search_from(record: Mapping[str, Any] | None) -> Search | None:
    """A search from a file."""
    return None if record is None else Search(points=record["points"], seeds=tuple(record["seeds"]))


def check_tuned(tuned: Sequence[str], options: Mapping[str, Any], label: str) -> None:
    """Refuse names that cannot be searched, or that the optimizer does not have."""
    for name in tuned:
        if name not in TUNED:
            raise ValueError(f"{label} cannot tune {name!r}; its learning rate and {' and '.join(TUNED)} can be tuned")
        if not can_be_tuned(name, options):
            reason = "has no momentum" if name == "beta1" else "has no weight decay here; give it one to start from"
            raise ValueError(f"{label} cannot tune {name}: it {reason}")


def can_be_tuned(name: str, options: Mapping[str, Any]) -> bool:
    """Whether an optimizer with these options has what the name stands for."""
    if name == "beta1":
        return _momentum_key(options) is not None
    return is_number(options.get(name)) and bool(options[name])


def with_options(options: Mapping[str, Any], tuned: Mapping[str, float]) -> dict[str, Any]:
    """The options of an optimizer, with the values of a point."""
    changed = dict(options)
    for name, value in tuned.items():
        key = _momentum_key(options) if name == "beta1" else name
        assert key is not None
        given = options[key]
        changed[key] = [value, *given[1:]] if isinstance(given, list | tuple) else value
        rest = changed.get(REST_OPTIONS)
        if key == DECAY and rest is not None and rest.get(DECAY) == given:  # both halves of a hybrid have one decay
            changed[REST_OPTIONS] = {**rest, DECAY: value}
    return changed


_MOMENTUM = ("betas", "momentum", "beta")


def _momentum_key(options: Mapping[str, Any]) -> str | None:
    return next((key for key in _MOMENTUM if key in options), None)


def _span(name: str, options: Mapping[str, Any]) -> Span:
    if name == "beta1":
        low, high = MOMENTUM_SPAN
        return lambda u: round(1 - low * (high / low) ** u, 4)
    usual = float(options[name])
    return lambda u: float(f"{usual * math.exp((2 * u - 1) * math.log(DECAY_SPAN)):.3g}")
