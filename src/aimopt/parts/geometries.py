"""Geometries: the shape of a step.

A geometry is the residual penalty ψ of the paper, defined by its map P from a direction to a displacement:

    Euclidean                ‖r‖²       P(x) = x                   SGD, Nesterov
    Adaptive, Relativistic   ‖r‖²_R     P(x) = R⁻¹·x               Adam, NAdam, RAD, RADAR
    Sign                     ‖r‖²_∞     P(x) = sign(x)             Lion
    Spectral                 ‖r‖²_2     P(UΣVᵀ) = UVᵀ              Muon

`update` observes gradients and returns the metric of the step (R, or None); `apply` is P.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from aimopt.parts.component import Geometry, Initial, State, StepCount, is_finite, unsigned_zeros
from aimopt.parts.tensor_list import TensorList, each, mix, sqrt


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
    """Adam's R = √v + ε; with ν₂ < 1 the quasi-hyperbolic √(ν₂·v + (1−ν₂)·g²) + ε."""

    beta2: float = 0.999
    eps: float = 1e-8
    amsgrad: bool = False
    nu2: float = 1.0
    bias_correction: bool | str = True
    betas = ("beta2",)

    def __post_init__(self) -> None:
        self._check("beta2", 0, 1)
        self._check("eps", 0)
        self._check("nu2", 0, 1, closed=True)
        self._check_choice("amsgrad", (True, False))
        self._check_choice("bias_correction", (True, False, "exact"))

    def buffers(self) -> dict[str, Initial]:
        return second_moment_buffers(amsgrad=self.amsgrad)

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> Tensor:
        v = second_moment(state, g, self.beta2, amsgrad=self.amsgrad)
        c = 1 - self.beta2**t if self.bias_correction else 1.0
        if self.nu2 != 1:
            v = mix(v, self.nu2, g * g, (1 - self.nu2) * c)
        return (v.sqrt() / sqrt(c)).add_(self.eps)


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

    def __post_init__(self) -> None:
        self._check("beta2", 0, 1)
        self._check("delta", 0, open_low=True)
        if self.zeta is not None:
            self._check("zeta", 0, open_low=True)
        self._check_choice("order", (1, 2))
        self._check_choice("amsgrad", (True, False))
        self._check_choice("bias_correction", (True, False, "exact"))
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


# The coefficients (a, b, c) of the Newton–Schulz polynomial a·x + b·x³ + c·x⁵ (Jordan 2024), torch.optim.Muon's too.
QUINTIC = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True)
class Spectral(Geometry):
    """Steepest descent in the spectral norm: P(UΣVᵀ) ≈ UVᵀ, scaled by the matrix's shape.

    `ns_steps` Newton–Schulz iterations in `ns_dtype` (None: bfloat16, but float32 on a CPU), or with `polar="exact"`
    the singular value decomposition (for tests). A convolution kernel is flattened to output channels × all else.
    `adjust_lr_fn` is torch.optim.Muon's: "original" scales by √max(1, rows/columns), "match_rms_adamw" by
    0.2·√max(rows, columns).
    """

    ns_steps: int = 5
    ns_coefficients: tuple[float, float, float] = QUINTIC
    eps: float = 1e-7
    adjust_lr_fn: str | None = None
    polar: str = "newton-schulz"
    ns_dtype: str | None = None
    linear = False
    matrices_only = True
    batch_elements: ClassVar[int] = 2**26  # matrices of one shape are orthogonalized together, up to this size

    def __post_init__(self) -> None:
        self._check("ns_steps", 1, 100, integer=True)
        self._check("eps", 0, open_low=True)
        self._check_choice("adjust_lr_fn", (None, "original", "match_rms_adamw"))
        self._check_choice("polar", ("newton-schulz", "exact"))
        self._check_choice("ns_dtype", (None, "bfloat16", "float32", "float64"))
        coefficients = self.ns_coefficients
        if not (
            isinstance(coefficients, (tuple, list)) and len(coefficients) == 3 and all(map(is_finite, coefficients))
        ):
            raise ValueError(f"Spectral: ns_coefficients must be three numbers, got {coefficients!r}")

    def update(self, state: State, g: Tensor, t: StepCount, pole: float) -> None:
        return None

    def apply(self, x: Tensor, metric: Tensor | None) -> Tensor:
        if not isinstance(x, TensorList):
            return self._orthogonalize([x])[0]
        by_kind: dict[Any, list[int]] = {}
        for i, matrix in enumerate(x.items):
            by_kind.setdefault((matrix.shape, matrix.dtype), []).append(i)
        results: dict[int, Tensor] = {}
        for indices in by_kind.values():
            batch_size = max(1, self.batch_elements // max(1, x.items[indices[0]].numel()))
            for batch in (indices[k : k + batch_size] for k in range(0, len(indices), batch_size)):
                results |= zip(batch, self._orthogonalize([x.items[i] for i in batch]), strict=True)
        return cast(Tensor, TensorList([results[i] for i in range(len(x))]))

    def _orthogonalize(self, tensors: list[Tensor]) -> list[Tensor]:
        """The polar factors of tensors of one shape, all at once."""
        first = tensors[0]
        matrices = torch.stack([x.flatten(1) for x in tensors]) if len(tensors) > 1 else first.flatten(1)
        if self.polar == "exact":
            U, S, Vh = torch.linalg.svd(matrices, full_matrices=False)
            nonzero = 1e-12 * S.amax(-1, keepdim=True) < S  # a zero singular value has no direction
            result = (U * nonzero.unsqueeze(-2)) @ Vh
        else:
            dtype = self.ns_dtype or ("float32" if first.device.type == "cpu" else "bfloat16")
            result = newton_schulz(matrices.to(getattr(torch, dtype)), self.ns_steps, self.ns_coefficients, self.eps)
        scaled = result.to(first.dtype) * self._scale(*matrices.shape[-2:])
        return [matrix.view_as(first) for matrix in scaled.reshape(len(tensors), *matrices.shape[-2:])]

    def _scale(self, rows: int, columns: int) -> float:
        if self.adjust_lr_fn == "match_rms_adamw":
            return 0.2 * math.sqrt(max(rows, columns))
        return math.sqrt(max(1, rows / columns))


def newton_schulz(x: Tensor, steps: int, coefficients: tuple[float, float, float], eps: float) -> Tensor:
    """Drive the singular values of a matrix, or of each one of a batch, towards 1 (Jordan 2024).

    x ← a·x + (b·A + c·A²)·x with A = x·xᵀ.
    """
    a, b, c = coefficients
    add_product = torch.addmm if x.ndim == 2 else torch.baddbmm
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        A = x @ x.mT
        x = add_product(x, add_product(A, A, A, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
