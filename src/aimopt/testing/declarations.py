"""What a part says about itself, measured.

    measured(GradientDifference())      {"pole": …, "transfer": …}
    measured(Sign())                    {"linear": …}

Each value is a function that raises an AssertionError if what is declared is not so.
A declaration that has no meaning for this part, such as the prediction of a correction that is not linear, is left out.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aimopt.parts.component import (
    PREVIOUS_GRADIENT,
    Component,
    Correction,
    Decay,
    Descent,
    DisplacementInputs,
    Filter,
    Geometry,
    Initial,
    Iterate,
    State,
    Transfer,
)
from aimopt.parts.geometries import Euclidean, Sign
from aimopt.testing.driving import assert_same

LR, POLE = 0.1, 0.9


def measured(part: Component) -> dict[str, Callable[[], None]]:
    """The declarations of a part, each with its measurement."""
    named: dict[str, Callable[[Any], None]]
    if isinstance(part, Filter):
        named = {"pole": _pole, "transfer": _transfer} if _declares_transfer(part) else {}
    elif isinstance(part, Geometry):
        named = {"linear": _linear}
    elif isinstance(part, Correction):
        named = {} if part.evaluates_again else {"linear": _linear_correction}
        if part.linear and not part.evaluates_again:
            named |= {"ratio, prediction": _prediction, "maps_residual": _maps_residual}
    elif isinstance(part, Decay):
        named = {"affine": _affine, "projects": _projects}
        if part.takes_coefficient:
            named["no decay at 0"] = _off
    elif isinstance(part, Iterate):
        named = {"moves_elsewhere": _moves_elsewhere}
    else:
        named = {}
    return {name: partial(measure, part) for name, measure in named.items()}


def noise(seed: int, shape: tuple[int, ...] = (5, 4)) -> Tensor:
    """Gradients and the like, in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def begin(part: Component, shape: tuple[int, ...] = (5, 4)) -> State:
    """The state of a parameter of this shape at its first step, for one part."""
    state = {}
    for name, initial in part.buffers().items():
        make = initial if isinstance(initial, Initial) else Initial(initial)
        state[name] = make.make(noise(0, shape)).double()
    return state


def _declares_transfer(filter: Filter) -> bool:
    return type(filter).transfer is not Filter.transfer


def impulse(transfer: Transfer, steps: int) -> list[float]:
    """The impulse response of a transfer function."""
    (numerator, denominator), response = transfer, list[float]()
    for k in range(steps):
        past = sum(a * response[k - i] for i, a in enumerate(denominator) if 0 < i <= k)
        response.append(((numerator[k] if k < len(numerator) else 0.0) - past) / denominator[0])
    return response


def measured_impulse(filter: Filter, steps: int, quiet: int = 1200) -> list[float]:
    """The weights of past gradients in m, the newest first, long after the start: m after one gradient.

    It is small, because a filter may limit large ones.
    """
    size = 1e-3
    state = {name: torch.zeros_like(value) for name, value in begin(filter, (1,)).items()}
    got = []
    for k in range(quiet + steps):
        g = torch.full((1,), size * (k == quiet), dtype=torch.float64)
        m, _ = filter.update(state, g, 1e7 + k)
        got.append(m.item() / size)
        if PREVIOUS_GRADIENT in state:
            state[PREVIOUS_GRADIENT].copy_(g)
    return got[quiet:]


def _transfer(filter: Filter) -> None:
    declared, got = impulse(filter.transfer(), 60), measured_impulse(filter, 60)
    worst = max(range(60), key=lambda k: abs(declared[k] - got[k]))
    assert abs(declared[worst] - got[worst]) < 1e-9, (
        f"transfer() gives the gradient of {worst} steps ago the weight {declared[worst]:.6g}, "
        f"and update() gives it {got[worst]:.6g}"
    )


def _pole(filter: Filter) -> None:
    pole, (_, denominator) = filter.pole, filter.transfer()
    at_pole = sum(a * pole ** (len(denominator) - 1 - i) for i, a in enumerate(denominator))
    assert pole == 0 or abs(at_pole) < 1e-9, f"pole is {pole:g}, where the denominator of transfer() is {at_pole:.3g}"


def _metric(geometry: Geometry) -> Tensor | None:
    """The metric after a few gradients."""
    state = begin(geometry) | {name: noise(7) for name in geometry.reads}
    metric: Tensor | None = None
    for t in range(1, 6):
        metric = geometry.update(state, noise(t), t, POLE)
    return metric


def _linear(geometry: Geometry) -> None:
    metric, x, y = _metric(geometry), noise(10), noise(11)
    whole = geometry.apply(x * 2 - y * 3, metric)
    parts = geometry.apply(x, metric) * 2 - geometry.apply(y, metric) * 3
    _compare_linear(geometry, whole, parts, geometry.linear)


def _compare_linear(part: Component, whole: Tensor, parts: Tensor, declared: bool) -> None:
    difference = float((whole - parts).abs().max() / whole.abs().max().clamp(min=1e-300))
    linear = difference < 1e-9
    assert linear == declared, f"linear is {declared}, and sums come out {difference:.2g} different"


def _displacement(correction: Correction, m: Tensor, g: Tensor, previous: Tensor, geometry: Geometry) -> Tensor:
    state = {name: previous.clone() for name in correction.buffers()}
    inputs = DisplacementInputs(geometry, None, m, g, LR, POLE, state, noise(3))
    return correction.displacement(inputs)


def _linear_correction(correction: Correction) -> None:
    first, second = [noise(i) for i in (1, 2, 4)], [noise(i) for i in (5, 6, 8)]
    both = [a * 2 - b * 3 for a, b in zip(first, second, strict=True)]
    whole, one, two = (_displacement(correction, m, g, p, Euclidean()) for m, g, p in (both, first, second))
    _compare_linear(correction, whole, one * 2 - two * 3, correction.linear)


def _mixed(correction: Correction) -> tuple[Tensor, Tensor, Tensor, Any, Tensor]:
    """m, g, the previous gradient, ℓ/η, and ĝ as declared."""
    m, g, previous = noise(1), noise(2), noise(4)
    weights = (*correction.prediction, 0.0)
    return m, g, previous, correction.ratio(LR, POLE), g * weights[0] + previous * weights[1]


def _prediction(correction: Correction) -> None:
    m, g, previous, ratio, predicted = _mixed(correction)
    assert_same(_displacement(correction, m, g, previous, Euclidean()), (m + (predicted - m) * ratio) * LR)


def _maps_residual(correction: Correction) -> None:
    m, g, previous, ratio, predicted = _mixed(correction)
    apart = (m.sign() + (predicted - m).sign() * ratio) * LR
    mixed = (m + (predicted - m) * ratio).sign() * LR
    assert_same(_displacement(correction, m, g, previous, Sign()), apart if correction.maps_residual else mixed)


def _step_of(decay: Decay, p: Tensor, displacement: Tensor) -> Tensor:
    """θ⁺ from θ, without what the decay adds to the gradient."""
    state = begin(decay)
    for name, initial in decay.buffers().items():
        if isinstance(initial, Initial) and initial.of_parameter:
            state[name] = initial.make(p.clone())
    moved = p.clone()
    d, shrinkage = decay.terms(moved, displacement, LR, state)
    Descent(moved, d, shrinkage, LR, 1, state).move(moved)
    decay.project(moved, LR, state)
    return moved


def _affine(decay: Decay) -> None:
    if not decay.affine:
        return  # an upper bound: a decay that only happens to be affine may say that it is not
    p, d = noise(1), noise(2)
    difference = _step_of(decay, p, d) + d - _step_of(decay, p, d * 0)
    assert float(difference.abs().max()) < 1e-12, "affine is True, and the shrinkage depends on the displacement"


def _projects(decay: Decay) -> None:
    p = noise(1)
    moved = p.clone()
    decay.project(moved, LR, {name: value.clone() for name, value in begin(decay).items()})
    assert decay.projects or torch.equal(moved, p), "projects is False, and project() moves the parameters"


def _off(decay: Decay) -> None:
    off = type(decay)(weight_decay=0.0)
    p, g, d = noise(1), noise(2), noise(3)
    assert torch.equal(off.gradient(g, p), g), "weight_decay=0 changes the gradient"
    before, state = p.clone(), begin(off)
    off.project(p, LR, state)
    assert torch.equal(p, before), "weight_decay=0 moves the parameters"
    _, shrinkage = off.terms(p, d, LR, state)
    assert shrinkage is None or not torch.as_tensor(shrinkage).any(), "weight_decay=0 shrinks the parameters"


def _moves_elsewhere(iterate: Iterate) -> None:
    p, d = noise(1), noise(2)
    state = begin(iterate)
    for name, initial in iterate.buffers().items():
        if isinstance(initial, Initial) and initial.of_parameter:
            state[name] = initial.make(p.clone())
    moved = p.clone()
    iterate.descend(Descent(moved, d, None, LR, 1, state))
    moves_parameters = torch.allclose(moved, p - d)
    assert moves_parameters or iterate.moves_elsewhere, "moves_elsewhere is False, and a step is not θ − displacement"
