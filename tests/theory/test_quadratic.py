"""Stability and rates on quadratics, held to real optimizers on real quadratics, to closed forms and to eigenvalues."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

import aimopt
from aimopt import (
    AIM,
    EMA,
    AdanPair,
    Direct,
    Euclidean,
    ExactQuadratic,
    FixedPoint,
    GradientDifference,
    HeavyBall,
    Lookback,
    QuasiHyperbolic,
    Secant,
    TwoSpeed,
    VarianceReduced,
    theory,
)
from aimopt.parts.component import Attempt, Correction, DisplacementInputs, Filter, State, StepCount, Transfer
from aimopt.parts.corrections import Residual

Make = Callable[[list[Tensor]], AIM]
STILL: dict[str, Any] = dict(delta=1e-100, zeta=1.0)  # R = 1


def composed(filter: Filter, correction: Correction | None = None, lr: float = 0.1) -> Make:
    return lambda p: AIM(p, lr, filter=filter, geometry=Euclidean(), correction=correction or Direct())


OPTIMIZERS: dict[str, Make] = {
    "SGDM": lambda p: aimopt.SGDM(p, 0.1),
    "Nesterov": lambda p: aimopt.Nesterov(p, 0.1),
    "RADAR": lambda p: aimopt.RADAR(p, 0.1, **STILL),
    "RADAR, γ=0.5, ℓ=0.3η": lambda p: aimopt.RADAR(p, 0.1, gamma=0.5, ell_ratio=0.3, **STILL),
    "RADAR, ℓ=0.02": lambda p: aimopt.RADAR(p, 0.1, ell=0.02, **STILL),
    "RADAR, ℓ=η": lambda p: aimopt.RADAR(p, 0.1, ell_ratio=1.0, **STILL),
    "RADAR, γ=β1": lambda p: aimopt.RADAR(p, 0.1, gamma=0.9, **STILL),
    "RADAR, β1=0": lambda p: aimopt.RADAR(p, 0.1, (0.0, 0.999), **STILL),
    "2 fixed-point steps": composed(EMA(0.9), FixedPoint(ell_ratio=0.3, iterations=2)),
    "3 fixed-point steps": composed(HeavyBall(0.8), FixedPoint(iterations=3)),
    "secant": composed(EMA(0.8), Secant(ell_ratio=0.3)),
    "exact": composed(EMA(0.8), ExactQuadratic(ell_ratio=0.2)),
    "Adan's filter": composed(AdanPair(0.9, 0.8)),
    "Adan's filter, corrected": composed(AdanPair(0.9, 0.8), FixedPoint(ell_ratio=0.3)),
    "Lion's filter": composed(Lookback(0.8, 0.95)),
    "quasi-hyperbolic": composed(QuasiHyperbolic(0.95, 0.7)),
    "two speeds": composed(TwoSpeed(0.8, 0.95, 2.0)),
    "two speeds, corrected": composed(TwoSpeed(0.8, 0.95, 3.0, normalized=True), FixedPoint(ell_ratio=0.3)),
    "variance-reduced": composed(VarianceReduced(0.9, 0.2)),
}
named = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())


def trajectory(make: Make, curvatures: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """The path of a real optimizer on ½·Σ λ_i·x_i², from x = 1."""
    scale = torch.from_numpy(np.asarray(curvatures, dtype=float))
    x = torch.ones_like(scale, requires_grad=True)
    optimizer = make([x])

    def closure() -> float:
        x.grad = scale * x.detach()
        return 0.0

    path = [x.detach().clone()]
    for _ in range(steps):
        optimizer.step(closure)
        path.append(x.detach().clone())
    return torch.stack(path).numpy()


def predicted(make: Make) -> theory.Quadratic:
    return theory.quadratic(make([torch.zeros(1, requires_grad=True)]))


@named
def test_the_path_obeys_the_predicted_recurrence(make: Make) -> None:
    """Once bias correction has worn off, Σ p_i·x_{k−i} = 0 with p the characteristic polynomial, at every curvature."""
    h = np.array([0.003, 0.02, 0.1, 0.3])
    path = trajectory(make, h / 0.1, 430)
    p = predicted(make).characteristic(h)
    order = p.shape[1] - 1
    for k in range(400, 430):
        past = path[k - order : k + 1][::-1].T
        np.testing.assert_allclose((p * past).sum(1), 0, atol=1e-9 * np.abs(past).max())


@named
def test_the_measured_rate_is_the_spectral_radius(make: Make) -> None:
    """Divided by radiusᵏ, the error neither grows nor shrinks: over 200 steps a rate 1 % off would show as e²."""
    h = np.array([0.02, 0.1, 0.25])
    radius = predicted(make).spectral_radius(h)
    path = np.abs(trajectory(make, h / 0.1, 350))
    level = path / radius ** np.arange(351)[:, None]
    early, late, alive = level[100:150].max(0), level[300:350].max(0), path[300:350].max(0) > 1e-290
    assert (alive | (radius < 0.15)).all()
    assert (late[alive] < 3 * early[alive]).all()
    assert (early[alive] < 3 * late[alive]).all()


@named
def test_just_inside_the_edge_converges_and_just_outside_diverges(make: Make) -> None:
    quadratic = predicted(make)
    edge = quadratic.largest_stable
    if math.isinf(edge):
        path = np.abs(trajectory(make, np.array([1e2, 1e4]), 300))
        assert (path[-1] < 1e-3).all()
        assert type(quadratic.linear_step.correction) is ExactQuadratic
        return
    inside, outside = np.abs(trajectory(make, np.array([0.98, 1.02]) * edge / 0.1, 1000)).T
    assert inside[-200:].max() < 0.1 * inside[:200].max()
    assert outside[-200:].max() > 10 * outside[:200].max()


def test_the_edge_in_closed_form() -> None:
    """Where the sign flips at every step: η·λ·gain·H(−1) = 2."""
    for beta in (0.0, 0.5, 0.9, 0.99):
        assert theory.quadratic(EMA(beta)).largest_stable == pytest.approx(2 * (1 + beta) / (1 - beta))
        assert theory.quadratic(HeavyBall(beta)).largest_stable == pytest.approx(2 * (1 + beta))
        nesterov = theory.quadratic(HeavyBall(beta), FixedPoint())
        assert nesterov.largest_stable == pytest.approx(2 * (1 + beta) / (1 + 2 * beta))
    radar = aimopt.RADAR([torch.zeros(1, requires_grad=True)])
    assert theory.quadratic(radar).largest_stable == pytest.approx(2 / theory.response(radar).nyquist_gain)


def radar_by_hand(beta: float, gamma: float, ratio: float, h: float) -> NDArray[np.float64]:
    """(x, e) of RADAR with R = 1, λ = 1: m = (β−γ)·e + (1−β+γ)·x, x⁺ = x − (η−ℓ)·m − ℓ·x, e⁺ = β·e + (1−β)·x."""
    of_e, of_x = beta - gamma, 1 - beta + gamma
    slow, quick = h * (1 - ratio), h * ratio
    return np.array([[1 - slow * of_x - quick, -slow * of_e], [1 - beta, beta]])


@given(st.floats(0.01, 0.99), st.floats(0, 2), st.floats(0, 0.99), st.floats(1e-3, 10))
@settings(max_examples=150, deadline=None)
def test_the_spectrum_is_that_of_the_matrix_by_hand(beta: float, gamma: float, ratio: float, h: float) -> None:
    hand = radar_by_hand(beta, gamma, ratio, h)
    quadratic = theory.quadratic(GradientDifference(beta, gamma), FixedPoint(ell_ratio=ratio))
    if abs(gamma - beta) < 1e-4:  # the average no longer reaches x, and is left out
        assert float(quadratic.spectral_radius(h)) == pytest.approx(abs(1 - h), abs=1e-2)
        return
    # Coefficients, not eigenvalues: near a double root those amplify rounding to its square root.
    np.testing.assert_allclose(quadratic.characteristic(h), np.poly(hand), atol=1e-8 * (1 + h))
    np.testing.assert_allclose(np.poly(quadratic.iteration_matrix(h)), np.poly(hand), atol=1e-8 * (1 + h))
    radius = np.abs(np.linalg.eigvals(hand)).max()
    assert float(quadratic.spectral_radius(h)) == pytest.approx(radius, abs=1e-4 * (1 + h))


@given(st.floats(0, 0.99), st.floats(0, 1), st.floats(0.001, 0.9))
@settings(max_examples=60, deadline=None)
def test_many_fixed_point_steps_are_the_exact_theta_step(beta: float, ratio: float, s: float) -> None:
    """While they converge, that is where s = ℓ·λ/R < 1."""
    h = s / ratio if ratio > 1e-3 else s
    exact = theory.quadratic(EMA(beta), ExactQuadratic(ell_ratio=ratio)).characteristic(h)
    many = theory.quadratic(EMA(beta), FixedPoint(ell_ratio=ratio, iterations=400)).characteristic(h)
    np.testing.assert_allclose(many, exact, atol=1e-9 * (1 + h))


def test_diverging_fixed_point_steps_are_unstable_however_many() -> None:
    many = theory.quadratic(EMA(0.9), FixedPoint(ell_ratio=0.5, iterations=60))
    assert many.largest_stable < 2.2  # s < 1 is h < 2
    assert np.isinf(many.spectral_radius(1e8))
    assert math.isinf(theory.quadratic(EMA(0.9), ExactQuadratic(ell_ratio=0.5)).largest_stable)


def test_best_rates_that_are_known() -> None:
    """Gradient descent (κ−1)/(κ+1), Polyak's heavy ball (√κ−1)/(√κ+1), Nesterov 1 − 1/√κ at η = 1/L."""
    mu, L = 1.0, 100.0
    descent = theory.quadratic(EMA(0.0)).best_rate(mu, L)
    assert descent.factor == pytest.approx(99 / 101, rel=1e-6)
    assert descent.lr == pytest.approx(2 / 101, rel=1e-4)
    assert descent.steps_per_digit == pytest.approx(math.log(10) / math.log(101 / 99), rel=1e-4)
    polyak = theory.quadratic(HeavyBall((9 / 11) ** 2)).best_rate(mu, L)
    assert polyak.factor == pytest.approx(9 / 11, rel=1e-3)  # eigenvalues meet there: rounding counts as its root
    assert polyak.lr == pytest.approx(4 / 121, rel=1e-3)
    nesterov = theory.quadratic(HeavyBall(9 / 11), FixedPoint())
    assert nesterov.rate(mu, L, 1 / L).factor == pytest.approx(0.9, abs=1e-6)
    assert nesterov.best_rate(mu, L).factor <= 0.9


@pytest.mark.parametrize("name", ["SGDM", "RADAR", "2 fixed-point steps", "secant"])
def test_no_learning_rate_beats_the_best(name: str) -> None:
    quadratic = predicted(OPTIMIZERS[name])
    best = quadratic.best_rate(1.0, 50.0)
    others = [quadratic.rate(1.0, 50.0, lr).factor for lr in np.geomspace(best.lr / 30, best.lr * 30, 301)]
    assert best.factor <= min(others) + 1e-9
    assert quadratic.rate(1.0, 50.0).lr == 0.1


def test_the_best_rate_is_reached_by_the_real_optimizer() -> None:
    mu, L = 1.0, 50.0
    best = theory.quadratic(GradientDifference(), FixedPoint(ell_ratio=0.01)).best_rate(mu, L)
    path = np.abs(trajectory(lambda p: aimopt.RADAR(p, best.lr, **STILL), np.geomspace(mu, L, 30), 400))
    measured = (path[300:400].max() / path[100:200].max()) ** (1 / 200)
    assert measured == pytest.approx(best.factor, abs=2e-3)


def test_a_comparison_prints_as_a_table() -> None:
    p = [torch.zeros(1, requires_grad=True)]
    sources: dict[str, Any] = {
        "SGDM": aimopt.SGDM(p),
        "Nesterov": aimopt.Nesterov(p),
        "RADAR": aimopt.RADAR(p),
        "2 steps": (EMA(), FixedPoint(iterations=2)),
        "exact": (EMA(), ExactQuadratic()),
    }
    table = theory.compare_on_quadratics(sources, 1, 100)
    text = str(table)
    assert "condition number 100" in text
    assert "always" in text
    edges = {name: edge for name, edge, _ in table.rows}
    assert edges["SGDM"] == pytest.approx(3.8)
    assert f"{edges['RADAR']:.4g}" in text
    assert len(text.splitlines()) == 7


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.quadratic(aimopt.Lion([torch.zeros(1, requires_grad=True)])), "Sign is not linear"),
        (lambda: theory.quadratic(EMA()).rate(1, 2), "pass lr="),
        (lambda: theory.quadratic(EMA()).best_rate(2, 1), "0 < mu ≤ L < ∞, got mu=2 and L=1"),
        (lambda: theory.quadratic(EMA()).best_rate(-1, 1), "got mu=-1"),
        (lambda: theory.quadratic(EMA()).rate(1, math.inf, 0.1), "got mu=1 and L=inf"),
        (lambda: theory.quadratic(EMA(), FixedPoint(ell=0.1)).largest_stable, "pass lr="),
    ],
)
def test_mistakes_get_a_message_that_says_what_to_do(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_rate_that_does_not_shrink() -> None:
    assert math.isinf(theory.Rate(1.0, 1.2).steps_per_digit)
    assert theory.Rate(1.0, 0.0).steps_per_digit == 0


@dataclass(frozen=True)
class Uphill(Filter):
    """m = −g."""

    pole = 0.0

    def update(self, state: State, g: Tensor, t: StepCount) -> tuple[Tensor, Tensor]:
        return -g, g

    def transfer(self) -> Transfer:
        return Transfer((-1.0,), (1.0,))


@dataclass(frozen=True)
class Third(Residual):
    """The gradient at θ⁺, extrapolated from the last three."""

    prediction = (3.0, -3.0, 1.0)

    def displacement(self, step: DisplacementInputs) -> Tensor:
        return step.m


@dataclass(frozen=True)
class Twice(Residual):
    """A user's correction that evaluates the gradient a second time."""

    def displacement(self, step: DisplacementInputs) -> Tensor:
        return step.m

    def solve(self, attempts: Sequence[Attempt]) -> Iterator[None]:
        yield


def test_what_never_converges_and_what_is_not_analysed() -> None:
    uphill = theory.quadratic(Uphill())
    assert uphill.largest_stable == 0
    assert math.isinf(uphill.best_rate(1, 10).factor)
    with pytest.raises(ValueError, match="more than two gradients"):
        theory.quadratic(EMA(), Third())
    with pytest.raises(ValueError, match=r"Twice evaluates the gradient again .* use FixedPoint\(iterations=…\)"):
        theory.quadratic(EMA(), Twice())
