"""Corrections: what the θ-step adds to the descent point y = θ − η·P(m).

The paper's θ-subproblem is the implicit equation θ⁺ = y − ℓ·P(∇L(θ⁺) − m). A correction is a way to approximate it:

    Direct          θ⁺ = y                                        SGD with momentum, Adam, RAD, Lion, Muon
    FixedPoint      ∇L(θ⁺) ≈ ∇L(θ), K times through the closure   K=1: Nesterov, NAdam, RADAR
    Secant          ∇L(θ⁺) ≈ 2g − g_prev                          no closure, one more buffer
    ExactQuadratic  solved by conjugate gradients                 exact where L is quadratic: to verify the theory
    MixThenMap      θ − η·P(m + r·(g − m))                        the same as FixedPoint where P is linear; what
                                                                  Muon with Nesterov momentum does where it is not
"""

from dataclasses import dataclass

from torch import Tensor

from aimopt.components import PREVIOUS_GRADIENT, Correction, Displacement, Initial, first_gradient
from aimopt.tensors import mix


def _or_nesterov(ell_ratio: float | None, pole: float) -> float:
    """The given ratio, or 1−β1, which makes a fixed-point step Nesterov's momentum."""
    return 1 - pole if ell_ratio is None else ell_ratio


@dataclass(frozen=True)
class Direct(Correction):
    """No correction: θ⁺ = y."""

    def ratio(self, lr: float | Tensor, pole: float) -> float | Tensor:
        return 0.0

    def displacement(self, step: Displacement) -> Tensor:
        return step.P(step.m) * step.lr


@dataclass(frozen=True)
class MixThenMap(Correction):
    """θ⁺ = θ − η·P(m + r·(g − m)); r is `ell_ratio`, 1−β1 where it is None."""

    ell_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.ell_ratio is not None:
            self._check("ell_ratio", 0)

    def ratio(self, lr: float | Tensor, pole: float) -> float | Tensor:
        return _or_nesterov(self.ell_ratio, pole)

    def displacement(self, step: Displacement) -> Tensor:
        r = self.ratio(step.lr, step.pole)
        return step.P(mix(step.m, 1 - r, step.g, r)) * step.lr


@dataclass(frozen=True)
class Residual(Correction):
    """θ⁺ = y − ℓ·P(ĝ − m) for some prediction ĝ of the gradient at θ⁺.

    ℓ is `ell` where it is given, and else follows the learning rate: ell_ratio·η, (1−β1)·η where that is None too.
    """

    ell: float | None = None
    ell_ratio: float | None = None

    def __post_init__(self) -> None:
        for name in ("ell", "ell_ratio"):
            if getattr(self, name) is not None:
                self._check(name, 0)

    def ell_at(self, lr: float | Tensor, pole: float) -> float | Tensor:
        """ℓ at a learning rate."""
        return lr * _or_nesterov(self.ell_ratio, pole) if self.ell is None else self.ell

    def ratio(self, lr: float | Tensor, pole: float) -> float | Tensor:
        return _or_nesterov(self.ell_ratio, pole) if self.ell is None else self.ell / lr

    def towards(self, predicted: Tensor, step: Displacement) -> Tensor:
        """η·P(m) + ℓ·P(ĝ − m), in one map where P is linear."""
        ell = self.ell_at(step.lr, step.pole)
        if step.geometry.linear:
            return step.P(mix(step.m, step.lr - ell, predicted, ell))
        return mix(step.P(step.m), step.lr, step.P(predicted - step.m), ell)


@dataclass(frozen=True)
class FixedPoint(Residual):
    """Fixed-point iterations of the θ-step, from θ; beyond the first, each evaluates the closure once more."""

    iterations: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("iterations", 1, integer=True)

    @property
    def evaluations(self) -> int:
        return self.iterations

    def displacement(self, step: Displacement) -> Tensor:
        return self.towards(step.g, step)


@dataclass(frozen=True)
class Secant(Residual):
    """The gradient at θ⁺ is predicted by extrapolating the last two: 2g − g_prev."""

    prediction = (2.0, -1.0)

    def buffers(self) -> dict[str, Initial]:
        return {PREVIOUS_GRADIENT: first_gradient}

    def displacement(self, step: Displacement) -> Tensor:
        return self.towards(step.g * 2 - step.state[PREVIOUS_GRADIENT], step)


@dataclass(frozen=True)
class ExactQuadratic(Residual):
    """The θ-step solved exactly where the objective is quadratic, by conjugate gradients through the closure.

    Every iteration evaluates the closure once; in exact arithmetic as many are needed as the problem has distinct
    curvatures. The closure must be deterministic. Meant for verifying the theory, not for training networks. All groups
    must have it.
    """

    cg_tolerance: float = 1e-12
    cg_iterations: int = 1000
    joint = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("cg_tolerance", 0, 1)
        self._check("cg_iterations", 1, integer=True)

    def displacement(self, step: Displacement) -> Tensor:
        return self.towards(step.g, step)  # asked for only where ℓ = 0, and there is nothing to solve
