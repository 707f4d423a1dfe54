"""Random numbers depend only on a seed and a purpose, so a resumed run needs no saved generator state.

derive(0, "weights")           for the initial weights of a run with seed 0
derive(0, "order", 3)          for the order of the examples in its fourth epoch
derive(0, "step", 117)         for the dropout and augmentation of step 117
"""

import hashlib
import random
import sys

import torch


def derive(*parts: int | str) -> int:
    """A seed for one purpose; different parts give different seeds."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """A generator for one purpose, on the CPU."""
    return torch.Generator().manual_seed(derive(*parts))


def seed_everything(*parts: int | str) -> None:
    """Seed the global generators of torch, Python and, if it is imported, numpy for one purpose."""
    seed = derive(*parts)
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
