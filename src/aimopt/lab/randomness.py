"""Every random choice is a function of a seed and of what it is for, so that nothing need be saved to resume.

derive(0, "weights")           seeds the initial weights of seed 0
derive(0, "order", 3)          the order of the examples in its fourth epoch
derive(0, "step", 117)         what step 117 draws: dropout, augmentation
"""

import hashlib
import random
import sys

import torch


def derive(*parts: int | str) -> int:
    """A seed for one purpose; other parts, other seed."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """A generator for one purpose, on the processor."""
    return torch.Generator().manual_seed(derive(*parts))


def seed_everything(*parts: int | str) -> None:
    """Let all that is drawn from now on, by torch, numpy or Python itself, follow from one purpose."""
    seed = derive(*parts)
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
