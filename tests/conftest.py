"""Fixtures of all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

# One thread per process: there are as many processes as cores, and threads that wait for a core take time from others.
# Tests of several threads ask for them.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

from aimopt.lab.results.store import Store
from aimopt.testing import driving

# Random configurations are new at every run, but in CI always the same: a change is judged by what it changed.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


# Kernels that other tests or programs have compiled do not decide which code a test runs.
os.environ["AIMOPT_COMPILE"] = "0"


@pytest.fixture
def float64_scalars() -> Iterator[None]:
    """Step counts and the like in float64: as in torch, they are of the default dtype."""
    with driving.float64_scalars():
        yield


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store; runs take one thread, as those of the engines do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Store(tmp_path / "results")
    torch.set_num_threads(threads)
