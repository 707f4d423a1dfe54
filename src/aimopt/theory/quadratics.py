"""Quadratics: where an optimizer is stable, and how fast it converges.

    q = quadratic(Nesterov(params, lr=0.1))                  or quadratic(EMA(0.9), FixedPoint(iterations=3))
    q.largest_stable                                         the largest stable η·λ/R
    q.spectral_radius([0.1, 1.0])                            the factor on the error per step, at these η·λ/R
    q.best_rate(1, 100)                                      the best learning rate for curvatures from 1 to 100
    compare_on_quadratics({"SGDM": …, "RADAR": …}, 1, 100)   a table with one row per optimizer

On ½·λ·x² with a fixed preconditioner 1/R a step is linear, x⁺ = a·x + c·x_prev − b·m with m = H(z)·x, and it depends on
one number: h = η·λ/R. The closed loop is the polynomial (z − a − c·z⁻¹)·D(z) + b·N(z), with H = N/D as in `response`,
and its companion matrix is the iteration matrix. The correction determines a, b and c:

    one step, ĝ = p₀·g + p₁·g_prev      a = 1 − s·p₀, c = −s·p₁, b = h − s       where s = ℓ·λ/R
    K fixed-point steps                 a = S + (−s)^K, b = S·(h − s)            S = 1 − s + s² − … of K terms
    the exact θ-step                    a = 1/(1 + s), b = (h − s)/(1 + s)       K → ∞, also where that diverges

These are closed forms of the step, not the step itself: `tests/theory/test_quadratic.py` runs every one of them against
the real optimizer. A real preconditioner changes from step to step; the analysis holds while it changes slowly. Weight
decay is not included (coupled decay is curvature: add it to λ).

`Lookahead` is linear over its k steps: with the state v = (x, x_prev, w), where w is the memory of the filter, they are
the k-th power of one step, after which x returns to a part of its way. An `Average` does not change the path of x.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from aimopt.parts.component import Correction
from aimopt.parts.corrections import ExactQuadratic, FixedPoint
from aimopt.parts.iterates import Lookahead
from aimopt.theory.linear_step import LinearStep, Source, linear_step

Floats = NDArray[np.float64]


class Rate(NamedTuple):
    """A learning rate, and the largest factor on the error per step over the curvatures considered."""

    lr: float
    factor: float

    @property
    def steps_per_digit(self) -> float:
        """Steps to divide the error by ten; infinite if it does not shrink."""
        return math.log(0.1) / math.log(self.factor) if 0 < self.factor < 1 else 0.0 if self.factor == 0 else math.inf


@dataclass(frozen=True)
class Quadratic:
    """A step on ½·λ·x², as a function of h = η·λ/R (η is the learning rate that the user sets)."""

    linear_step: LinearStep

    @property
    def name(self) -> str:
        """The name in tables and messages."""
        return self.linear_step.name

    def characteristic(self, h: ArrayLike) -> Floats:
        """The coefficients of the closed loop's polynomial, highest power first, along the last axis."""
        # With ℓ = η the step does not depend on m, so m's poles are left out.
        numerator, denominator = self.linear_step.momentum() if self.linear_step.ratio != 1 else ((0.0,), (1.0,))
        scaled = np.asarray(h, dtype=float)[..., None] * self.linear_step.filter.gain
        a, b, c = self._step(scaled)
        uses_previous = len(self.linear_step.correction.prediction) > 1
        order = max(len(numerator), len(denominator) + uses_previous)
        closed = np.zeros((*scaled.shape[:-1], order + 1))
        closed[..., : len(denominator)] += denominator
        closed[..., 1 : 1 + len(numerator)] += b * np.array(numerator)
        closed[..., 1 : 1 + len(denominator)] -= a * np.array(denominator)
        if uses_previous:
            closed[..., 2 : 2 + len(denominator)] -= c * np.array(denominator)
        return closed

    def _step(self, h: Floats) -> tuple[Floats, Floats, Floats]:
        """(a, b, c) of x⁺ = a·x + c·x_prev − b·m; see the docstring of this module."""
        correction, s = self.linear_step.correction, h * self.linear_step.ratio
        if isinstance(correction, ExactQuadratic):
            return 1 / (1 + s), (h - s) / (1 + s), 0 * s
        if isinstance(correction, FixedPoint) and correction.iterations > 1:
            powers = (-s) ** np.arange(correction.iterations + 1)
            S = powers[..., :-1].sum(-1, keepdims=True)
            return S + powers[..., -1:], S * (h - s), 0 * s
        weights = np.zeros(2)
        weights[: len(correction.prediction)] = correction.prediction
        return 1 - s * weights[0], h - s, -s * weights[1]

    def iteration_matrix(self, h: ArrayLike) -> Floats:
        """The matrix that maps (x, x_prev, …) to the next step; along the last two axes."""
        closed = self.characteristic(h)
        order = closed.shape[-1] - 1
        matrix = np.zeros((*closed.shape[:-1], order, order)) + np.eye(order, k=-1)
        matrix[..., 0, :] = -closed[..., 1:]
        return matrix

    def spectral_radius(self, h: ArrayLike) -> Floats:
        """The factor on the error per step in the long run; below 1 the iteration converges."""
        iterate = self.linear_step.iterate
        if isinstance(iterate, Lookahead):
            return _largest_eigenvalue(self._period(h, iterate)) ** (1 / iterate.sync_steps)
        with np.errstate(over="ignore", invalid="ignore"):  # K fixed-point steps that diverge may overflow
            matrix = self.iteration_matrix(h)
        return _largest_eigenvalue(matrix)

    def state_matrix(self, h: ArrayLike) -> Floats:
        """The matrix of one step on the state (x, x_prev, w₁, w₂, …), with m = Σ nᵢ·wᵢ and w₀ = x − Σ dᵢ·wᵢ."""
        numerator, denominator = self.linear_step.momentum()
        memory = max(len(numerator), len(denominator)) - 1
        n = np.pad(numerator, (0, memory + 1 - len(numerator)))
        d = np.pad(denominator, (0, memory + 1 - len(denominator)))
        a, b, c = self._step(np.asarray(h, dtype=float)[..., None] * self.linear_step.filter.gain)
        matrix = np.zeros((*a.shape[:-1], 2 + memory, 2 + memory))
        newest = np.concatenate([[1.0, 0.0], -d[1:]])  # w₀, in terms of the state
        matrix[..., 0, :] = -b * (n[0] * newest + np.concatenate([[0.0, 0.0], n[1:]]))
        matrix[..., 0, :2] += np.concatenate([a, c], -1)
        matrix[..., 1, 0] = 1.0
        if memory:
            matrix[..., 2, :] = newest
            matrix[..., 3:, 2:-1] = np.eye(memory - 1)
        return matrix

    def _period(self, h: ArrayLike, iterate: Lookahead) -> Floats:
        """The matrix of the k steps between two synchronizations."""
        with np.errstate(over="ignore", invalid="ignore"):
            period = np.linalg.matrix_power(self.state_matrix(h), iterate.sync_steps)
        period[..., 0, :] *= iterate.slow_step
        period[..., 0, 0] += 1 - iterate.slow_step
        return period

    @property
    def largest_stable(self) -> float:
        """The h = η·λ/R below which the iteration converges; infinite if it always does."""
        grid = np.geomspace(1e-4, 1e8, 1201)
        stable = self.spectral_radius(grid) < 1
        if stable.all():
            return math.inf
        first = int(np.argmin(stable))
        if first == 0:
            return 0.0
        return float(optimize.brentq(lambda h: float(self.spectral_radius(h)) - 1, *grid[first - 1 : first + 1]))

    def rate(self, mu: float, L: float, lr: float | None = None) -> Rate:
        """The largest factor over curvatures from μ to L (already divided by R), at the optimizer's learning rate."""
        _check_spectrum(mu, L)
        lr = self.linear_step.lr if lr is None else lr
        if not lr > 0:
            raise ValueError(f"{self.name} has no learning rate here: pass lr=…, or ask for best_rate")
        return Rate(lr, float(self.spectral_radius(lr * np.geomspace(mu, L, 300)).max()))

    def best_rate(self, mu: float, L: float) -> Rate:
        """The learning rate with the smallest largest factor over curvatures from μ to L, at constant ℓ/η."""
        _check_spectrum(mu, L)
        edge = min(self.largest_stable, 1e4)
        if edge == 0:
            return Rate(math.nan, math.inf)
        coarse = np.geomspace(edge / L * 1e-3, edge / L, 150)
        factors = np.array([self.rate(mu, L, lr).factor for lr in coarse])
        best = int(factors.argmin())
        low, high = coarse[max(best - 1, 0)], coarse[min(best + 1, len(coarse) - 1)]
        fine = optimize.minimize_scalar(
            lambda lr: self.rate(mu, L, lr).factor, bounds=(low, high), method="bounded", options={"xatol": 1e-9 * high}
        )
        return Rate(float(fine.x), float(fine.fun)) if fine.fun < factors[best] else Rate(coarse[best], factors[best])


@dataclass(frozen=True)
class QuadraticComparison:
    """Several optimizers on one range of curvatures; prints as a table."""

    mu: float
    L: float
    rows: tuple[tuple[str, float, Rate], ...]  # name, largest stable h, best rate

    def __str__(self) -> str:
        lines = [
            f"quadratics with curvatures from {self.mu:g} to {self.L:g} (condition number {self.L / self.mu:g})",
            f"  {'':<26} {'stable up to ηλ':>16} {'best η':>10} {'error per step':>15} {'steps per digit':>15}",
        ]
        for name, edge, best in self.rows:
            limit = "always" if math.isinf(edge) else f"{edge:.4g}"
            lines.append(
                f"  {name:<26} {limit:>16} {best.lr:>10.4g} {best.factor:>15.5f} {best.steps_per_digit:>15.1f}"
            )
        return "\n".join(lines)


def quadratic(
    source: Source, correction: Correction | None = None, *, lr: float | None = None, group: int = 0
) -> Quadratic:
    """The step of an optimizer on a quadratic. Its parts must be linear; its geometry is treated as constant."""
    step = linear_step(source, correction, lr=lr, group=group)
    for part in (step.geometry, step.correction):
        if not part.linear:
            raise ValueError(
                f"{step.name}: {type(part).__name__} is not linear, so that no matrix describes its step; "
                "the analysis of quadratics is for Euclidean and weighted geometries"
            )
    if step.reevaluates and not isinstance(step.correction, (ExactQuadratic, FixedPoint)):
        raise ValueError(
            f"{step.name}: {type(step.correction).__name__} evaluates the gradient again in its own way, which has no "
            "closed form here; use FixedPoint(iterations=…) or ExactQuadratic"
        )
    if len(step.correction.prediction) > 2:
        raise ValueError(f"{step.name}: a prediction from more than two gradients is not analysed; use at most two")
    if step.iterate.moves_elsewhere:
        raise ValueError(
            f"{step.name}: {type(step.iterate).__name__} weights its points by the step count, so that no constant "
            "matrix describes its step; ask for the filter and the correction"
        )
    step.momentum()  # refuses an unstable filter
    return Quadratic(step)


def compare_on_quadratics(sources: Mapping[str, Source], mu: float, L: float) -> QuadraticComparison:
    """The largest stable step and the best rate of several optimizers over curvatures from μ to L."""
    rows = []
    for name, source in sources.items():
        analysis = quadratic(source)
        rows.append((name, analysis.largest_stable, analysis.best_rate(mu, L)))
    return QuadraticComparison(mu, L, tuple(rows))


def _largest_eigenvalue(matrix: Floats) -> Floats:
    """The largest absolute eigenvalue of each matrix; infinite if the matrix has overflowed."""
    finite = np.asarray(np.isfinite(matrix).all((-2, -1)))
    radius = np.abs(np.linalg.eigvals(np.where(finite[..., None, None], matrix, 0.0))).max(-1)
    return np.where(finite, radius, np.inf)


def _check_spectrum(mu: float, L: float) -> None:
    if not (math.isfinite(L) and 0 < mu <= L):
        raise ValueError(f"curvatures must satisfy 0 < mu ≤ L < ∞, got mu={mu!r} and L={L!r}")
