"""The tools of `aimopt.testing`, and the named optimizers by what they need."""

from typing import Any

from torch import Tensor

from aimopt import AIM
from aimopt.optimizers import NAMED
from aimopt.testing.driving import (
    MATRICES,
    SHAPES,
    Factory,
    advance,
    assert_same,
    closure_for,
    compose,
    count_paths,
    drive,
    flat,
    parameters,
    push,
)

__all__ = [
    "ALL", "BEGUN_SHAPES", "EXCEPT_MATRICES", "FUSED", "MATRICES", "NEEDS_MATRICES", "NEEDS_WHOLE_TENSORS", "SHAPES",
    "Factory",
    "advance", "assert_same", "begun", "closure_for", "compose", "count_paths", "drive", "flat", "parameters", "push",
    "shapes_for",
]  # fmt: skip

NEEDS_MATRICES = ("Muon", "AcceleratedMuon", "NorMuon", "SOAP")
NEEDS_WHOLE_TENSORS = (*NEEDS_MATRICES, "MARS", "CautiousAdamW", "LAMB")  # by default: a norm, or the mean of a mask


def shapes_for(optimizer: type[AIM]) -> tuple[tuple[int, ...], ...]:
    return MATRICES if optimizer.__name__ in NEEDS_MATRICES else SHAPES


ALL = list(NAMED)
FUSED = [optimizer for optimizer in NAMED if optimizer.__name__ not in NEEDS_WHOLE_TENSORS]
EXCEPT_MATRICES = [optimizer for optimizer in NAMED if optimizer.__name__ not in NEEDS_MATRICES]


BEGUN_SHAPES = ((4, 3), (5,))


def begun(optimizer_class: Any, **options: Any) -> tuple[Any, list[Tensor]]:
    """An optimizer after ten steps, and its parameters."""
    params = parameters(BEGUN_SHAPES)
    optimizer = optimizer_class(params, lr=0.01, **options)
    advance(optimizer, params, 10)
    return optimizer, params
