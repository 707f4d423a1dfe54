"""A backward pass that fails under `in_backward`: the passes after it are as if it had not been."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import aimopt
from optimizer_driver import flat


class Failing(torch.autograd.Function):
    """The identity, whose backward fails as long as `fails` is True."""

    fails = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if Failing.fails:
            raise MemoryError("no memory for this batch")
        return grad


def layers() -> nn.ModuleList:
    """The gradients of the first have 80 bytes, those of the second 64."""
    torch.manual_seed(0)
    return nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)])


def fail(model: nn.ModuleList) -> None:
    """A pass that fails after the gradients of its last layer are complete."""
    Failing.fails = True
    try:
        with pytest.raises(MemoryError, match="no memory"):
            model[1](Failing.apply(model[0](torch.ones(3, 4)))).square().mean().backward()  # type: ignore[no-untyped-call]
    finally:
        Failing.fails = False


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the same order", "the other order"])
@pytest.mark.parametrize("bucket_bytes", [80, 2**20], ids=["full", "never full"])
@pytest.mark.parametrize("keeps_gradients", [False, True])
def test_passes_after_one_that_failed(keeps_gradients: bool, bucket_bytes: int, order: tuple[int, int]) -> None:
    """As in the usual loop, gradients of the failed pass that the user keeps are added to those of the next one."""
    ends = []
    for in_backward in (True, False):
        model = layers()
        optimizer = aimopt.RADAR(model.parameters(), lr=0.01)
        if in_backward:
            aimopt.in_backward(optimizer, model, bucket_bytes=bucket_bytes)
        fail(model)
        if not keeps_gradients:
            optimizer.zero_grad()
        first, second = (model[i] for i in order)
        for t in range(3):
            second(first(torch.full((3, 4), 1.0 + t))).square().mean().backward()
            if in_backward:
                assert all(p.grad is None for p in model.parameters())
            optimizer.step()
            optimizer.zero_grad()
        assert {float(state["step"]) for state in optimizer.state.values()} == {3.0}
        ends.append(flat(list(model.parameters())))
    assert torch.equal(ends[0], ends[1])


def test_a_pass_within_a_pass() -> None:
    """A reentrant checkpoint runs a backward pass of its own, while gradients of the outer one wait for a bucket."""
    ends = []
    for in_backward in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1))
        optimizer = aimopt.RADAR(model.parameters(), lr=0.01)
        if in_backward:
            aimopt.in_backward(optimizer, model)
        for _ in range(3):
            x = checkpoint(model[1], model[0](torch.ones(3, 4)), use_reentrant=True)
            model[2](x).square().mean().backward()
            if in_backward:
                assert all(p.grad is None for p in model.parameters())
            optimizer.step()
            optimizer.zero_grad()
        ends.append(flat(list(model.parameters())))
    assert torch.equal(ends[0], ends[1])
