"""Sharded and distributed training equals the training of one process, on 2 and 4 ranks."""

from functools import lru_cache

import pytest

from distributed_checks import CHECKS, run_checks
from process_world import run_world


@lru_cache
def outcomes(ranks: int) -> list[dict[str, str | None]]:
    """All checks in one process group, because starting one takes longer than most checks."""
    return run_world(ranks, run_checks)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_together(ranks: int, check: str) -> None:
    for rank, outcome in enumerate(outcomes(ranks)):
        assert outcome[check] is None, f"rank {rank}: {outcome[check]}"
