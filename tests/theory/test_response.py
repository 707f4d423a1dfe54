"""The frequency response, held to real optimizers driven by impulses, swings and noise, and to scipy's filters."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import signal
from torch import Tensor

import aimopt
from aimopt import (
    AIM,
    EMA,
    AdanPair,
    Direct,
    Euclidean,
    FixedPoint,
    GradientDifference,
    HeavyBall,
    Lookback,
    QuasiHyperbolic,
    Secant,
    Sign,
    TwoSpeed,
    VarianceReduced,
    theory,
)
from aimopt.parts.component import Filter, State, StepCount, Transfer
from aimopt.parts.composition import Parts
from aimopt.parts.filters import Coefficients, OnePole

Make = Callable[[list[Tensor]], AIM]
# R hardly moves: ζ = 1 beside a tiny δ, or an ε beside which √v is nothing. Then a displacement is a direction times η.
STILL: dict[str, Any] = dict(delta=1e-100, zeta=1.0)
OPTIMIZERS: dict[str, Make] = {
    "RADAR": lambda p: aimopt.RADAR(p, 0.1, **STILL),
    "RADAR, γ=0.5, ℓ=0.3η": lambda p: aimopt.RADAR(p, 0.1, gamma=0.5, ell_ratio=0.3, **STILL),
    "RADAR, ℓ=0.02": lambda p: aimopt.RADAR(p, 0.1, ell=0.02, **STILL),
    "RADAR, γ=β1": lambda p: aimopt.RADAR(p, 0.1, gamma=0.9, **STILL),
    "RADAR, ℓ=η": lambda p: aimopt.RADAR(p, 0.1, ell_ratio=1.0, **STILL),
    "RADAR, β1=0": lambda p: aimopt.RADAR(p, 0.1, (0.0, 0.999), **STILL),
    "SGDM": lambda p: aimopt.SGDM(p, 0.1),
    "Nesterov": lambda p: aimopt.Nesterov(p, 0.1),
    "AdamW": lambda p: aimopt.AdamW(p, 1e9, eps=1e9, weight_decay=0.0),
    "NAdam": lambda p: aimopt.NAdam(p, 1e9, eps=1e9, momentum_decay=1.0),
    "ConstantNAdam": lambda p: aimopt.ConstantNAdam(p, 1e9, eps=1e9),
    "QHAdam": lambda p: aimopt.QHAdam(p, 1e9, eps=1e9, nus=(0.7, 1.0)),
    "Adan": lambda p: aimopt.Adan(p, 1e9, eps=1e9),
    "Lookback": lambda p: AIM(p, 0.1, filter=Lookback(0.9, 0.98), geometry=Euclidean()),
    "AdEMAMix": lambda p: aimopt.AdEMAMix(p, 1e9, (0.9, 0.999, 0.98), alpha=3.0, eps=1e9),
    "TwoSpeed, warmed up": lambda p: AIM(p, 0.1, filter=TwoSpeed(0.9, 0.98, 3.0, 50, 80), geometry=Euclidean()),
    "TwoSpeed, normalized": lambda p: AIM(
        p, 0.1, filter=TwoSpeed(0.8, 0.97, 2.0, normalized=True), geometry=Euclidean(), correction=FixedPoint()
    ),
    "MARS, unclipped": lambda p: AIM(p, 0.1, filter=VarianceReduced(0.9, 0.3), geometry=Euclidean()),
    "Secant": lambda p: AIM(p, 0.1, filter=EMA(), geometry=Euclidean(), correction=Secant(ell_ratio=0.4)),
}
named = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
SCALE = {"AdamW": 1.0, "NAdam": 1.0, "ConstantNAdam": 1.0, "QHAdam": 1.0, "Adan": 1.0, "AdEMAMix": 1.0}  # η/ε


def directions(make: Make, gradients: NDArray[np.float64]) -> NDArray[np.float64]:
    """The displacements of a real optimizer, one row per step, divided by the learning rate it uses."""
    p = torch.zeros(gradients.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = make([p])
    rate = SCALE.get(type(optimizer).__name__, 0.1) * Parts.from_group(optimizer.param_groups[0]).filter.gain
    moved = []
    for row in torch.from_numpy(gradients):
        with torch.no_grad():
            p.zero_()
        p.grad = row
        optimizer.step()
        moved.append(-p.detach().clone() / rate)
    return torch.stack(moved).numpy()


@named
@pytest.mark.usefixtures("float64_scalars")
def test_impulses_and_oscillations_come_out_as_predicted(make: Make) -> None:
    """Long after the start: an impulse is the impulse response, cos ωt comes out as |H|·cos(ωt + φ)."""
    predicted = theory.response(make([torch.zeros(1, requires_grad=True)]))
    start, after = 1000, 100
    omega = np.array([0.05, 0.4, 1.3, 2.5, math.pi])
    t = np.arange(start + after)
    gradients = np.column_stack([t == start, np.cos(np.outer(t, omega))]).astype(float)
    got = directions(make, gradients)[start:]
    np.testing.assert_allclose(got[:, 0], predicted.impulse(after), atol=1e-7)
    H = predicted.at_frequency(omega)
    expected = np.abs(H) * np.cos(np.outer(t[start:], omega) + np.angle(H))
    np.testing.assert_allclose(got[:, 1:], expected, atol=1e-7)


@named
@pytest.mark.usefixtures("float64_scalars")
def test_noise_comes_out_with_the_predicted_variance(make: Make) -> None:
    predicted = theory.response(make([torch.zeros(1, requires_grad=True)]))
    streams, steps = 10_000, 300
    noise = np.random.default_rng(0).standard_normal((steps, streams))
    measured = np.square(directions(make, noise)[-1]).mean()
    assert measured == pytest.approx(predicted.noise_gain, rel=6 * math.sqrt(2 / streams) + 0.01)


@named
@pytest.mark.usefixtures("float64_scalars")
def test_the_first_steps_are_those_of_the_optimizer(make: Make) -> None:
    """Bias correction included: each gradient of the first twelve weighs in each direction as it does in the run."""
    predicted = theory.response(make([torch.zeros(1, requires_grad=True)])).first_steps(12)
    got = directions(make, np.eye(12))
    np.testing.assert_allclose(predicted.weights, got, atol=1e-7)
    constant = directions(make, np.ones((12, 1)))[:, 0]
    np.testing.assert_allclose(predicted.gain, constant, atol=1e-7)
    np.testing.assert_allclose(predicted.noise_gain, np.square(got).sum(1), atol=1e-7)


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.9])
def test_what_bias_correction_does(gamma: float) -> None:
    """The authors' leaves γ out; the exact one is faithful from the first step; none starts at 1−β1+γ."""
    beta, t = 0.9, np.arange(1, 9)
    gains = {
        kind: theory.response(GradientDifference(beta, gamma, kind)).first_steps(8).gain
        for kind in (True, "exact", False)
    }
    np.testing.assert_allclose(gains[True], 1 + gamma * beta ** (t - 1) / (1 - beta**t), rtol=1e-12)
    np.testing.assert_allclose(gains["exact"], 1, rtol=1e-12)
    np.testing.assert_allclose(gains[False], 1 - beta**t + gamma * beta ** (t - 1), rtol=1e-12)
    np.testing.assert_allclose(gains[False], theory.response(GradientDifference(beta, gamma)).step(8), rtol=1e-9)


unit = st.floats(0, 1)
betas = st.one_of(st.just(0.0), st.floats(0.01, 0.99))


@given(betas, st.one_of(st.just(0.0), st.floats(0, 2)), st.one_of(st.just(0.0), st.just(1.0), unit), st.booleans())
@settings(max_examples=150, deadline=None)
def test_radar_in_closed_form_and_by_scipy(beta: float, gamma: float, ratio: float, equal: bool) -> None:
    """The paper's H(z) mixed with g by ℓ/η; everything else as scipy.signal has it. γ = β1 included."""
    gamma = beta if equal else gamma
    got = theory.response(GradientDifference(beta, gamma), FixedPoint(ell_ratio=ratio))
    b = (1 - ratio) * np.array([1 - beta + gamma, -gamma]) + ratio * np.array([1, -beta])
    a = np.array([1, -beta])
    omega, H = signal.freqz(b, a, worN=33, include_nyquist=True)
    np.testing.assert_allclose(got.at_frequency(omega), H, atol=1e-7)
    np.testing.assert_allclose(got.grid(33).magnitude, np.abs(H), atol=1e-7)
    np.testing.assert_allclose(np.exp(1j * got.grid(33).phase) * np.abs(H), H, atol=1e-6)
    h = signal.lfilter(b, a, np.eye(1, 4000)[0])
    np.testing.assert_allclose(got.impulse(4000), h, atol=1e-7)
    np.testing.assert_allclose(got.step(60), np.cumsum(h)[:60], atol=1e-6)
    assert got.noise_gain == pytest.approx(np.square(h).sum(), rel=1e-6)
    assert got.dc_gain == pytest.approx(1, abs=1e-6)
    assert got.nyquist_gain == pytest.approx((1 - ratio) * (1 - beta + 2 * gamma) / (1 + beta) + ratio, abs=1e-7)
    if beta and abs(gamma - beta) > 1e-3 and ratio < 0.999:
        assert got.quasi_hyperbolic is not None
        assert got.nu is not None
        nu = (1 - ratio) * (1 - gamma / beta)
        assert got.quasi_hyperbolic[0] == pytest.approx(beta, rel=1e-6)
        assert got.nu == pytest.approx(nu, rel=1e-5, abs=1e-6)
        variance = nu**2 * (1 - beta) / (1 + beta) + 2 * nu * (1 - nu) * (1 - beta) + (1 - nu) ** 2
        assert got.noise_gain == pytest.approx(variance, rel=1e-5)


@pytest.mark.parametrize(
    ("filter", "correction"),
    [
        (EMA(0.9), Direct()),
        (GradientDifference(0.9, 0.1), FixedPoint(ell_ratio=0.01)),
        (AdanPair(0.98, 0.92), FixedPoint(ell_ratio=0.2)),
        (Lookback(0.9, 0.99), Direct()),
        (EMA(0.8), Secant(ell_ratio=0.3)),
        (QuasiHyperbolic(0.95, 0.7), Secant()),
        (TwoSpeed(0.9, 0.999, 5.0), Direct()),
        (TwoSpeed(0.8, 0.99, 2.0, normalized=True), FixedPoint(ell_ratio=0.2)),
        (VarianceReduced(0.95, 0.025), Direct()),
    ],
    ids=str,
)
def test_zeros_poles_and_group_delay_are_scipys(filter: Filter, correction: Any) -> None:
    got = theory.response(filter, correction)
    order = max(len(got.numerator), len(got.denominator))  # scipy reads powers of z, and we write powers of 1/z
    zeros, poles, leading = signal.tf2zpk(*(np.pad(c, (0, order - len(c))) for c in (got.numerator, got.denominator)))
    np.testing.assert_allclose(np.sort_complex(got.zeros), np.sort_complex(zeros), atol=1e-7)
    np.testing.assert_allclose(np.sort_complex(got.poles), np.sort_complex(poles), atol=1e-7)
    assert got.impulse(1)[0] == pytest.approx(leading)
    omega = np.linspace(0.01, 3, 40)
    _, delay = signal.group_delay((got.numerator, got.denominator), w=omega)
    np.testing.assert_allclose(got.group_delay(omega), delay, atol=1e-6)


def test_the_group_delay_is_how_late_a_ramp_comes_out() -> None:
    """A gradient that grows by one per step comes out group-delay(0) steps behind: 9 for SGDM, 7.92 for RADAR."""
    for make, late in ((OPTIMIZERS["SGDM"], 9.0), (OPTIMIZERS["RADAR"], 7.92)):
        ramp = np.arange(1500.0)[:, None]
        got = directions(make, ramp)[-1, 0]
        assert ramp[-1, 0] - got == pytest.approx(late, abs=1e-4)
        predicted = theory.response(make([torch.zeros(1, requires_grad=True)]))
        assert float(predicted.group_delay(0.0)) == pytest.approx(late, abs=1e-9)


def test_adan_is_radars_filter_only_with_equal_decays() -> None:
    """The paper says that they share one formula; that takes equal decays, and then γ = β(1−β)."""
    omega = np.linspace(0, math.pi, 50)
    same, radar = theory.response(AdanPair(0.9, 0.9)), theory.response(GradientDifference(0.9, 0.09))
    np.testing.assert_allclose(same.at_frequency(omega), radar.at_frequency(omega), atol=1e-6)
    assert same.quasi_hyperbolic == pytest.approx((0.9, 0.9), abs=1e-5)
    two_poles = theory.response(AdanPair(0.98, 0.92))
    assert two_poles.quasi_hyperbolic is None
    assert two_poles.nu is None
    assert sorted(two_poles.poles.real) == pytest.approx([0.92, 0.98])


def test_two_speeds_have_two_poles_and_mars_has_radars_response() -> None:
    slow_and_fast = theory.response(TwoSpeed(0.9, 0.999, 5.0))
    assert sorted(slow_and_fast.poles.real) == pytest.approx([0.9, 0.999])
    assert slow_and_fast.dc_gain == pytest.approx(6)
    assert slow_and_fast.quasi_hyperbolic is None
    omega = np.linspace(0, math.pi, 50)
    mars, radar = theory.response(VarianceReduced(0.95, 0.2)), theory.response(GradientDifference(0.95, 0.19))
    np.testing.assert_allclose(mars.at_frequency(omega), radar.at_frequency(omega), atol=1e-12)


def test_a_cautious_step_leaves_m_as_the_linear_part() -> None:
    p = [torch.zeros(2, requires_grad=True)]
    cautious, plain = theory.response(aimopt.CautiousAdamW(p)), theory.response(aimopt.AdamW(p))
    assert cautious.direction == "m"
    assert cautious.numerator == plain.numerator
    assert cautious.first_steps(3).gain == pytest.approx(plain.first_steps(3).gain)
    with pytest.raises(ValueError, match="CautiousAdamW: Cautious is not linear"):
        theory.quadratic(aimopt.CautiousAdamW(p))
    with pytest.raises(ValueError, match="CautiousAdamW: Theorem 2 is about"):
        theory.certificate_of(aimopt.CautiousAdamW(p), L=1, sigma2=0, nu_min=1, nu_max=1)


def test_at_gamma_beta1_and_at_ell_eta_nothing_is_filtered() -> None:
    for same in (
        theory.response(GradientDifference(0.9, 0.9)),
        theory.response(EMA(0.9), FixedPoint(ell_ratio=1.0)),
        theory.response(EMA(0.0)),
    ):
        assert same.poles.size == same.zeros.size == 0
        assert same.noise_gain == pytest.approx(1)
        assert same.quasi_hyperbolic == (0.0, 0.0)
        np.testing.assert_allclose(same.grid().magnitude, 1)
    remembers = theory.response(GradientDifference(0.0, 0.5))  # g + ½(g − g_prev): no average at all
    assert remembers.quasi_hyperbolic is None


def test_at_the_start_of_a_warm_up_the_learning_rate_is_not_known() -> None:
    p = [torch.zeros(1, requires_grad=True)]
    assert theory.response(aimopt.RADAR(p, lr=0.0)).nu == pytest.approx(0.88)
    with pytest.warns(UserWarning, match="exceeds the learning rate"):
        frozen = aimopt.RADAR(p, lr=0.0, ell=1e-5)
    with pytest.raises(ValueError, match="pass lr="):
        theory.response(frozen)
    assert theory.response(frozen, lr=1e-3).nu == pytest.approx(0.88)


def test_it_follows_the_optimizer() -> None:
    """A scheduler that moves γ or β1 in the group moves the response."""
    optimizer = aimopt.RADAR([torch.zeros(1, requires_grad=True)])
    assert theory.response(optimizer).nu == pytest.approx(0.88)
    optimizer.param_groups[0]["gamma"] = 0.45
    assert theory.response(optimizer).nu == pytest.approx(0.99 * 0.5)
    optimizer.param_groups[0]["betas"] = (0.5, 0.999)
    assert theory.response(optimizer).poles == pytest.approx([0.5])


def test_groups_and_parts() -> None:
    p, q = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    groups: list[dict[str, Any]] = [{"params": [p]}, {"params": [q], "gamma": 0.0, "ell_ratio": 0.0}]
    optimizer = aimopt.RADAR(groups)
    assert theory.response(optimizer, group=1).nu == pytest.approx(1)
    parts = Parts(HeavyBall(0.9), Euclidean(), FixedPoint())
    assert theory.response(parts).nu == pytest.approx(0.9)
    assert theory.response(parts).gain == pytest.approx(10)
    assert theory.response((HeavyBall(0.9), FixedPoint())).nu == pytest.approx(0.9)


def test_a_nonlinear_geometry_that_maps_the_residual_separately_leaves_m() -> None:
    p = [torch.zeros(2, 2, requires_grad=True)]
    apart = theory.response(aimopt.AcceleratedLion(p, ell_ratio=0.5))
    assert apart.direction == "m"
    assert apart.numerator == theory.response(aimopt.Lion(p)).numerator
    assert apart.first_steps(3).gain == pytest.approx(theory.response(aimopt.Lion(p)).first_steps(3).gain)
    assert theory.response(aimopt.Muon(p)).direction == "m + 0.05·(g − m)"  # it mixes before the map


@dataclass(frozen=True)
class Leaky(OnePole):
    """m = 0.3·g + 0.7·e, e ← 0.5·e + 0.5·g: a filter of the tests, defined by its coefficients alone."""

    @property
    def pole(self) -> float:
        return 0.5

    def coefficients(self, t: StepCount) -> Coefficients:
        return Coefficients(0.5, 0.5, 0.7, 0.3)


def test_a_users_filter_is_read_from_its_coefficients() -> None:
    got = theory.response(Leaky())
    assert got.impulse(4) == pytest.approx([0.3, 0.35, 0.175, 0.0875])
    assert got.first_steps(4).weights[3][::-1] == pytest.approx([0.3, 0.35, 0.175, 0.0875])


@dataclass(frozen=True)
class Odd(Filter):
    """A filter with a transfer function given by its pole, or none."""

    decay: float = 0.5
    declared: bool = True

    @property
    def pole(self) -> float:
        return self.decay

    def update(self, state: State, g: Tensor, t: StepCount) -> tuple[Tensor, Tensor]:
        return g, g

    def transfer(self) -> Transfer:
        return Transfer((1.0,), (1.0, -self.decay)) if self.declared else super().transfer()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.response(Odd(1.02)), "unstable: its pole 1.02 .* choose decays below 1"),
        (lambda: theory.response(Odd(1.0)), "unstable"),
        (lambda: theory.response(EMA(0.9), FixedPoint(ell=0.1)), "pass lr="),
        (lambda: theory.response(EMA(0.9), FixedPoint(iterations=2)), "ask for the filter alone, or theory.quadratic"),
        (lambda: theory.response("radar"), "give an optimizer of aimopt"),  # type: ignore[arg-type]
        (lambda: theory.response((EMA(), Sign())), "give an optimizer of aimopt"),  # type: ignore[arg-type]
        (lambda: theory.response(EMA(), lr=0.0), "lr must be a finite number > 0, got 0.0"),
        (lambda: theory.response(EMA(1.0)), "beta must be a number in"),
        (lambda: theory.response(aimopt.RADAR([torch.zeros(1)]), group=1), "one of the optimizer's 1, from 0, got 1"),
    ],
)
def test_mistakes_get_a_message_that_says_what_to_do(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_filter_without_a_transfer_function_says_so() -> None:
    with pytest.raises(NotImplementedError, match=r"Odd .* define transfer\(\)"):
        theory.response(Odd(declared=False))


def test_it_prints_as_a_table() -> None:
    text = str(theory.response(aimopt.RADAR([torch.zeros(1, requires_grad=True)])))
    assert "RADAR: response of m + 0.01·(g − m)" in text
    assert "0.9, 0.88" in text
    assert "1.99, 1.469, 1.296" in text
    assert "—" in str(theory.response(AdanPair()))
    assert "0.4828+0.278j" in str(theory.response(EMA(), Secant()))
