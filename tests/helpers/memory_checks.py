"""Helpers for tests that change the memory of tensors between steps."""

from typing import Any

import pytest
import torch
from torch import Tensor

import aimopt
from aimopt.step import storage
from optimizer_driver import advance, count_paths

paths = pytest.mark.parametrize("fused", [None, False], ids=["fused", "plain"])


def stepped(params: list[Tensor], **options: Any) -> Any:
    """An optimizer after two steps of these parameters."""
    optimizer = aimopt.RADAR(params, 0.01, **options)
    with count_paths() as paths:
        advance(optimizer, params, 2)
    assert set(paths) == {"fused"} if options.get("fused", True) is not False else "fused" not in paths
    return optimizer


def everything(optimizer: Any) -> list[Tensor]:
    """Copies of everything that a step may change, if its memory still exists."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state = [x for values in optimizer.state.values() for x in values.values()]
    return [x.detach().clone() for x in params + state if storage.why_too_short("", x) is None]


def assert_refuses(optimizer: Any, *, match: str) -> None:
    """The step raises this error and changes nothing."""
    before = everything(optimizer)
    with pytest.raises(RuntimeError, match=match):
        optimizer.step()
    for x, y in zip(everything(optimizer), before, strict=True):
        assert torch.equal(x, y)
