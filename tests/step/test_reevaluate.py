"""Corrections that a user writes: `solve` owns the algorithm, and the core runs it without knowing it."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import aimopt
from aimopt import AIM, EMA, Adaptive, Direct, Euclidean, FixedPoint, Relativistic
from aimopt.parts.component import Attempt, Correction, DisplacementInputs
from aimopt.parts.tensor_list import inner
from optimizer_driver import assert_same, flat, parameters


@dataclass(frozen=True)
class Extragradient(Correction):
    """θ⁺ = θ − η·P(∇L(θ − trial·η·P(m))): one further evaluation, at a trial point."""

    trial: float = 1.0

    def ratio(self, lr: float | Tensor, pole: float) -> float | Tensor:
        return 1.0

    def displacement(self, step: DisplacementInputs) -> Tensor:
        return step.P(step.g) * step.lr

    def solve(self, attempts: Sequence[Attempt]) -> Iterator[None]:
        for attempt in attempts:
            attempt.place(attempt.inputs.P(attempt.inputs.m) * attempt.inputs.lr * self.trial)
        yield
        for attempt in attempts:
            attempt.place(self.displacement(attempt.inputs._replace(g=attempt.gradient())))


@dataclass(frozen=True)
class BarzilaiBorwein(Correction):
    """One step size for all parameters of all groups, sᵀs/sᵀy, measured along the direction m."""

    joint = True
    damping: float = 0.5

    def ratio(self, lr: float | Tensor, pole: float) -> float | Tensor:
        return 0.0

    def displacement(self, step: DisplacementInputs) -> Tensor:
        return step.P(step.m) * step.lr

    def solve(self, attempts: Sequence[Attempt]) -> Iterator[None]:
        s = [self.displacement(attempt.inputs) for attempt in attempts]
        for attempt, si in zip(attempts, s, strict=True):
            attempt.place(si)
        yield
        y = [attempt.inputs.g - attempt.gradient() for attempt in attempts]
        size = sum(inner(si, si) for si in s) / sum(inner(si, yi) for si, yi in zip(s, y, strict=True))
        for attempt in attempts:
            attempt.place(attempt.inputs.P(attempt.inputs.m) * (size * self.damping * attempt.inputs.lr))


def quadratic(params: Sequence[Tensor], curvature: float = 2.0) -> Any:
    def closure() -> Tensor:
        for p in params:
            p.grad = curvature * p.detach()
        return 0.5 * curvature * flat(params).square().sum()

    return closure


def build(params: Any, correction: Correction, **options: Any) -> AIM:
    return AIM(params, 0.1, filter=EMA(0.0), geometry=Euclidean(), correction=correction, **options)


@pytest.mark.parametrize("foreach", [False, True])
def test_a_users_extragradient_step_is_the_formula(foreach: bool) -> None:
    params = parameters()
    before = flat(params)
    build(params, Extragradient(trial=0.5), foreach=foreach).step(quadratic(params))
    trial = before - 0.5 * 0.1 * 2 * before
    assert_same(flat(params), before - 0.1 * 2 * trial)


@pytest.mark.parametrize("foreach", [False, True])
def test_a_users_joint_step_measures_all_groups_together(foreach: bool) -> None:
    params = parameters()
    before = flat(params)
    groups: Any = [{"params": params[:2]}, {"params": params[2:], "lr": 0.2}]
    optimizer = build(groups, BarzilaiBorwein(damping=1.0), foreach=foreach)
    optimizer.step(quadratic(params, curvature=4.0))
    # The size is 1/curvature, for every group: one step of η/λ along g = λ·x.
    first = sum(p.numel() for p in params[:2])
    assert_same(flat(params)[:first], before[:first] * (1 - 0.1))
    assert_same(flat(params)[first:], before[first:] * (1 - 0.2))


def test_it_composes_with_filters_geometries_decay_and_diagnostics() -> None:
    params = parameters()
    optimizer = AIM(
        params,
        0.01,
        filter=EMA(),
        geometry=Relativistic(),
        correction=Extragradient(),
        weight_decay=0.1,
        maximize=False,
    )
    watch = aimopt.watch(optimizer)
    losses = [float(optimizer.step(quadratic(params))) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert watch.read()[0]["update_norm"] > 0
    assert "nu" not in watch.read()[0]


@pytest.mark.parametrize("correction", [Extragradient(trial=0.7), BarzilaiBorwein(damping=0.3)], ids=repr)
def test_it_is_checkpointed(correction: Correction) -> None:
    params = parameters()
    optimizer = AIM(params, 0.01, filter=EMA(), geometry=Adaptive(), correction=correction)
    for _ in range(3):
        optimizer.step(quadratic(params))
    saved = copy.deepcopy(optimizer.state_dict())
    resumed = [p.detach().clone().requires_grad_() for p in params]
    default = type(correction)()
    other = AIM(resumed, 0.5, filter=EMA(), geometry=Adaptive(), correction=default)
    other.load_state_dict(saved)
    assert other.param_groups[0]["correction"] == type(correction).__name__
    for name, value in correction.hyperparameters().items():
        assert other.param_groups[0][name] == value
    for _ in range(3):
        optimizer.step(quadratic(params))
        other.step(quadratic(resumed))
    assert torch.equal(flat(params), flat(resumed))


def test_a_joint_correction_is_refused_next_to_another_one() -> None:
    a, b = parameters([(2,), (3,)])
    for other in (Direct(), FixedPoint(), aimopt.ExactQuadratic()):
        groups: Any = [{"params": [a]}, {"params": [b], "correction": other}]
        with pytest.raises(
            ValueError, match=r"solves for all parameters at once, and another group has .*; use \w+ in"
        ):
            build(groups, BarzilaiBorwein())


def test_corrections_of_several_groups_share_the_evaluations() -> None:
    a, b, c = params = parameters([(2,), (3,), (4,)])
    groups: Any = [
        {"params": [a]},
        {"params": [b], "correction": FixedPoint(iterations=3, ell=0.1)},
        {"params": [c], "correction": Direct()},
    ]
    calls: list[int] = []

    def closure() -> Tensor:
        calls.append(1)
        return quadratic(params)()

    alone = parameters([(2,), (3,), (4,)])
    build(groups, Extragradient()).step(closure)
    assert len(calls) == 3  # the first one, and two more for the correction that needs the most
    build(alone[:1], Extragradient()).step(quadratic(alone))
    build(alone[1:2], FixedPoint(iterations=3, ell=0.1)).step(quadratic(alone))
    build(alone[2:], Direct()).step(quadratic(alone))
    assert_same(flat(params), flat(alone))


def test_it_needs_a_closure_and_is_not_fused() -> None:
    params = parameters()
    with pytest.raises(ValueError, match=r"AIM.step: Extragradient evaluates the gradient more than once per step"):
        build(params, Extragradient()).step()
    with pytest.raises(ValueError, match="BarzilaiBorwein evaluates the closure more than once per step"):
        build(params, BarzilaiBorwein(), fused=True)


def test_an_error_inside_solve_leaves_everything_as_it_was() -> None:
    @dataclass(frozen=True)
    class Failing(Extragradient):
        def solve(self, attempts: Sequence[Attempt]) -> Iterator[None]:
            yield from super().solve(attempts)
            raise KeyError("the user's own bug")

    params = parameters()
    before = flat(params)
    optimizer = build(params, Failing())
    with pytest.raises(KeyError, match="own bug"):
        optimizer.step(quadratic(params))
    assert torch.equal(flat(params), before)
    assert all(int(state["step"]) == 0 for state in optimizer.state.values())


def test_an_invalid_solve_is_refused_with_a_message() -> None:
    @dataclass(frozen=True)
    class Forgetful(Extragradient):
        def solve(self, attempts: Sequence[Attempt]) -> Iterator[None]:
            yield

    @dataclass(frozen=True)
    class NotAGenerator(Extragradient):
        def solve(self, attempts: Sequence[Attempt]) -> Any:
            return None

    params = parameters()
    for correction, message in (
        (Forgetful(), "Forgetful.solve must place every attempt"),
        (NotAGenerator(), "NotAGenerator.solve must be a generator"),
    ):
        with pytest.raises(ValueError, match=message):
            build(params, correction).step(quadratic(params))
