"""Types and checks that the constructors of the named optimizers share."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

LR = float | Tensor
Betas = tuple[float, float]


def numbers(values: Any, count: int, name: str = "betas") -> tuple[float, ...]:
    """The values as a tuple of `count` hyperparameters, or a ValueError."""
    if not isinstance(values, Iterable) or len(listed := tuple(values)) != count:
        raise ValueError(f"{name} must be {count} numbers, got {values!r}")
    return listed
