"""The reductions and theorems the paper states (sections 3 and 4, appendix A.1 to A.3), run."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import aimopt
from aimopt import (
    AIM,
    EMA,
    Adaptive,
    Direct,
    Euclidean,
    ExactQuadratic,
    FixedPoint,
    GradientDifference,
    HeavyBall,
    Lookback,
    MixThenMap,
    QuasiHyperbolic,
    Relativistic,
    Secant,
    Sign,
    Spectral,
)
from optimizer_driver import MATRICES, Factory, assert_same, drive, parameters, push

PLAIN: dict[str, Any] = dict(bias_correction=False)


def same(ours: Factory, theirs: Factory, tolerance: float = 1e-12, steps: int = 100, **kwargs: Any) -> None:
    assert_same(drive(ours, parameters(**kwargs), steps), drive(theirs, parameters(**kwargs), steps), tolerance)


# At β2 near 0 the step divides by single gradients, and rounding of a small one decides where it ends.
@given(
    st.floats(0, 0.99), st.floats(0.5, 0.999), st.floats(0, 2), st.floats(0, 1), st.floats(0.2, 3), st.floats(1e-8, 1.0)
)
@settings(max_examples=30, deadline=None)
def test_radar_is_exactly_algorithm_2(
    beta1: float, beta2: float, gamma: float, ratio: float, delta: float, zeta: float
) -> None:
    """With the previous gradient stored, as printed, and without it, as here."""
    lr, ell = 0.01, ratio * 0.01
    (theta,) = parameters([(6,)])
    m, v, previous = torch.zeros_like(theta), torch.zeros_like(theta), torch.zeros_like(theta)
    for step in range(60):
        push([theta], step)
        g = theta.grad
        assert g is not None
        with torch.no_grad():
            m = beta1 * m + (1 - beta1) * g + gamma * (g - previous)
            v = beta2 * v + (1 - beta2) * g**2
            R = (delta**2 * v + zeta).sqrt()
            theta -= lr * m / R + ell * (g - m) / R
        previous = g.clone()
    ours = drive(
        lambda p: aimopt.RADAR(
            p, lr, (beta1, beta2), gamma=gamma, ell=ell, delta=delta, zeta=zeta, bias_correction=False
        ),
        parameters([(6,)]),
        60,
    )
    assert_same(ours, theta.detach(), 1e-10)


@pytest.mark.parametrize("gamma", [0.0, 0.01, 0.1, 0.9, 1.5])
@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.1, 1.0])
def test_radar_is_a_quasi_hyperbolic_momentum(gamma: float, ratio: float) -> None:
    beta1, lr = 0.9, 0.01
    nu = (1 - ratio) * (1 - gamma / beta1)
    filter = GradientDifference(beta1, gamma, bias_correction=False)
    assert filter.average_weight * (1 - ratio) == pytest.approx(nu)
    if nu >= 0:
        same(
            lambda p: aimopt.RADAR(p, lr, gamma=gamma, ell_ratio=ratio, bias_correction=False),
            lambda p: AIM(p, lr, filter=QuasiHyperbolic(beta1, nu, False), geometry=Relativistic(**PLAIN)),
        )


def test_without_gamma_and_ell_radar_is_rad() -> None:
    same(lambda p: aimopt.RADAR(p, gamma=0.0, ell_ratio=0.0, zeta=1e-30), lambda p: aimopt.RAD(p, zeta=1e-30))


def test_with_delta_1_and_small_zeta_rad_is_adam() -> None:
    same(lambda p: aimopt.RAD(p, zeta=1e-30), lambda p: torch.optim.Adam(p, eps=0.0))


def test_nesterov_is_one_fixed_point_step_over_heavy_ball() -> None:
    """Theorem 1: ℓ = η(1−β1) gives Nesterov momentum, no correction gives heavy-ball, in EMA form as in torch's."""
    mu, lr = 0.9, 0.01
    for correction, nesterov in ((FixedPoint(), True), (Direct(), False)):
        ema = AIM_factory(lr / (1 - mu), EMA(mu, bias_correction=False), Euclidean(), correction)
        same(ema, lambda p, n=nesterov: torch.optim.SGD(p, lr, momentum=mu, nesterov=n))  # type: ignore[misc]


def AIM_factory(lr: float, filter: Any, geometry: Any, correction: Any) -> Factory:
    return lambda p: AIM(p, lr, filter=filter, geometry=geometry, correction=correction)


def test_nadam_without_bias_correction_is_one_fixed_point_step_over_adam() -> None:
    """Equation (nadam_theta_update): θ − η·Q⁻¹·m − η(1−β1)·Q⁻¹·(g − m)."""
    beta1, beta2, lr, eps = 0.9, 0.99, 0.01, 1e-8
    (theta,) = parameters([(6,)])
    m, v = torch.zeros_like(theta), torch.zeros_like(theta)
    for step in range(60):
        push([theta], step)
        g = theta.grad
        assert g is not None
        with torch.no_grad():
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g**2
            Q = v.sqrt() + eps
            theta -= lr * m / Q + lr * (1 - beta1) * (g - m) / Q
    ours = drive(
        lambda p: aimopt.ConstantNAdam(p, lr, (beta1, beta2), eps, bias_correction=False), parameters([(6,)]), 60
    )
    assert_same(ours, theta.detach())


@pytest.mark.parametrize("geometry", [Euclidean(), Adaptive(), Relativistic()], ids=lambda g: type(g).__name__)
def test_with_a_linear_geometry_mixing_before_or_after_the_map_is_the_same(geometry: Any) -> None:
    filter = EMA()
    same(
        AIM_factory(0.01, filter, geometry, FixedPoint(ell_ratio=0.2)),
        AIM_factory(0.01, filter, geometry, MixThenMap(0.2)),
    )


@pytest.mark.parametrize("geometry", [Sign(), Spectral()], ids=lambda g: type(g).__name__)
def test_with_a_nonlinear_geometry_they_differ(geometry: Any) -> None:
    one, other = (
        drive(AIM_factory(0.01, EMA(), geometry, correction), parameters(MATRICES), 20)
        for correction in (FixedPoint(ell_ratio=0.2), MixThenMap(0.2))
    )
    assert (one - other).abs().max() > 1e-3


def test_accelerated_lion_and_muon_without_ell_are_lion_and_muon() -> None:
    same(lambda p: aimopt.AcceleratedLion(p, ell_ratio=0.0), lambda p: aimopt.Lion(p))
    same(lambda p: aimopt.AcceleratedMuon(p, ell_ratio=0.0), lambda p: aimopt.Muon(p, nesterov=False), shapes=MATRICES)


def test_accelerated_lion_adds_the_sign_of_the_residual() -> None:
    lr, ell, (beta, decay) = 0.01, 0.003, (0.9, 0.99)
    (theta,) = parameters([(6,)])
    e = torch.zeros_like(theta)
    for step in range(30):
        push([theta], step)
        g = theta.grad
        assert g is not None
        with torch.no_grad():
            m = beta * e + (1 - beta) * g
            theta -= lr * m.sign() + ell * (g - m).sign()
            e = decay * e + (1 - decay) * g
    assert_same(drive(lambda p: aimopt.AcceleratedLion(p, lr, ell=ell), parameters([(6,)]), 30), theta.detach())


def test_the_spectral_map_is_the_steepest_direction_of_unit_spectral_norm() -> None:
    """Appendix A.3: ⟨M, UVᵀ⟩ is the nuclear norm, and no other matrix of spectral norm 1 gets more."""
    M = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    U = Spectral(polar="exact").apply(M, None) / math.sqrt(7 / 4)
    nuclear = torch.linalg.matrix_norm(M, "nuc")
    assert_same((M * U).sum(), nuclear)
    assert_same(torch.linalg.matrix_norm(U, 2), torch.ones((), dtype=torch.float64))
    for seed in range(50):
        other = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        assert (M * other).sum() / torch.linalg.matrix_norm(other, 2) <= nuclear
    approximate = Spectral(ns_dtype="float64").apply(M, None) / math.sqrt(7 / 4)
    singular = torch.linalg.svdvals(approximate)
    assert 0.6 < singular.min() <= singular.max() < 1.3  # what five quintic steps promise


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.5])
def test_exact_bias_correction_reproduces_a_constant_gradient_from_the_first_step(gamma: float) -> None:
    g = torch.tensor([2.0, -3.0], dtype=torch.float64)
    filter = GradientDifference(0.9, gamma, "exact")
    state = {"exp_avg": torch.zeros_like(g)}
    for t in range(1, 50):
        m, _ = filter.update(state, g, t)
        assert_same(m, g)
    first, _ = GradientDifference(0.9, gamma).update({"exp_avg": torch.zeros_like(g)}, g, 1)
    assert_same(first, (1 + gamma / 0.1) * g)  # the authors' correction leaves γ out


class Quadratic:
    """½·xᵀHx − bᵀx in five variables, held by two parameters."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        A = torch.randn(5, 5, dtype=torch.float64, generator=generator)
        self.H = A @ A.T + torch.eye(5, dtype=torch.float64)
        self.b = torch.randn(5, dtype=torch.float64, generator=generator)
        self.params = parameters([(2,), (3,)])

    def gradient(self, x: Tensor) -> Tensor:
        return self.H @ x - self.b

    def closure(self) -> Tensor:
        for p in self.params:
            p.grad = None
        x = torch.cat(self.params)
        loss = x @ self.H @ x / 2 - self.b @ x
        loss.backward()
        return loss

    @property
    def x(self) -> Tensor:
        return torch.cat([p.detach() for p in self.params]).clone()


def test_the_multiplier_update_with_an_exact_theta_step_is_the_ema() -> None:
    """Appendix A.1: corrected by the residual (1−β)·ρ2·(y − θ⁺), the multiplier is the filter's next average."""
    problem, beta, eta = Quadratic(), 0.9, 0.02
    ell = eta * (1 - beta)
    optimizer = AIM(
        problem.params, eta, filter=EMA(beta, bias_correction=False), geometry=Euclidean(), correction=ExactQuadratic()
    )
    path, multipliers = [problem.x], []
    for _ in range(30):
        optimizer.step(problem.closure)
        path.append(problem.x)
        multipliers.append(torch.cat([optimizer.state[p]["exp_avg"] for p in problem.params]).clone())
    for before, after, m, next_m in zip(path, path[1:], multipliers, multipliers[1:], strict=False):
        y = before - eta * m
        assert_same(m + (y - after) / ell, problem.gradient(after), 1e-7)  # the full correction: KKT stationarity
        assert_same(m + (1 - beta) * (y - after) / ell, next_m, 1e-7)  # the relaxed one: the average


@pytest.mark.parametrize("geometry", [Euclidean(), Adaptive(**PLAIN), Relativistic(**PLAIN)], ids=str)
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_exact_quadratic_solves_the_implicit_equation(geometry: Any, foreach: bool, decay: float) -> None:
    """θ⁺ = θ − η·P(m) − ℓ·P(∇L(θ⁺) − m), checked by substitution; with decoupled decay θ is decayed first."""
    problem, eta, ratio, beta = Quadratic(), 0.05, 0.4, 0.9
    optimizer = AIM(
        problem.params,
        eta,
        filter=EMA(beta, bias_correction=False),
        geometry=geometry,
        correction=ExactQuadratic(ell_ratio=ratio),
        foreach=foreach,
        weight_decay=decay,
    )
    e, v = torch.zeros(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    for _ in range(10):
        before = problem.x
        g = problem.gradient(before)
        e, v = beta * e + (1 - beta) * g, 0.999 * v + 0.001 * g**2
        optimizer.step(problem.closure)
        after = problem.x
        R = {"Euclidean": v * 0 + 1, "Adaptive": v.sqrt() + 1e-8, "Relativistic": (v + 1e-16).sqrt()}[
            type(geometry).__name__
        ]
        start = before * (1 - eta * decay)
        assert_same(after, start - eta * e / R - ratio * eta * (problem.gradient(after) - e) / R, 1e-8)


def test_exact_quadratic_without_ell_is_the_descent_point() -> None:
    for ratios in ((0.0, 0.0), (0.0, 0.4)):
        problem = Quadratic()
        groups: Any = [{"params": [p], "ell_ratio": r} for p, r in zip(problem.params, ratios, strict=True)]
        optimizer = AIM(groups, 0.05, filter=EMA(), geometry=Euclidean(), correction=ExactQuadratic())
        before = problem.x
        g = problem.gradient(before)
        optimizer.step(problem.closure)
        assert_same(problem.x[:2], (before - 0.05 * g)[:2])
        after = before - 0.05 * g - ratios[1] * 0.05 * (problem.gradient(problem.x) - g)
        assert_same(problem.x[2:], after[2:], 1e-8)
    problem = Quadratic()
    still = AIM(problem.params, 0.0, filter=EMA(), geometry=Euclidean(), correction=ExactQuadratic())
    before = problem.x
    still.step(problem.closure)
    assert torch.equal(problem.x, before)


def test_fixed_point_iterations_converge_to_the_exact_theta_step() -> None:
    ends = []
    for correction in (ExactQuadratic(), *(FixedPoint(iterations=k) for k in (1, 2, 4, 30))):
        problem = Quadratic()
        optimizer = AIM(problem.params, 0.1, filter=EMA(), geometry=Euclidean(), correction=correction)
        for _ in range(5):
            optimizer.step(problem.closure)
        ends.append(problem.x)
    errors = [float((end - ends[0]).norm()) for end in ends[1:]]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1e-3
    assert errors[-1] < 1e-12


def test_k_fixed_point_steps_by_hand() -> None:
    problem, eta, ell = Quadratic(), 0.05, 0.02
    optimizer = AIM(problem.params, eta, filter=EMA(), geometry=Euclidean(), correction=FixedPoint(ell, iterations=3))
    theta = problem.x
    m = problem.gradient(theta)  # bias-corrected, so the first gradient itself
    y = theta - eta * m
    for _ in range(3):
        theta = y - ell * (problem.gradient(theta) - m)
    optimizer.step(problem.closure)
    assert_same(problem.x, theta)


def test_secant_extrapolates_the_gradient() -> None:
    lr, ell, beta = 0.01, 0.004, 0.9
    (theta,) = parameters([(6,)])
    e = torch.zeros_like(theta)
    previous: Tensor | None = None
    for step in range(30):
        push([theta], step)
        g = theta.grad
        assert g is not None
        with torch.no_grad():
            e = beta * e + (1 - beta) * g
            m = e / (1 - beta ** (step + 1))
            predicted = 2 * g - (g if previous is None else previous)
            theta -= lr * m + ell * (predicted - m)
        previous = g.clone()
    ours = drive(AIM_factory(lr, EMA(beta), Euclidean(), Secant(ell=ell)), parameters([(6,)]), 30)
    assert_same(ours, theta.detach())


def test_on_a_smooth_path_the_secant_comes_closer_to_the_exact_theta_step_than_the_fixed_point() -> None:
    ends = []
    for correction in (ExactQuadratic(ell_ratio=1.0), FixedPoint(ell_ratio=1.0), Secant(ell_ratio=1.0)):
        problem = Quadratic()
        optimizer = AIM(problem.params, 0.002, filter=EMA(0.5), geometry=Euclidean(), correction=correction)
        for _ in range(100):
            optimizer.step(problem.closure)
        ends.append(problem.x)
    exact, fixed_point, secant = ends
    assert (secant - exact).norm() < (fixed_point - exact).norm() / 5


def test_lookback_reads_before_it_decays() -> None:
    filter = Lookback(0.9, 0.99)
    e, g = torch.tensor([1.0]), torch.tensor([2.0])
    state = {"exp_avg": e.clone()}
    m, _ = filter.update(state, g, 1)
    assert_same(m, 0.9 * e + 0.1 * g, 1e-6)
    assert_same(state["exp_avg"], 0.99 * e + 0.01 * g, 1e-6)


def test_heavy_ball_sums_and_normalized_averages() -> None:
    for normalized, gain in ((False, 10.0), (True, 1.0)):
        filter = HeavyBall(0.9, normalized)
        assert filter.gain == pytest.approx(gain)
        state = {"momentum_buffer": torch.zeros(1, dtype=torch.float64)}
        for t in range(1, 400):
            m, _ = filter.update(state, torch.ones(1, dtype=torch.float64), t)
        assert_same(m, torch.ones(1, dtype=torch.float64))
        assert_same(state["momentum_buffer"], torch.full((1,), gain, dtype=torch.float64))
