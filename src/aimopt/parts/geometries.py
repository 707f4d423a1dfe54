"""Geometries: the shape of a step.

A geometry is the residual penalty ψ of the paper, defined by its map P from a direction to a displacement:

    Euclidean                ‖r‖²       P(x) = x                   SGD, Nesterov
    Adaptive, Relativistic   ‖r‖²_R     P(x) = R⁻¹·x               Adam, NAdam, RAD, RADAR
    Sign                     ‖r‖²_∞     P(x) = sign(x)             Lion

Those of matrices, such as Muon's `Spectral`, are in `matrices.py`. `update` observes gradients and returns the metric
of the step (R, or None); `apply` is P.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import torch
from torch import Tensor

from aimopt.parts.component import BIAS_CORRECTIONS, Geometry, Initial, State, StepCount, is_finite, unsigned_zeros
from aimopt.parts.tensor_list import each, mix, sqrt


@dataclass(frozen=True)
class Euclidean(Geometry):
    """No geometry: P(x) = x."""

    linear = True

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> None:
        return None

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        return x


@dataclass(frozen=True)
class Sign(Geometry):
    """Steepest descent in the infinity norm: P(x) = sign(x)."""

    linear = False

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> None:
        return None

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        return x.sign()


@dataclass(frozen=True)
class Weighted(Geometry):
    """A diagonal metric R: P(x) = x/R."""

    linear = True

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        assert metric is not None
        return x / metric


def second_moment(state: State, g: Tensor, beta2: float, *, amsgrad: bool) -> Tensor:
    """Advance v ← β₂·v + (1−β₂)·g² and return it, or the largest v so far."""
    v = state["exp_avg_sq"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
    if not amsgrad:
        return v
    return keep_largest(state["max_exp_avg_sq"], v)


def keep_largest(largest: Tensor, v: Tensor) -> Tensor:
    """Replace `largest` by v where v is larger. With `where`, autograd stores only the mask, not the state."""
    return largest.copy_(each(lambda old, new: torch.where(new <= old, old, new), largest, v))


def second_moment_buffers(*, amsgrad: bool) -> dict[str, Initial]:
    """The state of `second_moment`, under torch's names."""
    return dict.fromkeys(("exp_avg_sq", "max_exp_avg_sq") if amsgrad else ("exp_avg_sq",), unsigned_zeros)


@dataclass(frozen=True)
class Adaptive(Weighted):
    """Adam's R = √v + ε; with ν₂ < 1 the quasi-hyperbolic √(ν₂·v + (1−ν₂)·g²) + ε.

    Bias correction divides v alone, or with `debias_eps` also ε: R = (√v + ε)/√(1−β₂ᵗ), as in MARS.
    """

    beta2: float = 0.999
    eps: float = 1e-8
    amsgrad: bool = False
    nu2: float = 1.0
    bias_correction: bool | str = True
    debias_eps: bool = False
    betas = ("beta2",)

    def __post_init__(self) -> None:
        self._check("beta2", 0, 1)
        self._check("eps", 0)
        self._check("nu2", 0, 1, closed=True)
        self._check_choice("amsgrad", (True, False))
        self._check_choice("bias_correction", BIAS_CORRECTIONS)
        self._check_choice("debias_eps", (True, False))

    def buffers(self) -> dict[str, Initial]:
        return second_moment_buffers(amsgrad=self.amsgrad)

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> Tensor:
        v = second_moment(state, g, self.beta2, amsgrad=self.amsgrad)
        c = 1 - self.beta2**t if self.bias_correction else 1.0
        if self.nu2 != 1:
            v = mix(v, self.nu2, g * g, (1 - self.nu2) * c)
        if self.debias_eps:
            return (v.sqrt() + self.eps) / sqrt(c)  # not in place: autograd stores the root
        return (v.sqrt() / sqrt(c)).add_(self.eps)


def zeta_of_eps(eps: Any) -> float:
    """ζ for an ε of Adam: √(v + ε²) is √v + ε at v = 0 and for large v."""
    if not is_finite(eps) or eps <= 0:
        raise ValueError(f"eps must be a number in (0, ∞), got {eps!r}; it stands for zeta = eps²")
    return float(Decimal(repr(float(eps))) ** 2)  # of the written number: 1e-8 is then 1e-16, the default, to the bit


@dataclass(frozen=True)
class Relativistic(Weighted):
    """RAD's R = √(δ²·v + ζ): δ limits the speed, and a larger ζ makes the step less adaptive.

    `zeta=None` anneals ζ from 1e-16 to 1 over `max_iter` steps; `final_delta` moves δ as RAD's schedule does (in 1/δ:
    from final_delta to delta over the first tenth of `max_iter`, back over the last). Order 2 averages 1/R at ζ and
    ζ/β1². Bias correction divides v alone (RADAR), or with `debias_zeta` also ζ (RAD).
    """

    beta2: float = 0.999
    delta: float = 1.0
    zeta: float | None = 1e-16
    order: int = 1
    amsgrad: bool = False
    bias_correction: bool | str = True
    debias_zeta: bool = False
    max_iter: int | None = None
    final_delta: float | None = None
    betas = ("beta2",)
    aliases: ClassVar[dict[str, tuple[str, Callable[[Any], Any]]]] = {"eps": ("zeta", zeta_of_eps)}

    def __post_init__(self) -> None:
        self._check("beta2", 0, 1)
        self._check("delta", 0, open_low=True)
        if self.zeta is not None:
            self._check("zeta", 0, open_low=True)
        self._check_choice("order", (1, 2))
        self._check_choice("amsgrad", (True, False))
        self._check_choice("bias_correction", BIAS_CORRECTIONS)
        self._check_choice("debias_zeta", (True, False))
        if self.max_iter is not None:
            self._check("max_iter", 1, integer=True)
        if self.final_delta is not None:
            self._check("final_delta", 0, open_low=True)
        if self.max_iter is None and (self.zeta is None or self.final_delta is not None):
            raise ValueError("Relativistic: annealing (zeta=None or final_delta) needs max_iter, the length of the run")

    def buffers(self) -> dict[str, Initial]:
        return second_moment_buffers(amsgrad=self.amsgrad)

    def zeta_at(self, t: StepCount) -> Any:
        """ζ of step t."""
        if self.zeta is not None:
            return self.zeta
        assert self.max_iter is not None
        return _clip_exp(40 * (t / self.max_iter - 1), 1e-16, 1.0)

    def delta_at(self, t: StepCount) -> Any:
        """δ of step t."""
        if self.final_delta is None:
            return self.delta
        assert self.max_iter is not None
        return each(_trapezoid, t / self.max_iter, 1 / self.delta, 1 / self.final_delta)

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> Tensor:
        v = second_moment(state, g, self.beta2, amsgrad=self.amsgrad)
        c = 1 - self.beta2**t if self.bias_correction else 1.0
        delta, zeta = self.delta_at(t), self.zeta_at(t)
        if self.debias_zeta:
            zeta = zeta / c
        R = (v * (delta * delta / c)).add_(zeta).sqrt_()
        if self.order == 1:
            return R
        if pole == 0:  # then ζ/β1² is infinite, and its 1/R is zero
            return R * 2
        return 2 / (1 / R + 1 / (v * (delta * delta / c) + zeta / pole**2).sqrt_())


def _clip_exp(x: Any, low: float, high: float) -> Any:
    if isinstance(x, (int, float)):
        return min(max(math.exp(min(x, 0.0)), low), high)
    return each(lambda y: y.exp().clamp(low, high), x)


def _trapezoid(x: Any, plateau: float, ends: float) -> Any:
    """1/(ends → plateau → ends): linear over the first tenth of x, and 1−√· over the last."""
    rise_or_fall: Any
    if isinstance(x, (int, float)):
        rise_or_fall = min(x / 0.1, 1.0) if x < 0.5 else 1 - math.sqrt(min(max((x - 0.9) / 0.1, 0.0), 1.0))
    else:
        rise = (x / 0.1).clamp(0, 1)
        fall = 1 - ((x - 0.9) / 0.1).clamp(0, 1).sqrt()
        rise_or_fall = torch.where(x < 0.5, rise, fall)
    return 1 / (rise_or_fall * (plateau - ends) + ends)


@dataclass(frozen=True)
class Belief(Weighted):
    """AdaBelief's R = √s + ε, s the average of (g − e)² against the filter's average e (Zhuang et al. 2020).

    ε is added to s at every step and accumulates, as in the authors' package. `rectify` is RAdam's warm-up: Euclidean
    geometry until the variance of s is known well enough, then R is divided by the rectification.
    """

    beta2: float = 0.999
    eps: float = 1e-16
    amsgrad: bool = False
    rectify: bool = True
    betas = ("beta2",)
    reads = ("exp_avg",)

    def __post_init__(self) -> None:
        self._check("beta2", 0, 1)
        self._check("eps", 0)
        self._check_choice("amsgrad", (True, False))
        self._check_choice("rectify", (True, False))
        if self.amsgrad and self.rectify:
            raise ValueError("Belief: amsgrad has no effect on a rectified step; pass rectify=False with amsgrad=True")

    def buffers(self) -> dict[str, Initial]:
        names = ("exp_avg_var", "max_exp_avg_var") if self.amsgrad else ("exp_avg_var",)
        return dict.fromkeys(names, unsigned_zeros)

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> Tensor:
        surprise = g - state["exp_avg"]
        s = state["exp_avg_var"].mul_(self.beta2).addcmul_(surprise, surprise, value=1 - self.beta2).add_(self.eps)
        c = 1 - self.beta2**t
        if self.rectify:
            return each(_rectified, s.sqrt() + self.eps, t, self.beta2)
        if self.amsgrad:
            s = keep_largest(state["max_exp_avg_var"], s)
        return (s.sqrt() / sqrt(c)).add_(self.eps)


def _rectified(root: Tensor, t: StepCount, beta2: float) -> Tensor:
    """RAdam's R: 1 until there are five effective samples."""
    power = beta2**t
    max_samples = 2 / (1 - beta2) - 1
    samples = max_samples - 2 * t * power / (1 - power)
    if isinstance(samples, (int, float)):
        if samples < 5:
            return torch.ones_like(root)
        return root / math.sqrt(_rectification(samples, max_samples) * (1 - power))
    enough = samples >= 5
    scale = torch.where(enough, _rectification(samples, max_samples) * (1 - power), 1.0).sqrt()
    return torch.where(enough, root / scale, 1.0)


def _rectification(samples: Any, max_samples: float) -> Any:
    return (samples - 4) * (samples - 2) * max_samples / ((max_samples - 4) * (max_samples - 2) * samples)
