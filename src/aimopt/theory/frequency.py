"""The frequency response of momentum: which changes of the gradient reach the parameter, and how late.

    response(RADAR(model.parameters()))             what moves the parameter: RADAR's filter, γ and ℓ together
    response(GradientDifference(0.9, 0.1))          the multiplier m alone
    response(EMA(0.9), FixedPoint(ell_ratio=0.1))   Adam's average with a residual correction

A direction is a weighted sum of the gradients so far, d_k = Σ h_i·g_{k−i}. Its weights h are the impulse response,
and H(z) = Σ h_i·z⁻ⁱ on the unit circle z = e^{iω} is the frequency response: a gradient that swings with angular
frequency ω (at ω = 0 it never changes, at ω = π it flips its sign at every step) comes out |H| times as large and as
many steps late as the group delay says. Noise that is independent from step to step comes out with Σh² times its
variance.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, signal

from aimopt.components import PREVIOUS_GRADIENT, Correction, Displacement, Transfer
from aimopt.geometries import Euclidean
from aimopt.theory.subjects import Source, Subject, roots, subject

Floats = NDArray[np.float64]


class Grid(NamedTuple):
    """A response over angular frequencies, from slow to sign-flipping."""

    omega: Floats  # radians a step
    magnitude: Floats
    phase: Floats  # radians, unwrapped
    group_delay: Floats  # steps


class FirstSteps(NamedTuple):
    """What the first steps do, bias correction included: `weights[t, s]` is that of gradient s in direction t."""

    weights: Floats

    @property
    def gain(self) -> Floats:
        """What a constant gradient is multiplied by, step by step; 1 is faithful."""
        return self.weights.sum(1)

    @property
    def noise_gain(self) -> Floats:
        """What the variance of independent noise is multiplied by."""
        return np.square(self.weights).sum(1)


@dataclass(frozen=True)
class Response:
    """H(z) = Σ numerator[i]·z⁻ⁱ / Σ denominator[i]·z⁻ⁱ of a direction, and what follows from it.

    `of` says of which direction; `gain` is what the optimizer multiplies the learning rate by beside it.
    """

    name: str
    of: str
    numerator: tuple[float, ...]
    denominator: tuple[float, ...]
    gain: float
    subject: Subject = field(repr=False)

    @property
    def zeros(self) -> NDArray[np.complex128]:
        """Where H vanishes."""
        return np.array(self._roots[0], dtype=complex)

    @property
    def poles(self) -> NDArray[np.complex128]:
        """Where H is infinite: how fast old gradients are forgotten."""
        return np.array(self._roots[1], dtype=complex)

    @property
    def _roots(self) -> tuple[list[complex], list[complex]]:
        return roots(Transfer(self.numerator, self.denominator))

    @property
    def dc_gain(self) -> float:
        """H(1): what a constant gradient is multiplied by."""
        return float(np.sum(self.numerator) / np.sum(self.denominator))

    @property
    def nyquist_gain(self) -> float:
        """H(−1): what a gradient that flips its sign at every step is multiplied by."""
        return float(np.real(self.at(math.pi)))

    @property
    def noise_gain(self) -> float:
        """Σh²: h² at delay zero, and the rest from the Lyapunov equation of the filter's state."""
        A, B, C, D = self._state_space()
        return float(D * D + C @ linalg.solve_discrete_lyapunov(A, np.outer(B, B)) @ C) if A.size else D * D

    def _state_space(self) -> tuple[Floats, Floats, Floats, float]:
        """(A, B, C, D) of s ← A·s + B·g, d = C·s + D·g."""
        order = max(len(self.numerator), len(self.denominator)) - 1
        a, b = (np.pad(c, (0, order + 1 - len(c))) for c in (self.denominator, self.numerator))
        A = np.eye(order, k=-1)
        A[:1] = -a[1:]
        return A, np.eye(order)[:, 0] if order else np.zeros(0), b[1:] - a[1:] * b[0], float(b[0])

    @property
    def quasi_hyperbolic(self) -> tuple[float, float] | None:
        """(β, ν) of the equal ν·e + (1−ν)·g, e the average with decay β; None where there is none."""
        zeros, poles = self._roots
        if len(poles) > 1 or not math.isclose(self.dc_gain, 1, rel_tol=1e-6):
            return None
        beta = float(poles[0].real) if len(poles) else 0.0
        if beta <= 0:
            return None if len(zeros) else (0.0, 0.0)
        # H(1) = 1 leaves one number free, and H(−1) = ν·(1−β)/(1+β) + 1 − ν gives it
        return beta, (1 - self.nyquist_gain) * (1 + beta) / (2 * beta)

    @property
    def nu(self) -> float | None:
        """The weight of the average in the direction, the rest being the gradient's; RADAR's (1−ℓ/η)(1−γ/β1)."""
        return None if self.quasi_hyperbolic is None else self.quasi_hyperbolic[1]

    def at(self, omega: ArrayLike) -> NDArray[np.complex128]:
        """H(e^{iω}), ω in radians a step."""
        back = np.exp(-1j * np.asarray(omega, dtype=float))
        return np.polyval(self.numerator[::-1], back) / np.polyval(self.denominator[::-1], back)

    def group_delay(self, omega: ArrayLike) -> Floats:
        """By how many steps a slow change of a swing of frequency ω is late: −dφ/dω."""
        back = np.exp(-1j * np.asarray(omega, dtype=float))
        b, a = (_delay(np.asarray(c), back) for c in (self.numerator, self.denominator))
        return b - a

    def grid(self, points: int = 513) -> Grid:
        """Magnitude, phase and group delay from ω = 0 to π."""
        omega = np.linspace(0, math.pi, points)
        values = self.at(omega)
        return Grid(omega, np.abs(values), np.unwrap(np.angle(values)), self.group_delay(omega))

    def impulse(self, steps: int = 50) -> Floats:
        """h: the weight of the gradient of so many steps ago."""
        return np.asarray(signal.lfilter(self.numerator, self.denominator, np.eye(1, steps)[0]))

    def step(self, steps: int = 50) -> Floats:
        """The direction after a gradient that jumps from 0 to 1, without bias correction: the sums of h."""
        return np.cumsum(self.impulse(steps))

    def first_steps(self, steps: int = 20) -> FirstSteps:
        """The first steps as they run, bias correction included: the filter's own code, driven by unit impulses."""
        filter, correction, pole = self.subject.filter, self.subject.correction, self.subject.filter.pole
        rate = 1.0 if math.isnan(self.subject.rate) else self.subject.rate
        impulses = torch.eye(steps, dtype=torch.float64)
        parts = (filter,) if self.subject.maps_apart else (filter, correction)
        buffers = {name: initial for part in parts for name, initial in part.buffers().items()}
        state = {name: initial(impulses[0]).double() for name, initial in buffers.items()}
        rows = []
        for t, g in enumerate(impulses, start=1):
            direction, _ = filter.update(state, g, t)
            if not self.subject.maps_apart:
                move = Displacement(Euclidean(), None, direction, g, rate, pole, state)
                direction = correction.displacement(move) / rate
            rows.append(direction.clone())
            if PREVIOUS_GRADIENT in state:
                state[PREVIOUS_GRADIENT].copy_(g)
        return FirstSteps(torch.stack(rows).numpy())

    def __str__(self) -> str:
        qh, delay = self.quasi_hyperbolic, float(self.group_delay(0.0))
        first = self.first_steps(3).gain
        rows: list[tuple[str, Any, str]] = [
            ("poles", _listed(self.poles), "how fast old gradients are forgotten"),
            ("zeros", _listed(self.zeros), "where H vanishes"),
            ("H(1)", f"{self.dc_gain:.4g}", "gain of a constant gradient"),
            ("H(−1)", f"{self.nyquist_gain:.4g}", "gain of a gradient that flips its sign at every step"),
            ("Σh²", f"{self.noise_gain:.4g}", "gain of the variance of independent noise"),
            ("delay", f"{delay:.4g}", "steps by which a slow change is late"),
            ("β, ν", f"{qh[0]:.4g}, {qh[1]:.4g}" if qh else "—", "the equal ν·average + (1−ν)·gradient"),
            ("start", ", ".join(f"{x:.4g}" for x in first), "gain of a constant gradient at steps 1, 2, 3"),
            ("lr ×", f"{self.gain:.4g}", "scale of the learning rate beside it"),
        ]
        wide = max(len(value) for _, value, _ in rows)
        lines = [f"  {symbol:<6} {value:<{wide}}   {meaning}" for symbol, value, meaning in rows]
        return "\n".join([f"{self.name}: response of {self.of} to the gradient", *lines])


def response(
    source: Source, correction: Correction | None = None, *, lr: float | None = None, group: int = 0
) -> Response:
    """The response of what moves the parameter, before a geometry shapes it; `lr` matters only for a fixed ℓ."""
    seen = subject(source, correction, lr=lr, group=group)
    if seen.reevaluates:
        raise ValueError(
            f"{seen.name}: {type(seen.correction).__name__} evaluates the gradient at points of its own, so that its "
            "direction is no filter of the gradients; ask for the filter alone, or theory.quadratic for the whole step"
        )
    direct = seen.maps_apart or seen.ratio == 0
    guess = "g" if seen.correction.prediction == (1.0,) else "ĝ"
    of = "m" if direct else f"m + {seen.ratio:.4g}·({guess} − m)"
    return Response(seen.name, of, *seen.direction(), seen.filter.gain, seen)


def _delay(coefficients: Floats, back: NDArray[np.complex128]) -> Floats:
    """−d/dω of the angle of Σ c_n·e^{−inω}: the mean of n, weighted by the terms."""
    weighted = coefficients * np.arange(len(coefficients))
    with np.errstate(divide="ignore", invalid="ignore"):  # a frequency that is blocked has no delay: NaN
        return np.real(np.polyval(weighted[::-1], back) / np.polyval(coefficients[::-1], back))


def _listed(roots: NDArray[np.complex128]) -> str:
    shown = [f"{r.real:.4g}" if abs(r.imag) < 1e-9 else f"{r:.4g}" for r in roots]
    return ", ".join(shown) or "none"
