"""What the signatures of the named optimizers share."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

LR = float | Tensor
Betas = tuple[float, float]


def numbers(values: Any, count: int, name: str = "betas") -> tuple[float, ...]:
    """A tuple of so many hyperparameters, or a sentence that says what was given instead."""
    if not isinstance(values, Iterable) or len(given := tuple(values)) != count:
        raise ValueError(f"{name} must be {count} numbers, got {values!r}")
    return given
