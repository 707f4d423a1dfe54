"""Fixtures of all tests."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def float64_scalars() -> Iterator[None]:
    """Step counts and the like in float64: as in torch, they are of the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
