"""Fixtures of all tests."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# Random configurations are new at every run, but in CI always the same: a change is judged by what it changed.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture
def float64_scalars() -> Iterator[None]:
    """Step counts and the like in float64: as in torch, they are of the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
