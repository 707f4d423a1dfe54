"""Filters: how the multiplier m follows the gradient.

Most are one-pole filters, which are data: four numbers define how the state e takes in a gradient and how m is read,

    m = old·e + new·g,        then        e ← decay·e + intake·g

For example `EMA` reads m = e after the update (old = β, new = 1−β), `GradientDifference` is RADAR's filter without
its stored previous gradient (old = β−γ, new = 1−β+γ), `Lookback` is Lion's (old, new from one β, decay from another).
The step, the theory and the diagnostics all read the same four numbers.

The others have a state of their own: `AdanPair` and `TwoSpeed` keep two averages, `VarianceReduced` averages a
corrected gradient, which the geometry sees too.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from aimopt.parts.component import (
    BIAS_CORRECTIONS,
    PREVIOUS_GRADIENT,
    Filter,
    Initial,
    State,
    StepCount,
    Transfer,
    first_gradient,
    scalar,
    signed_zeros,
    zeros,
)
from aimopt.parts.tensor_list import at_most, each, mix, over_all_ranks


class Coefficients(NamedTuple):
    """A one-pole filter at one step: m = old·e + new·g, e ← decay·e + intake·g."""

    decay: float
    intake: float
    old: Any  # a number, or a tensor if the step count is a tensor
    new: Any

    def transfer(self) -> Transfer:
        """The filter with constant coefficients: H(z) = new + old·intake·z⁻¹/(1 − decay·z⁻¹)."""
        return Transfer((self.new, self.old * self.intake - self.new * self.decay), (1.0, -self.decay))


@dataclass(frozen=True)
class OnePole(Filter):
    """A filter that is defined by its four coefficients."""

    buffer: ClassVar[str] = "exp_avg"

    @abstractmethod
    def coefficients(self, t: StepCount) -> Coefficients:
        """The filter at step t = 1, 2, …, bias correction included."""

    @property
    def average_weight(self) -> float:
        """ν: the weight of the updated average in m, after bias correction has faded; the gradient has the rest."""
        decay, intake, old, _ = self.coefficients(math.inf)
        return float(old / decay * intake / (1 - decay)) if decay else 0.0

    def buffers(self) -> dict[str, Initial]:
        return {self.buffer: signed_zeros}

    def update(self, state: State, g: Tensor, t: StepCount) -> tuple[Tensor, Tensor]:
        return _read_and_advance(state[self.buffer], g, self.coefficients(t)), g

    def transfer(self) -> Transfer:
        return self.coefficients(math.inf).transfer()


def _read_and_advance(e: Tensor, g: Tensor, c: Coefficients) -> Tensor:
    m = mix(e, c.old, g, c.new)
    e.mul_(c.decay).add_(g, alpha=c.intake)
    return m


@dataclass(frozen=True)
class EMA(OnePole):
    """The exponential moving average of gradients: the relaxed multiplier update of AIM, and Adam's first moment."""

    beta: float = 0.9
    bias_correction: bool | str = True
    betas = ("beta",)

    def __post_init__(self) -> None:
        self._check("beta", 0, 1)
        self._check_choice("bias_correction", BIAS_CORRECTIONS)

    @property
    def pole(self) -> float:
        return self.beta

    def coefficients(self, t: StepCount) -> Coefficients:
        c = 1 - self.beta**t if self.bias_correction else 1.0
        return Coefficients(self.beta, 1 - self.beta, self.beta / c, (1 - self.beta) / c)


@dataclass(frozen=True)
class Unfiltered(Filter):
    """No momentum and no state: m = g. For iterates that average by themselves, such as `ScheduleFree`."""

    @property
    def pole(self) -> float:
        return 0.0

    def update(self, state: State, g: Tensor, t: StepCount) -> tuple[Tensor, Tensor]:
        return g, g

    def transfer(self) -> Transfer:
        return Transfer((1.0,), (1.0,))


@dataclass(frozen=True)
class HeavyBall(OnePole):
    """torch's momentum buffer b ← μ·b + g, or with `normalized` the average b ← μ·b + (1−μ)·g as in Muon.

    m is the average in both cases, so that g − m is a residual; `gain` scales the learning rate to that of the sum.
    """

    momentum: float = 0.9
    normalized: bool = False
    buffer = "momentum_buffer"

    def __post_init__(self) -> None:
        self._check("momentum", 0, 1)
        self._check_choice("normalized", (True, False))

    @property
    def pole(self) -> float:
        return self.momentum

    @property
    def gain(self) -> float:
        return 1.0 if self.normalized else 1 / (1 - self.momentum)

    def coefficients(self, t: StepCount) -> Coefficients:
        mu = self.momentum
        return Coefficients(mu, 1 - mu if self.normalized else 1.0, mu if self.normalized else mu * (1 - mu), 1 - mu)


@dataclass(frozen=True)
class GradientDifference(OnePole):
    """RADAR's filter m ← β·m + (1−β)·g + γ·(g − g_prev), read from the plain average so that g_prev is not stored.

    `bias_correction=True` divides by 1−βᵗ, as the authors' code does. This ignores γ, and doubles the first step if
    γ = 1−β. "exact" divides by 1−βᵗ+γ·βᵗ⁻¹, so that a constant gradient is reproduced from the first step. False is
    exactly Algorithm 2 of the paper. If β or γ changes during a run, this formula is the definition.
    """

    beta: float = 0.9
    gamma: float = 0.1
    bias_correction: bool | str = True
    betas = ("beta",)

    def __post_init__(self) -> None:
        self._check("beta", 0, 1)
        self._check("gamma", 0)
        self._check_choice("bias_correction", BIAS_CORRECTIONS)

    @property
    def pole(self) -> float:
        return self.beta

    def coefficients(self, t: StepCount) -> Coefficients:
        beta, gamma = self.beta, self.gamma
        c: Any = 1.0
        if self.bias_correction:
            c = 1 - beta**t
        if self.bias_correction == "exact":
            c = c + gamma * beta ** (t - 1)
        return Coefficients(beta, 1 - beta, (beta - gamma) / c, (1 - beta + gamma) / c)


@dataclass(frozen=True)
class Lookback(OnePole):
    """Lion's filter: m mixes the old average and the gradient by `beta`, while the average decays by `decay`."""

    beta: float = 0.9
    decay: float = 0.99
    betas = ("beta", "decay")

    def __post_init__(self) -> None:
        self._check("beta", 0, 1)
        self._check("decay", 0, 1)

    @property
    def pole(self) -> float:
        return self.decay

    def coefficients(self, t: StepCount) -> Coefficients:
        return Coefficients(self.decay, 1 - self.decay, self.beta, 1 - self.beta)


@dataclass(frozen=True)
class QuasiHyperbolic(OnePole):
    """m = ν·e + (1−ν)·g with e the bias-corrected average (Ma & Yarats 2019); RADAR's step is of this form."""

    beta: float = 0.999
    nu: float = 0.7
    bias_correction: bool | str = True
    betas = ("beta",)

    def __post_init__(self) -> None:
        self._check("beta", 0, 1)
        self._check("nu", 0)
        self._check_choice("bias_correction", BIAS_CORRECTIONS)

    @property
    def pole(self) -> float:
        return self.beta

    def coefficients(self, t: StepCount) -> Coefficients:
        beta, nu = self.beta, self.nu
        c = 1 - beta**t if self.bias_correction else 1.0
        return Coefficients(beta, 1 - beta, nu * beta / c, 1 - nu + nu * (1 - beta) / c)


@dataclass(frozen=True)
class ScheduledNesterov(Filter):
    """Dozat's NAdam as torch has it: μₜ = β·(1 − ½·0.96^(t·ψ)), and m looks ahead with μₜ₊₁."""

    beta: float = 0.9
    momentum_decay: float = 4e-3
    betas = ("beta",)

    def __post_init__(self) -> None:
        self._check("beta", 0, 1)
        self._check("momentum_decay", 0)

    @property
    def pole(self) -> float:
        return self.beta

    def buffers(self) -> dict[str, Initial]:
        return {"exp_avg": signed_zeros, "mu_product": scalar(1.0)}

    def mu(self, t: StepCount) -> Any:
        """The scheduled momentum of step t."""
        return self.beta * (1 - 0.5 * 0.96 ** (t * self.momentum_decay))

    def update(self, state: State, g: Tensor, t: StepCount) -> tuple[Tensor, Tensor]:
        mu, mu_next = self.mu(t), self.mu(t + 1)
        product = state["mu_product"].double() * mu
        state["mu_product"].copy_(product)
        g_weight = (1 - mu) / (1 - product)
        e_weight = mu_next / (1 - product * mu_next)
        decay, intake = self.beta, 1 - self.beta
        coefficients = Coefficients(decay, intake, e_weight * decay, g_weight + e_weight * intake)
        return _read_and_advance(state["exp_avg"], g, coefficients), g

    def transfer(self) -> Transfer:
        """After the product of all μ has vanished, m = μ·e + (1−μ)·g with the final μ of the schedule."""
        return QuasiHyperbolic(self.beta, self.mu(1e18)).transfer()  # not at infinity: ∞·0 if momentum_decay is 0


@dataclass(frozen=True)
class AdanPair(Filter):
    """Adan's two averages, of gradients and of their differences d; the geometry gets g + β₂·d (Xie et al. 2022)."""

    beta: float = 0.98
    beta_difference: float = 0.92
    bias_correction: bool | str = True
    betas = ("beta", "beta_difference")

    def __post_init__(self) -> None:
        self._check("beta", 0, 1)
        self._check("beta_difference", 0, 1)
        self._check_choice("bias_correction", BIAS_CORRECTIONS)

    @property
    def pole(self) -> float:
        return self.beta

    def buffers(self) -> dict[str, Initial]:
        return {"exp_avg": signed_zeros, "exp_avg_diff": signed_zeros, PREVIOUS_GRADIENT: first_gradient}

    def update(self, state: State, g: Tensor, t: StepCount) -> tuple[Tensor, Tensor]:
        beta, beta_d = self.beta, self.beta_difference
        difference = g - state[PREVIOUS_GRADIENT]
        average = state["exp_avg"].mul_(beta).add_(g, alpha=1 - beta)
        trend = state["exp_avg_diff"].mul_(beta_d).add_(difference, alpha=1 - beta_d)
        c1 = 1 - beta**t if self.bias_correction else 1.0
        c2 = 1 - beta_d**t if self.bias_correction else 1.0
        return mix(average, 1 / c1, trend, beta_d / c2), g + difference * beta_d

    def transfer(self) -> Transfer:
        """(1−β)/(1−βz⁻¹) + β₂·(1−β₂)(1−z⁻¹)/(1−β₂z⁻¹), over the common denominator."""
        beta, beta_d = self.beta, self.beta_difference
        weight = beta_d * (1 - beta_d)
        numerator = (1 - beta + weight, -(1 - beta) * beta_d - weight * (1 + beta), weight * beta)
        return Transfer(numerator, (1.0, -beta - beta_d, beta * beta_d))


@dataclass(frozen=True)
class TwoSpeed(Filter):
    """AdEMAMix's fast and slow average: m = e/(1−βᵗ) + α·s, s of decay β₃ (Pagliardini et al. 2024).

    `alpha_warmup` and `beta_slow_warmup` are numbers of steps, or None: over them α grows linearly from 0, and the time
    constant −1/ln β₃ of the slow average grows linearly from that of the fast one. A constant gradient becomes 1+α
    times as large. `normalized` divides m by 1+α, so that it is an average and g − m a residual.
    """

    beta: float = 0.9
    beta_slow: float = 0.9999
    alpha: float = 5.0
    alpha_warmup: int | None = None
    beta_slow_warmup: int | None = None
    normalized: bool = False
    bias_correction: bool = True
    betas = ("beta",)

    def __post_init__(self) -> None:
        self._check("beta", 0, 1)
        self._check("beta_slow", 0, 1)
        self._check("alpha", 0)
        for name in ("alpha_warmup", "beta_slow_warmup"):
            if getattr(self, name) is not None:
                self._check(name, 1, integer=True)
        self._check_choice("normalized", (True, False))
        self._check_choice("bias_correction", (True, False))

    @property
    def pole(self) -> float:
        return self.beta

    def buffers(self) -> dict[str, Initial]:
        return {"exp_avg": signed_zeros, "exp_avg_slow": zeros}

    def alpha_at(self, t: StepCount) -> Any:
        """α of step t."""
        return self.alpha if self.alpha_warmup is None else at_most(t / self.alpha_warmup, 1.0) * self.alpha

    def beta_slow_at(self, t: StepCount) -> Any:
        """β₃ of step t."""
        if self.beta_slow_warmup is None:
            return self.beta_slow
        fast, slow = _time_constant(self.beta), _time_constant(self.beta_slow)
        inverse = -1 / (at_most(t / self.beta_slow_warmup, 1.0) * (slow - fast) + fast)
        return math.exp(inverse) if isinstance(inverse, float) else inverse.exp()

    def update(self, state: State, g: Tensor, t: StepCount) -> tuple[Tensor, Tensor]:
        alpha, beta_slow = self.alpha_at(t), self.beta_slow_at(t)
        fast = state["exp_avg"].mul_(self.beta).add_(g, alpha=1 - self.beta)
        slow = state["exp_avg_slow"].mul_(beta_slow).add_(g * (1 - beta_slow))
        c = 1 - self.beta**t if self.bias_correction else 1.0
        total = 1 + alpha if self.normalized else 1.0
        return mix(fast, 1 / (c * total), slow, alpha / total), g

    def transfer(self) -> Transfer:
        """(1−β)/(1−βz⁻¹) + α·(1−β₃)/(1−β₃z⁻¹) over the common denominator, after both warm-ups."""
        beta, slow, alpha = self.beta, self.beta_slow, self.alpha
        total = 1 + alpha if self.normalized else 1.0
        newest = (1 - beta + alpha * (1 - slow)) / total
        previous = -((1 - beta) * slow + alpha * (1 - slow) * beta) / total
        return Transfer((newest, previous), (1.0, -beta - slow, beta * slow))


def _time_constant(beta: float) -> float:
    """−1/ln β: the number of steps in which an average forgets all but 1/e; nearly 0 for β = 0."""
    return -1 / math.log(max(beta, 1e-300))


@dataclass(frozen=True)
class VarianceReduced(Filter):
    """MARS: the average of a corrected gradient c, which the geometry observes as well (Yuan et al. 2024).

    c = g + γ·β/(1−β)·(g − g_prev), with g_prev = 0 at the start. With a `clip_norm`, a c of a larger norm is scaled to
    that norm, per tensor. Without it, m is the m of `GradientDifference(β, γ·β)`: RADAR's γ is MARS's times β.
    `bias_correction` is that of `GradientDifference`.
    """

    beta: float = 0.95
    gamma: float = 0.025
    clip_norm: float | None = None
    bias_correction: bool | str = True
    betas = ("beta",)

    def __post_init__(self) -> None:
        self._check("beta", 0, 1)
        self._check("gamma", 0)
        if self.clip_norm is not None:
            self._check("clip_norm", 0, open_low=True)
        self._check_choice("bias_correction", BIAS_CORRECTIONS)

    @property
    def pole(self) -> float:
        return self.beta

    def buffers(self) -> dict[str, Initial]:
        return {"exp_avg": signed_zeros, "last_grad": zeros}

    def update(self, state: State, g: Tensor, t: StepCount) -> tuple[Tensor, Tensor]:
        beta, weight = self.beta, self.gamma * self.beta / (1 - self.beta)
        corrected = mix(g, 1 + weight, state["last_grad"], -weight)
        state["last_grad"].copy_(g)  # not the step's `prev_grad`, which other parts start from the first gradient
        if self.clip_norm is not None:
            corrected = each(_limit_norm, corrected, self.clip_norm)
        average = state["exp_avg"].mul_(beta).add_(corrected, alpha=1 - beta)
        c: Any = 1 - beta**t if self.bias_correction else 1.0
        if self.bias_correction == "exact":
            c = c + self.gamma * beta**t
        return average / c, corrected

    def transfer(self) -> Transfer:
        """That of RADAR's filter, while no corrected gradient exceeds `clip_norm`."""
        return GradientDifference(self.beta, self.gamma * self.beta).transfer()


def _limit_norm(x: Tensor, largest: float) -> Tensor:
    return x / (over_all_ranks(x.norm()) / largest).clamp(min=1.0)
