"""What is known of filters: which of them are the same, and the schedules of `TwoSpeed`."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import pytorch_optimizer
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import aimopt
from aimopt import AIM, Adaptive, Euclidean, FixedPoint, GradientDifference, QuasiHyperbolic, Relativistic, TwoSpeed
from aimopt.parts.component import Filter, Initial, State, StepCount
from aimopt.parts.filters import VarianceReduced
from optimizer_driver import advance, assert_same, count_paths, drive, flat, parameters

pytestmark = pytest.mark.usefixtures("float64_scalars")
betas = st.floats(0.05, 0.99)
few = settings(max_examples=15, deadline=None)


def stream(filter: Filter, steps: int = 60) -> Tensor:
    """m at every step, on noise with a drift."""
    generator = torch.Generator().manual_seed(0)
    state = {name: torch.zeros(7, dtype=torch.float64) for name in filter.buffers()}
    rows = [torch.randn(7, generator=generator, dtype=torch.float64) + 0.3 for _ in range(steps)]
    return torch.stack([filter.update(state, g, t)[0].clone() for t, g in enumerate(rows, start=1)])


@given(betas, st.floats(0, 1), st.sampled_from([True, False, "exact"]))
@few
def test_unclipped_mars_has_radars_multiplier(beta: float, gamma: float, bias_correction: bool | str) -> None:
    """γ_RADAR = γ_MARS·β1, from the first step and with every bias correction."""
    mars = VarianceReduced(beta, gamma, None, bias_correction)
    assert_same(stream(mars), stream(GradientDifference(beta, gamma * beta, bias_correction)), 1e-11)


@dataclass(frozen=True)
class PlainMetric(Filter):
    """MARS's filter, whose geometry sees the plain gradient."""

    beta: float = 0.9
    gamma: float = 0.1
    bias_correction: bool | str = True
    betas = ("beta",)

    @property
    def pole(self) -> float:
        return self.beta

    def buffers(self) -> dict[str, Initial]:
        return VarianceReduced(self.beta, self.gamma).buffers()

    def update(self, state: State, g: Tensor, t: StepCount) -> tuple[Tensor, Tensor]:
        m, _ = VarianceReduced(self.beta, self.gamma, None, self.bias_correction).update(state, g, t)
        return m, g


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_unclipped_mars_with_plain_v_is_radar(options: dict[str, Any]) -> None:
    beta, gamma = 0.9, 0.3
    parts: dict[str, Any] = dict(geometry=Relativistic(0.99), correction=FixedPoint(ell_ratio=0.01), **options)
    mars = drive(lambda p: AIM(p, 0.01, filter=PlainMetric(beta, gamma), **parts), parameters())
    radar = drive(lambda p: aimopt.RADAR(p, 0.01, (beta, 0.99), gamma=gamma * beta), parameters())
    assert_same(mars, radar)
    published = drive(lambda p: AIM(p, 0.01, filter=VarianceReduced(beta, gamma), **parts), parameters())
    assert (published - radar).abs().max() > 1e-3  # MARS shows the corrected gradient to v


@given(st.floats(0.05, 0.99), st.floats(0, 20), st.sampled_from([0.1, 1.0]), st.integers(0, 1000))
@few
def test_simplified_ademamix_is_quasi_hyperbolic(beta: float, alpha: float, eps: float, seed: int) -> None:
    """The direction Σ βᵏ·g_{t−k} + α·g of Morwani et al. (2025) is a quasi-hyperbolic one with ν = 1/(1+α(1−β)).

    pytorch_optimizer averages where the paper sums, so its α is ours times 1−β. At β2 = 0 its bias correction is 1.
    """
    lr, their_alpha = 0.01, alpha * (1 - beta)
    filter = QuasiHyperbolic(beta, 1 / (1 + alpha * (1 - beta)), bias_correction=False)
    geometry = Adaptive(0.0, eps, bias_correction=False)
    ours = drive(lambda p: AIM(p, lr * (1 + their_alpha), filter=filter, geometry=geometry), parameters(seed=seed), 60)
    theirs = drive(
        lambda p: pytorch_optimizer.SimplifiedAdEMAMix(p, lr, (beta, 0.0), alpha=their_alpha, eps=eps, foreach=False),
        parameters(seed=seed),
        60,
    )
    assert_same(ours, theirs)


@given(betas, st.floats(0, 20))
@few
def test_two_speeds_of_which_one_is_the_gradient_are_quasi_hyperbolic(beta: float, alpha: float) -> None:
    """With β1 = 0 the fast average is g: simplified AdEMAMix is this, with its sum as the slow average."""
    two_speed = TwoSpeed(0.0, beta, alpha, normalized=True, bias_correction=False)
    assert_same(stream(two_speed), stream(QuasiHyperbolic(beta, alpha / (1 + alpha), bias_correction=False)), 1e-11)


def test_the_schedules_of_two_speeds() -> None:
    """α grows linearly, and so does the half-life of the slow average; both end at their values and stay there."""
    filter = TwoSpeed(0.9, 0.999, 4.0, alpha_warmup=10, beta_slow_warmup=20)
    assert [filter.alpha_at(t) for t in (1, 5, 10, 11)] == pytest.approx([0.4, 2.0, 4.0, 4.0])

    def half_life(beta: float) -> float:
        return math.log(0.5) / math.log(beta)

    for t in (1, 7, 20):
        expected = half_life(0.9) + t / 20 * (half_life(0.999) - half_life(0.9))
        assert half_life(filter.beta_slow_at(t)) == pytest.approx(expected)
    assert filter.beta_slow_at(10_000) == pytest.approx(0.999, rel=1e-12)
    assert TwoSpeed(0.0, 0.0, beta_slow_warmup=5).beta_slow_at(3) == pytest.approx(0.0)
    constant = TwoSpeed()
    assert (constant.alpha_at(1), constant.beta_slow_at(1)) == (5.0, 0.9999)


def test_what_needs_the_norm_of_a_tensor_is_not_fused_and_says_why() -> None:
    with count_paths() as paths:
        drive(lambda p: aimopt.MARS(p, clip_norm=None), parameters(), 3)
        drive(lambda p: aimopt.AdEMAMix(p, alpha_warmup=5, beta3_warmup=5), parameters(), 3)
    assert set(paths) == {"fused"}
    with count_paths() as paths:
        limited = drive(lambda p: aimopt.MARS(p), parameters(), 3)
    assert set(paths) == {"plain"}
    with count_paths() as paths:
        assert_same(drive(lambda p: aimopt.MARS(p, foreach=True), parameters(), 3), limited)
    assert set(paths) == {"foreach"}
    with pytest.raises(ValueError, match="it needs the 'norm' of a whole tensor before it can move one element"):
        aimopt.MARS(parameters(), fused=True)
    wide = drive(lambda p: aimopt.MARS(p, clip_norm=1e9), parameters(), 3)
    assert_same(wide, drive(lambda p: aimopt.MARS(p, clip_norm=None), parameters(), 3))
    assert (wide - limited).abs().max() > 1e-6


def test_a_limited_gradient_has_the_largest_norm() -> None:
    filter = VarianceReduced(0.9, 0.1, clip_norm=0.5)
    state = {name: torch.zeros(5, dtype=torch.float64) for name in filter.buffers()}
    _, large = filter.update(state, torch.full((5,), 3.0, dtype=torch.float64), 1)
    assert float(large.norm()) == pytest.approx(0.5)
    small = torch.full((5,), 1e-3, dtype=torch.float64)
    state["last_grad"].copy_(small)
    _, corrected = filter.update(state, small, 2)
    assert_same(corrected, small)


def test_a_constant_gradient_comes_out_as_the_response_says() -> None:
    constant = [torch.ones(1, dtype=torch.float64)] * 4000
    for filter, gain in ((TwoSpeed(0.9, 0.99, 3.0), 4.0), (TwoSpeed(0.9, 0.99, 3.0, normalized=True), 1.0)):
        state = {name: torch.zeros(1, dtype=torch.float64) for name in filter.buffers()}
        for t, g in enumerate(constant, start=1):
            m, _ = filter.update(state, g, t)
        assert float(m) == pytest.approx(gain)
        assert sum(filter.transfer().numerator) / sum(filter.transfer().denominator) == pytest.approx(gain)


@pytest.mark.parametrize("geometry", [Euclidean(), Relativistic()])
def test_checkpoints_of_the_new_filters_go_on(geometry: Any, tmp_path: Any) -> None:
    for filter in (TwoSpeed(alpha_warmup=7, beta_slow_warmup=9), VarianceReduced(clip_norm=1.0)):
        params = parameters()
        optimizer = AIM(params, 0.01, filter=filter, geometry=geometry)
        whole = drive(partial(AIM, lr=0.01, filter=filter, geometry=geometry), parameters(), 10)
        advance(optimizer, params, 5)
        torch.save(optimizer.state_dict(), tmp_path / "state.pt")
        other = AIM(params, 0.5, filter=type(filter)(), geometry=geometry)
        other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        advance(other, params, 5, first=5)
        assert_same(flat(params), whole)
