"""Optimizers in training loops: schedulers, gradient scaling, accumulation, differentiation."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

import aimopt
from aimopt import AIM
from optimizer_driver import ALL, EXCEPT_MATRICES, advance, assert_same, flat, parameters, push, shapes_for

every = pytest.mark.parametrize("Optimizer", ALL, ids=lambda o: o.__name__)
every_element_wise = pytest.mark.parametrize("Optimizer", EXCEPT_MATRICES, ids=lambda o: o.__name__)
Class = Any  # a named optimizer: its constructor takes more than AIM's


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def has_momentum(optimizer: Any) -> bool:
    return isinstance(optimizer, torch.optim.Optimizer) and not {"betas", "momentum"}.isdisjoint(optimizer.defaults)


SCHEDULERS: dict[str, Any] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda i: 0.9**i),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda i: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.0 + 1e-3, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 1e-4, 1e-2, 2, cycle_momentum=has_momentum(o)),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=8, cycle_momentum=has_momentum(o)),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(o, 0.9)]),
}


@every
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_works(Optimizer: Class, name: str) -> None:
    shapes = shapes_for(Optimizer)
    params = parameters(shapes)
    optimizer = Optimizer(params, lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scheduler = SCHEDULERS[name](optimizer)
    by_hand = parameters(shapes)
    reference = Optimizer(by_hand, lr=0.01)
    rates = []
    for step in range(7):
        group = optimizer.param_groups[0]
        rates.append(group["lr"])
        for key in ("lr", "betas", "momentum"):
            if key in group:
                reference.param_groups[0][key] = group[key]
        advance(optimizer, params, 1, first=step)
        advance(reference, by_hand, 1, first=step)
        scheduler.step(1.0) if name == "ReduceLROnPlateau" else scheduler.step()
    assert len(set(rates)) > 1
    assert_same(flat(params), flat(by_hand))


def test_gradscaler_and_gradient_accumulation() -> None:
    x, y = torch.randn(16, 6, dtype=torch.float64), torch.randn(16, 3, dtype=torch.float64)

    def loss(network: nn.Module, part: slice) -> Tensor:
        return nn.functional.mse_loss(network(x[part]), y[part])

    whole, scaled, parts = model(), model(), model()
    optimizers = [aimopt.RADAR(network.parameters(), 0.01) for network in (whole, scaled, parts)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for _ in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss(whole, slice(None)).backward()
        optimizers[0].step()
        scaler.scale(loss(scaled, slice(None))).backward()
        scaler.step(optimizers[1])
        scaler.update()
        for half in (slice(0, 8), slice(8, 16)):
            (loss(parts, half) / 2).backward()
        optimizers[2].step()
    assert_same(flat(list(scaled.parameters())), flat(list(whole.parameters())), 1e-10)
    assert_same(flat(list(parts.parameters())), flat(list(whole.parameters())), 1e-10)
    # An overflow: the scaler leaves out the step, and the optimizer does not count it.
    for p in scaled.parameters():
        p.grad = torch.full_like(p, torch.inf)
    before = flat(list(scaled.parameters()))
    scaler.step(optimizers[1])
    scaler.update()
    assert torch.equal(flat(list(scaled.parameters())), before)


def through(build: Any, start: Tensor, lr: Tensor) -> Tensor:
    """A loss after three steps that depends on the start and on lr through gradients autograd has recorded."""
    p = start * 1.0
    optimizer = build([p], lr)
    for step in range(3):
        pull = torch.linspace(0.5, 2.0, p.numel(), dtype=p.dtype).view_as(p)
        q = p.clone()  # the step writes p, and autograd keeps q
        (p.grad,) = torch.autograd.grad((pull * q**2 + q * torch.sin(q + step)).sum(), p, create_graph=True)
        optimizer.step()
    return (p**3).sum()


def assert_differentiable(build: Any) -> None:
    start = parameters([(3, 2)])[0].detach().requires_grad_()
    lr = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    by_start, by_lr = torch.autograd.grad(through(build, start, lr), (start, lr))
    h, direction = 1e-6, torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ahead, behind = (through(build, (start.detach() + s * h * direction).requires_grad_(), lr) for s in (1, -1))
    assert float((by_start * direction).sum()) == pytest.approx(float((ahead - behind).detach() / (2 * h)), rel=1e-5)
    ahead, behind = (through(build, start, (lr + s * h).detach().requires_grad_()) for s in (1, -1))
    assert float(by_lr) == pytest.approx(float((ahead - behind).detach() / (2 * h)), rel=1e-5)


@every
def test_the_step_can_be_differentiated_through(Optimizer: Class) -> None:
    """Against finite differences in the start and in lr; Newton–Schulz in float64, since float32 is too coarse."""

    def build(params: Any, lr: Tensor) -> Any:
        options = dict(bias_correction=False) if Optimizer is aimopt.ConstantNAdam else {}
        optimizer = Optimizer(params, lr=lr, differentiable=True, **options)
        optimizer.param_groups[0].update({"ns_dtype": "float64"} if "ns_dtype" in optimizer.param_groups[0] else {})
        return optimizer

    assert_differentiable(build)


@pytest.mark.parametrize(
    ("geometry", "correction"),
    [
        (aimopt.Adaptive(amsgrad=True), aimopt.Direct()),
        (aimopt.Relativistic(order=2, zeta=1e-2, amsgrad=True), aimopt.FixedPoint()),
        (aimopt.Belief(rectify=False, amsgrad=True), aimopt.Direct()),
        (aimopt.Euclidean(), aimopt.Secant()),
    ],
    ids=repr,
)
def test_other_cells_can_be_differentiated_through(geometry: Any, correction: Any) -> None:
    assert_differentiable(
        lambda p, lr: AIM(p, lr, filter=aimopt.EMA(), geometry=geometry, correction=correction, differentiable=True)
    )


def test_schedulers_that_cycle_momentum_cycle_that_of_the_filter() -> None:
    optimizer = AIM(parameters(), 0.01, filter=aimopt.HeavyBall(0.9), geometry=aimopt.Adaptive(0.97))
    group = optimizer.param_groups[0]
    assert group["beta2"] == 0.97
    assert "betas" not in group
    lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=8)
    assert group["momentum"] == 0.95
    assert group["beta2"] == 0.97
    push(group["params"], 0)
    optimizer.step()
    radar = aimopt.RADAR(parameters(), 0.01)
    lr_scheduler.OneCycleLR(radar, 0.01, total_steps=8)
    assert radar.param_groups[0]["betas"] == (0.95, 0.999)
