"""Random numbers depend only on a seed and a purpose, so a resumed run needs no saved generator state.

derive(0, "weights")           for the initial weights of a run with seed 0
derive(0, "order", 3)          for the order of the examples in its fourth epoch
derive(0, "step", 117)         for the dropout and augmentation of step 117
"""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def global_generators_kept(device: str | torch.device = "cpu") -> Iterator[None]:
    """Leave the generators that `seed_everything` seeds as they were."""
    numpy_random = sys.modules["numpy"].random if "numpy" in sys.modules else None
    python_state, numpy_state = random.getstate(), numpy_random.get_state() if numpy_random else None
    devices = [device] if torch.device(device).type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python_state)
        if numpy_random is not None:
            numpy_random.set_state(numpy_state)
