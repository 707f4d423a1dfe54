"""A GradScaler leaves unscaling to a step with `fused=True`, on every path of that step."""

import itertools
from typing import Any

import pytest
import torch

import aimopt
from optimizer_driver import count_paths, flat, parameters, push

Class = Any


@pytest.mark.parametrize(("fused", "dtype"), [*itertools.product((None, True), (torch.float32, torch.bfloat16))])
def test_under_a_gradient_scaler(fused: bool | None, dtype: torch.dtype) -> None:
    """Scaled gradients give the same step, are not overwritten, and an infinite one skips the whole step."""
    ends = []
    for scaled in (True, False):
        params = parameters([(50,), (3, 4)], dtype)
        optimizer = aimopt.RADAR(params, 0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        for step in range(8):
            optimizer.zero_grad()
            loss = torch.stack([(p.float() - step).square().sum() for p in params]).sum()
            scaler.scale(loss).backward()
            if step == 4:
                params[0].grad = torch.full_like(params[0], torch.inf)
                if not scaled:
                    continue
            given = [p.grad.clone() for p in params if p.grad is not None]
            with count_paths() as paths:
                scaler.step(optimizer)
            assert set(paths) == ({"fused"} if step != 4 else set())
            if fused:
                assert all(torch.equal(p.grad, g) for p, g in zip(params, given, strict=True) if p.grad is not None)
            scaler.update()
        assert scaler.get_scale() == (2.0**9 if scaled else 1.0)
        assert {int(state["step"]) for state in optimizer.state.values()} == {7}
        ends.append(flat(params))
    assert torch.equal(*ends)


def test_a_buffer_that_starts_at_the_first_gradient_starts_at_the_unscaled_one() -> None:
    ends = []
    for scaled in (True, False):
        params = parameters([(20,)], torch.float32)
        optimizer = aimopt.Adan(params, 0.01, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale((params[0] - step).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        ends.append(flat(params))
    assert torch.equal(*ends)


@pytest.mark.parametrize("way", ["watched", "compiled"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it first compiles
def test_a_step_with_fused_true_that_runs_unfused_unscales_too(way: str) -> None:
    ends = []
    for scaled in (True, False):
        params = parameters([(20,), (3, 4)], torch.float32)
        optimizer: Any = aimopt.SGDM(params, 0.01, fused=True)
        step = torch.compile(optimizer.step, backend="eager") if way == "compiled" else optimizer.step
        if way == "watched":
            aimopt.watch(optimizer, every=2)
        for t in range(4):
            push(params, t)
            if scaled:
                optimizer.grad_scale, optimizer.found_inf = torch.tensor(1024.0), torch.tensor(0.0)
                for p in params:
                    assert p.grad is not None
                    p.grad.mul_(1024)
            step()
        ends.append(flat(params))
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("Optimizer", [aimopt.AdamW, aimopt.RADAR], ids=lambda o: o.__name__)
def test_a_huge_scale_does_not_overflow(Optimizer: Class) -> None:
    ends = []
    for scale in (1.0, 2.0**76):
        params = parameters([(50,)], torch.float32)
        optimizer = Optimizer(params, lr=0.01, fused=True)
        for t in range(3):
            push(params, t)
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(0.0)
            for p in params:
                assert p.grad is not None
                p.grad.mul_(scale)
            optimizer.step()
        ends.append(flat(params))
    torch.testing.assert_close(*ends)
