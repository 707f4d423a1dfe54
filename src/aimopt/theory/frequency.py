"""The frequency response of momentum: which changes of the gradient reach the parameter, and how late.

    response(RADAR(model.parameters()))             what moves the parameter: RADAR's filter, γ and ℓ together
    response(GradientDifference(0.9, 0.1))          the multiplier m alone
    response(EMA(0.9), FixedPoint(ell_ratio=0.1))   Adam's average with a residual correction

A direction is a weighted sum of the gradients so far, d_k = Σ h_i·g_{k−i}. Its weights h are the impulse response, and
H(z) = Σ h_i·z⁻ⁱ on the unit circle z = e^{iω} is the frequency response: a gradient that swings with angular frequency
ω (at ω = 0 it is constant, at ω = π it flips its sign at every step) becomes |H| times as large, and its delay in steps
is the group delay. The variance of noise that is independent from step to step becomes Σh² times as large.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, signal

from aimopt.parts.component import Correction, Transfer
from aimopt.parts.composition import Parts
from aimopt.parts.corrections import Direct
from aimopt.parts.geometries import Euclidean
from aimopt.step.move import Move
from aimopt.step.options import with_defaults
from aimopt.theory.linear_step import LinearStep, Source, linear_step, roots

Floats = NDArray[np.float64]
PLAIN_DESCENT = with_defaults({})  # a parameter group


class Grid(NamedTuple):
    """A response over angular frequencies, from slow to sign-flipping."""

    omega: Floats  # radians per step
    magnitude: Floats
    phase: Floats  # radians, unwrapped
    group_delay: Floats  # steps


class FirstSteps(NamedTuple):
    """The first steps, bias correction included: `weights[t, s]` is the weight of gradient s in direction t."""

    weights: Floats

    @property
    def gain(self) -> Floats:
        """The factor on a constant gradient, per step; 1 means no distortion."""
        return self.weights.sum(1)

    @property
    def noise_gain(self) -> Floats:
        """The factor on the variance of independent noise, per step."""
        return np.square(self.weights).sum(1)


@dataclass(frozen=True)
class Response:
    """H(z) = Σ numerator[i]·z⁻ⁱ / Σ denominator[i]·z⁻ⁱ of a direction, and what follows from it.

    `direction` says which direction, such as "m + 0.01·(g − m)"; `gain` is the optimizer's factor on the learning rate.
    """

    name: str
    direction: str
    numerator: tuple[float, ...]
    denominator: tuple[float, ...]
    gain: float
    linear_step: LinearStep = field(repr=False)

    @property
    def zeros(self) -> NDArray[np.complex128]:
        """Where H is zero."""
        return np.array(self._roots[0], dtype=complex)

    @property
    def poles(self) -> NDArray[np.complex128]:
        """Where H is infinite: they say how fast old gradients are forgotten."""
        return np.array(self._roots[1], dtype=complex)

    @property
    def _roots(self) -> tuple[list[complex], list[complex]]:
        return roots(Transfer(self.numerator, self.denominator))

    @property
    def dc_gain(self) -> float:
        """H(1): the factor on a constant gradient."""
        return float(np.sum(self.numerator) / np.sum(self.denominator))

    @property
    def nyquist_gain(self) -> float:
        """H(−1): the factor on a gradient that flips its sign at every step."""
        return float(np.real(self.at_frequency(math.pi)))

    @property
    def noise_gain(self) -> float:
        """Σh²: h² at delay zero, plus the sum over older gradients from the Lyapunov equation of the filter's state."""
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
        """(β, ν) of the equivalent ν·e + (1−ν)·g, with e the average of decay β; None if there is no such form."""
        zeros, poles = self._roots
        if len(poles) > 1 or not math.isclose(self.dc_gain, 1, rel_tol=1e-6):
            return None
        beta = float(poles[0].real) if len(poles) else 0.0
        if beta <= 0:
            return None if len(zeros) else (0.0, 0.0)
        # H(1) = 1 leaves one number free, and H(−1) = ν·(1−β)/(1+β) + 1 − ν determines it
        return beta, (1 - self.nyquist_gain) * (1 + beta) / (2 * beta)

    @property
    def nu(self) -> float | None:
        """The weight of the average in the direction; the gradient has weight 1−ν. For RADAR (1−ℓ/η)(1−γ/β1)."""
        return None if self.quasi_hyperbolic is None else self.quasi_hyperbolic[1]

    def at_frequency(self, omega: ArrayLike) -> NDArray[np.complex128]:
        """H(e^{iω}), with ω in radians per step."""
        inverse_z = np.exp(-1j * np.asarray(omega, dtype=float))
        return np.polyval(self.numerator[::-1], inverse_z) / np.polyval(self.denominator[::-1], inverse_z)

    def group_delay(self, omega: ArrayLike) -> Floats:
        """The delay, in steps, of a slowly modulated oscillation of frequency ω: −dφ/dω."""
        inverse_z = np.exp(-1j * np.asarray(omega, dtype=float))
        of_numerator, of_denominator = (_delay(np.asarray(c), inverse_z) for c in (self.numerator, self.denominator))
        return of_numerator - of_denominator

    def grid(self, points: int = 513) -> Grid:
        """Magnitude, phase and group delay from ω = 0 to π."""
        omega = np.linspace(0, math.pi, points)
        values = self.at_frequency(omega)
        return Grid(omega, np.abs(values), np.unwrap(np.angle(values)), self.group_delay(omega))

    def impulse(self, steps: int = 50) -> Floats:
        """h: the weights of past gradients, the newest first."""
        return np.asarray(signal.lfilter(self.numerator, self.denominator, np.eye(1, steps)[0]))

    def step(self, steps: int = 50) -> Floats:
        """The direction after a gradient that jumps from 0 to 1, without bias correction: the cumulative sums of h."""
        return np.cumsum(self.impulse(steps))

    def first_steps(self, steps: int = 20) -> FirstSteps:
        """The first steps of the optimizer, bias correction included: its step on unit impulses, from θ = 0."""
        step = self.linear_step
        correction = Direct() if step.only_m_is_linear else step.correction
        parts = Parts(step.filter, Euclidean(), correction)
        scaled_lr = 1.0 if math.isnan(step.lr) else step.scaled_lr
        group = {**PLAIN_DESCENT, "lr": scaled_lr / step.filter.gain}
        impulses = torch.eye(steps, dtype=torch.float64)
        state = {name: initial.start(impulses[0], impulses[0]).double() for name, initial in parts.buffers().items()}
        directions = []
        for t, g in enumerate(impulses, start=1):
            displacement = Move(parts, group, torch.zeros_like(g), g, state, t).go()
            directions.append(displacement / scaled_lr)
        return FirstSteps(torch.stack(directions).numpy())

    def __str__(self) -> str:
        qh, delay = self.quasi_hyperbolic, float(self.group_delay(0.0))
        first = self.first_steps(3).gain
        rows: list[tuple[str, Any, str]] = [
            ("poles", _listed(self.poles), "how fast old gradients are forgotten"),
            ("zeros", _listed(self.zeros), "where H is zero"),
            ("H(1)", f"{self.dc_gain:.4g}", "gain of a constant gradient"),
            ("H(−1)", f"{self.nyquist_gain:.4g}", "gain of a gradient that flips its sign at every step"),
            ("Σh²", f"{self.noise_gain:.4g}", "gain of the variance of independent noise"),
            ("delay", f"{delay:.4g}", "delay of a slow change, in steps"),
            ("β, ν", f"{qh[0]:.4g}, {qh[1]:.4g}" if qh else "—", "the equivalent ν·average + (1−ν)·gradient"),
            ("start", ", ".join(f"{x:.4g}" for x in first), "gain of a constant gradient at steps 1, 2, 3"),
            ("lr ×", f"{self.gain:.4g}", "factor on the learning rate"),
        ]
        width = max(len(value) for _, value, _ in rows)
        lines = [f"  {symbol:<6} {value:<{width}}   {meaning}" for symbol, value, meaning in rows]
        return "\n".join([f"{self.name}: response of {self.direction} to the gradient", *lines])


def response(
    source: Source, correction: Correction | None = None, *, lr: float | None = None, group: int = 0
) -> Response:
    """The response of the direction that moves the parameter, before the geometry; `lr` matters only for a fixed ℓ."""
    step = linear_step(source, correction, lr=lr, group=group)
    if step.reevaluates:
        raise ValueError(
            f"{step.name}: {type(step.correction).__name__} evaluates the gradient at more than one point, so "
            "that its direction is no filter of the gradients; ask for the filter alone, or theory.quadratic for the "
            "whole step"
        )
    only_momentum = step.only_m_is_linear or step.ratio == 0
    predicted = "g" if step.correction.prediction == (1.0,) else "ĝ"
    direction = "m" if only_momentum else f"m + {step.ratio:.4g}·({predicted} − m)"
    return Response(step.name, direction, *step.direction(), step.filter.gain, step)


def _delay(coefficients: Floats, inverse_z: NDArray[np.complex128]) -> Floats:
    """−d/dω of the angle of Σ c_n·e^{−inω}: the mean of n, weighted by the terms of the sum."""
    weighted = coefficients * np.arange(len(coefficients))
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN: a blocked frequency has no delay
        return np.real(np.polyval(weighted[::-1], inverse_z) / np.polyval(coefficients[::-1], inverse_z))


def _listed(roots: NDArray[np.complex128]) -> str:
    texts = [f"{r.real:.4g}" if abs(r.imag) < 1e-9 else f"{r:.4g}" for r in roots]
    return ", ".join(texts) or "none"
