"""Corrections: what the θ-step adds to the descent point y = θ − η·P(m).

The paper's θ-subproblem is the implicit equation θ⁺ = y − ℓ·P(∇L(θ⁺) − m). A correction is a way to approximate it:

    Direct          θ⁺ = y                                        SGD with momentum, Adam, RAD, Lion, Muon
    FixedPoint      ∇L(θ⁺) ≈ ∇L(θ), K times through the closure   K=1: Nesterov, NAdam, RADAR
    Secant          ∇L(θ⁺) ≈ 2g − g_prev                          no closure, one more buffer
    ExactQuadratic  solved by conjugate gradients                 exact if L is quadratic: to verify the theory
    MixThenMap      θ − η·P(m + r·(g − m))                        the same as FixedPoint if P is linear; otherwise
                                                                  the step of Muon with Nesterov momentum

A correction may wrap another: `Cautious(FixedPoint())` masks the displacement of a fixed-point step.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aimopt.parts.component import PREVIOUS_GRADIENT, Attempt, Correction, DisplacementInputs, Initial, first_gradient
from aimopt.parts.tensor_list import each, inner, mix, over_all_ranks


def _or_nesterov(ell_ratio: float | None, pole: float) -> float:
    """The given ratio, or 1−β1: a fixed-point step is then Nesterov's momentum."""
    return 1 - pole if ell_ratio is None else ell_ratio


@dataclass(frozen=True)
class Direct(Correction):
    """No correction: θ⁺ = y."""

    def ratio(self, lr: float | Tensor, pole: float) -> float | Tensor:
        return 0.0

    def displacement(self, step: DisplacementInputs) -> Tensor:
        return step.P(step.m) * step.lr


@dataclass(frozen=True)
class MixThenMap(Correction):
    """θ⁺ = θ − η·P(m + r·(g − m)); r is `ell_ratio`, or 1−β1 if that is None."""

    ell_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.ell_ratio is not None:
            self._check("ell_ratio", 0)

    def ratio(self, lr: float | Tensor, pole: float) -> float | Tensor:
        return _or_nesterov(self.ell_ratio, pole)

    def displacement(self, step: DisplacementInputs) -> Tensor:
        r = self.ratio(step.lr, step.pole)
        return step.P(mix(step.m, 1 - r, step.g, r)) * step.lr


@dataclass(frozen=True)
class Residual(Correction):
    """θ⁺ = y − ℓ·P(ĝ − m), with a prediction ĝ of the gradient at θ⁺.

    ℓ is `ell`. If that is None, ℓ follows the learning rate: ell_ratio·η, or (1−β1)·η if `ell_ratio` is None too.
    """

    ell: float | None = None
    ell_ratio: float | None = None
    maps_residual = True

    def __post_init__(self) -> None:
        for name in ("ell", "ell_ratio"):
            if getattr(self, name) is not None:
                self._check(name, 0)

    def ell_at(self, lr: float | Tensor, pole: float) -> float | Tensor:
        """ℓ at a learning rate."""
        return lr * _or_nesterov(self.ell_ratio, pole) if self.ell is None else self.ell

    def ratio(self, lr: float | Tensor, pole: float) -> float | Tensor:
        if self.ell is None:
            return _or_nesterov(self.ell_ratio, pole)
        if isinstance(lr, float | int) and lr == 0:  # in a warm-up; Python refuses to divide
            return math.inf if self.ell else math.nan
        return self.ell / lr

    def towards(self, predicted: Tensor, step: DisplacementInputs) -> Tensor:
        """η·P(m) + ℓ·P(ĝ − m); one map is enough if P is linear."""
        ell = self.ell_at(step.lr, step.pole)
        if step.geometry.linear:
            return step.P(mix(step.m, step.lr - ell, predicted, ell))
        return mix(step.P(step.m), step.lr, step.P(predicted - step.m), ell)


@dataclass(frozen=True)
class FixedPoint(Residual):
    """Fixed-point iterations of the θ-step, from θ. Each one after the first evaluates the closure once."""

    iterations: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("iterations", 1, integer=True)

    @property
    def evaluates_again(self) -> bool:
        return self.iterations > 1

    def displacement(self, step: DisplacementInputs) -> Tensor:
        return self.towards(step.g, step)

    def solve(self, attempts: Sequence[Attempt]) -> Iterator[None]:
        for attempt in attempts:
            attempt.place(self.displacement(attempt.inputs))
        for _ in range(self.iterations - 1):
            yield
            for attempt in attempts:
                attempt.place(self.displacement(attempt.inputs._replace(g=attempt.gradient())))


@dataclass(frozen=True)
class Secant(Residual):
    """The gradient at θ⁺ is predicted by extrapolating the last two: 2g − g_prev."""

    prediction = (2.0, -1.0)

    def buffers(self) -> dict[str, Initial]:
        return {PREVIOUS_GRADIENT: first_gradient}

    def displacement(self, step: DisplacementInputs) -> Tensor:
        return self.towards(step.g * 2 - step.state[PREVIOUS_GRADIENT], step)


@dataclass(frozen=True)
class ExactQuadratic(Residual):
    """The θ-step solved exactly if the objective is quadratic, by conjugate gradients through the closure.

    Every iteration evaluates the closure once; in exact arithmetic the number of iterations is the number of distinct
    curvatures. The closure must be deterministic. Meant for verifying the theory, not for training networks. All groups
    must have this correction.
    """

    cg_tolerance: float = 1e-12
    cg_iterations: int = 1000
    joint = True
    solves_linear_system = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("cg_tolerance", 0, 1)
        self._check("cg_iterations", 1, integer=True)

    def displacement(self, step: DisplacementInputs) -> Tensor:
        return self.towards(step.g, step)  # used only if ℓ = 0: then there is nothing to solve

    def solve(self, attempts: Sequence[Attempt]) -> Iterator[None]:
        settings = [a.correction for a in attempts if isinstance(a.correction, ExactQuadratic)]
        ells = [s.ell_at(a.inputs.lr, a.inputs.pole) for s, a in zip(settings, attempts, strict=True)]
        for correction, attempt, ell in zip(settings, attempts, ells, strict=True):
            attempt.place(correction.displacement(attempt.inputs) if ell == 0 else attempt.inputs.g * 0)
        implicit = [(attempt, ell) for attempt, ell in zip(attempts, ells, strict=True) if ell != 0]
        if not implicit:
            return
        if len(implicit) < len(attempts) or any(attempt.decays_first for attempt in attempts):
            yield  # the first gradient was not taken at the point where the solution starts
        tolerance, iterations = min(s.cg_tolerance for s in settings), max(s.cg_iterations for s in settings)
        yield from _conjugate_gradients(implicit, tolerance, iterations)


@dataclass(frozen=True)
class Cautious(Correction):
    """The displacement of another correction, only where its sign is the gradient's (Liang et al. 2024).

    What is left is divided by the fraction of elements that are left: with `rescale="mean"` by that fraction, but at
    least 1/1000, as in the authors' code; with "count" by (count + 1)/size, as in their paper; with False it is not,
    and the step can be fused. A group stores the wrapped correction's class name as `inner`, and its fields under their
    own names.
    """

    inner: Correction = Direct()
    rescale: bool | str = "mean"
    wraps = "inner"
    linear = False

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Correction):
            raise ValueError(f"Cautious: inner must be a Correction, such as FixedPoint(), got {self.inner!r}")
        if self.inner.wraps is not None or self.inner.evaluates_again:
            what = "wraps another correction" if self.inner.wraps is not None else "evaluates the closure again"
            raise ValueError(f"Cautious: {self.inner!r} {what}; wrap Direct, MixThenMap, Secant or FixedPoint()")
        self._check_choice("rescale", ("mean", "count", False))

    def buffers(self) -> Mapping[str, Initial | Callable[[Tensor], Tensor]]:
        return self.inner.buffers()

    def ratio(self, lr: float | Tensor, pole: float) -> float | Tensor:
        return self.inner.ratio(lr, pole)

    def displacement(self, step: DisplacementInputs) -> Tensor:
        displacement = self.inner.displacement(step)
        descends = displacement * step.g > 0
        masked = displacement * descends  # a product and not torch.where, which would hide a NaN
        return each(_over_fraction, masked, descends, self.rescale) if self.rescale else masked


def _over_fraction(masked: Tensor, mask: Tensor, rule: str) -> Tensor:
    """A masked tensor, divided by the fraction of elements that are left."""
    left = over_all_ranks(mask.sum(dtype=masked.dtype))
    numel = max(masked.numel(), 1)
    fraction = left / numel  # not the mean: up to torch 2.9, that of unequal shards is wrong
    return masked / (fraction.clamp(min=1e-3) if rule == "mean" else fraction + 1 / numel)


def _conjugate_gradients(
    implicit: "Sequence[tuple[Attempt, float | Tensor]]", tolerance: float, iterations: int
) -> Iterator[None]:
    """Solve R·Δ + ℓ·(H·Δ) = −((η−ℓ)·m + ℓ·g) for all parameters at once and place them at θ + Δ.

    Preconditioned conjugate gradients on A·x = b with A = M + H and M = R/ℓ, in the usual symbols. H·p is the
    difference of two gradients, exact if the objective is quadratic. M is never formed: M·z = r, so M·p obeys the
    recursion of p with r in place of z.
    """
    attempts = [attempt for attempt, _ in implicit]
    g0 = [attempt.gradient() for attempt in attempts]
    r = [-(a.inputs.m * ((a.inputs.lr - ell) / ell) + g) for (a, ell), g in zip(implicit, g0, strict=True)]
    z = _precondition(implicit, r)
    rho = rho_0 = _dot(r, z)
    beta = rho * 0
    x = p = Mp = [ri * 0 for ri in r]
    for _ in range(iterations):
        if not rho > tolerance**2 * rho_0:
            break
        p, Mp = _add(z, beta, p), _add(r, beta, Mp)
        for attempt, pi in zip(attempts, p, strict=True):
            attempt.place(-pi)
        yield
        Ap = [Mpi + attempt.gradient() - g for Mpi, attempt, g in zip(Mp, attempts, g0, strict=True)]
        pAp = _dot(p, Ap)
        if not pAp > 0:
            raise RuntimeError("ExactQuadratic met negative curvature: the θ-step has no minimum here; lower lr or ell")
        alpha = rho / pAp
        x, r = _add(x, alpha, p), _add(r, -alpha, Ap)
        z = _precondition(implicit, r)
        rho, rho_previous = _dot(r, z), rho
        beta = rho / rho_previous
    for attempt, xi in zip(attempts, x, strict=True):
        attempt.place(-xi)


def _precondition(implicit: "Sequence[tuple[Attempt, float | Tensor]]", r: Sequence[Tensor]) -> list[Tensor]:
    """M⁻¹·r = ℓ·R⁻¹·r."""
    return [attempt.inputs.P(ri) * ell for (attempt, ell), ri in zip(implicit, r, strict=True)]


def _add(x: Sequence[Tensor], a: Tensor, y: Sequence[Tensor]) -> list[Tensor]:
    return [xi + yi * a for xi, yi in zip(x, y, strict=True)]


def _dot(x: Sequence[Tensor], y: Sequence[Tensor]) -> Tensor:
    return torch.stack([inner(xi, yi) for xi, yi in zip(x, y, strict=True)]).sum()
