"""Iterates on quadratics and as filters, held to real optimizers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aimopt import (
    AIM,
    EMA,
    SGDM,
    AdanPair,
    Average,
    Direct,
    Euclidean,
    FixedPoint,
    GradientDifference,
    HeavyBall,
    Lookahead,
    ScheduleFree,
    Secant,
    Unfiltered,
    theory,
)

MOMENTA: dict[str, dict[str, Any]] = {
    "no momentum": dict(filter=Unfiltered()),
    "heavy ball": dict(filter=HeavyBall(0.8)),
    "RADAR's filter, corrected": dict(filter=GradientDifference(0.9, 0.3, False), correction=FixedPoint(ell_ratio=0.2)),
    "two poles": dict(filter=AdanPair(0.9, 0.8, False)),
    "secant": dict(filter=EMA(0.8, False), correction=Secant(ell_ratio=0.3)),
}


def build(params: list[Tensor], lr: float, iterate: Any, parts: dict[str, Any]) -> AIM:
    return AIM(params, lr, geometry=Euclidean(), iterate=iterate, **{"correction": Direct(), **parts})


@pytest.mark.parametrize("parts", MOMENTA.values(), ids=MOMENTA.keys())
@pytest.mark.parametrize("iterate", [Lookahead(1, 0.5), Lookahead(4, 0.3), Lookahead(3, 1.0)], ids=repr)
def test_lookahead_converges_as_fast_as_its_period_says(parts: dict[str, Any], iterate: Lookahead) -> None:
    """Divided by radiusᵏ, the error neither grows nor shrinks: over 240 steps a rate 1 % off would show as e²·⁴."""
    h = np.array([0.02, 0.1, 0.3])
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    optimizer = build([x], 0.1, iterate, parts)
    radius = theory.quadratic(optimizer).spectral_radius(h)
    levels = []
    for step in range(1, 361):
        x.grad = torch.from_numpy(h / 0.1) * x.detach()
        optimizer.step()
        levels.append(np.abs(x.detach().numpy()) / radius**step)
    early, late = np.max(levels[60:120], 0), np.max(levels[300:], 0)
    assert (late < 3 * early).all()
    assert (early < 3 * late).all()


def test_lookahead_with_a_whole_step_back_is_the_plain_step() -> None:
    plain, ahead = (
        theory.quadratic(build([torch.zeros(1, requires_grad=True)], 0.1, iterate, dict(filter=HeavyBall(0.9))))
        for iterate in (None, Lookahead(5, 1.0))
    )
    h = np.geomspace(1e-3, 10, 20)
    np.testing.assert_allclose(ahead.spectral_radius(h), plain.spectral_radius(h), rtol=1e-8)


def test_lookahead_makes_larger_steps_stable() -> None:
    make: Callable[[Any], AIM] = lambda iterate: build(  # noqa: E731
        [torch.zeros(1, requires_grad=True)], 0.1, iterate, dict(filter=Unfiltered())
    )
    assert theory.quadratic(make(None)).largest_stable == pytest.approx(2.0)
    # One step, half of the way back: 1 − 0.5·h.
    assert theory.quadratic(make(Lookahead(1, 0.5))).largest_stable == pytest.approx(4.0)


def test_the_response_of_an_average_is_the_measured_one() -> None:
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = build([p], 1.0, Average(0.8), dict(filter=Unfiltered()))
    measured = []
    for step in range(40):
        p.grad = torch.tensor([-1.0 if step == 0 else float(step == 1)], dtype=torch.float64)
        optimizer.step()  # the parameter is 1 after the first step, and 0 after all others
        measured.append(float(optimizer.state[p]["average"]))
    frequencies = np.array([0.1, 1.0, 3.0])
    expected = np.array([sum(a * np.exp(-1j * w * k) for k, a in enumerate(measured)) for w in frequencies])
    response = theory.response(Average(0.8))
    z = np.exp(-1j * frequencies)
    predicted = np.polyval(response.numerator[::-1], z) / np.polyval(response.denominator[::-1], z)
    np.testing.assert_allclose(predicted, expected, rtol=1e-3)
    assert response.name == "Average"


def test_a_schedule_free_iterate_is_refused_with_a_sentence() -> None:
    optimizer = build([torch.zeros(1, requires_grad=True)], 0.1, ScheduleFree(), dict(filter=Unfiltered()))
    with pytest.raises(ValueError, match="ScheduleFree weights its points by the step count"):
        theory.quadratic(optimizer)
    with pytest.raises(NotImplementedError, match="ScheduleFree is no constant filter"):
        theory.response(ScheduleFree())
    assert theory.quadratic(SGDM([torch.zeros(1, requires_grad=True)], 0.1, iterate=Average())).largest_stable > 0
