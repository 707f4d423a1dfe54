"""The tools of `aimopt.testing`, and the named optimizers by what they need."""

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
    "ALL", "EXCEPT_MATRICES", "FUSED", "MATRICES", "NEEDS_MATRICES", "NEEDS_WHOLE_TENSORS", "SHAPES", "Factory",
    "advance", "assert_same", "closure_for", "compose", "count_paths", "drive", "flat", "parameters", "push",
    "shapes_for",
]  # fmt: skip

NEEDS_MATRICES = ("Muon", "AcceleratedMuon", "NorMuon", "SOAP")
NEEDS_WHOLE_TENSORS = (*NEEDS_MATRICES, "MARS", "CautiousAdamW", "LAMB")  # by default: a norm, or the mean of a mask


def shapes_for(optimizer: type[AIM]) -> tuple[tuple[int, ...], ...]:
    return MATRICES if optimizer.__name__ in NEEDS_MATRICES else SHAPES


ALL = list(NAMED)
FUSED = [optimizer for optimizer in NAMED if optimizer.__name__ not in NEEDS_WHOLE_TENSORS]
EXCEPT_MATRICES = [optimizer for optimizer in NAMED if optimizer.__name__ not in NEEDS_MATRICES]
