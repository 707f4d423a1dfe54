"""Decays: what pulls the parameters towards zero, or holds them at a norm.

A step is θ ← θ·(1−s) − d. A decay decides the shrinkage s; it may also change the gradient before the step, the
displacement d, or the point after the step. With λ = `weight_decay`:

    Decoupled       s = η·λ                                   AdamW, Muon, Lion
    Coupled         g ← g + λ·θ, before everything else       Adam, SGD: L2 regularization
    Proximal        θ ← θ/(1 + η·λ) after the step            Adan
    Independent     s = λ, whatever the learning rate is      Loshchilov & Hutter (2019), as written there
    Corrected       s = η²/η_peak·λ                           Defazio (2025): less decay as the learning rate falls
    CautiousDecay   s = η·λ where d and θ have one sign       Chen et al. (2025): the decay never opposes the step
    TrustRatio      d + η·λ·θ, scaled to the norm η·‖θ‖       LAMB (You et al. 2020)
    Sphere          ‖θ‖ stays what it was                     a constraint instead of a decay

The learning rate η is that of the step, so a schedule of the learning rate is one of the decay; a schedule of
`weight_decay` in the parameter group is one too.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aimopt.parts.component import Decay, Initial, State, is_zero, scalar
from aimopt.parts.tensor_list import each, over_all_ranks

Rate = float | Tensor
Terms = tuple[Tensor, float | Tensor | None]


@dataclass(frozen=True)
class Decoupled(Decay):
    """θ ← θ·(1 − η·λ), then the step."""

    def terms(self, p: Tensor, displacement: Tensor, rate: Rate, state: State) -> Terms:
        return displacement, None if is_zero(self.weight_decay) else rate * self.weight_decay


@dataclass(frozen=True)
class Coupled(Decay):
    """λ·θ is added to the gradient, so that it passes through the filter and the geometry: L2 regularization."""

    def gradient(self, g: Tensor, p: Tensor) -> Tensor:
        return g if is_zero(self.weight_decay) else g + p * self.weight_decay


@dataclass(frozen=True)
class Proximal(Decay):
    """The step, then θ ← θ/(1 + η·λ)."""

    affine = False
    projects = True

    def project(self, p: Tensor, rate: Rate, state: State) -> None:
        if not is_zero(self.weight_decay):
            p.div_(1 + rate * self.weight_decay)


@dataclass(frozen=True)
class Independent(Decay):
    """θ ← θ·(1 − λ), then the step: a decay that a change of the learning rate leaves alone."""

    def terms(self, p: Tensor, displacement: Tensor, rate: Rate, state: State) -> Terms:
        return displacement, None if is_zero(self.weight_decay) else self.weight_decay


@dataclass(frozen=True)
class Corrected(Decay):
    """θ ← θ·(1 − λ·η²/η_peak), then the step.

    A decoupled decay balances the step at a norm that depends on η; with this one, the norm does not depend on it, and
    gradients do not grow at the end of a schedule. `peak_lr` is the largest learning rate of the schedule; None is the
    largest one so far.
    """

    peak_lr: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.peak_lr is not None:
            self._check("peak_lr", 0, open_low=True)

    def buffers(self) -> dict[str, Initial]:
        return {"lr_peak": scalar(0.0)} if self.peak_lr is None else {}

    def terms(self, p: Tensor, displacement: Tensor, rate: Rate, state: State) -> Terms:
        if is_zero(self.weight_decay):
            return displacement, None
        peak: Any = self.peak_lr
        if peak is None:
            peak = state["lr_peak"].double().clamp(min=rate)
            state["lr_peak"].copy_(peak)
            peak = peak.clamp(min=1e-300)  # the learning rate may be 0 at first
        return displacement, rate * rate * self.weight_decay / peak


@dataclass(frozen=True)
class CautiousDecay(Decay):
    """θ ← θ·(1 − η·λ) only where the step, too, moves θ towards zero."""

    affine = False

    def terms(self, p: Tensor, displacement: Tensor, rate: Rate, state: State) -> Terms:
        if is_zero(self.weight_decay):
            return displacement, None
        return displacement, each(_agreement, displacement, p) * (rate * self.weight_decay)


def _agreement(displacement: Tensor, p: Tensor) -> Tensor:
    """1 where a displacement moves a parameter towards zero, otherwise 0, in the dtype of the parameter."""
    return torch.where(displacement * p >= 0, torch.ones_like(p), torch.zeros_like(p))


@dataclass(frozen=True)
class TrustRatio(Decay):
    """The displacement, decay included, is scaled to the norm η·‖θ‖, with ‖θ‖ at most `max_norm` (LAMB).

    A tensor without a norm, or a step without one, is not scaled. `max_norm=None` is no limit.
    """

    max_norm: float | None = 10.0
    affine = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_norm is not None:
            self._check("max_norm", 0, open_low=True)

    def terms(self, p: Tensor, displacement: Tensor, rate: Rate, state: State) -> Terms:
        shrinkage = rate * self.weight_decay
        total = displacement if is_zero(self.weight_decay) else displacement + p * shrinkage
        ratio = each(_trust_ratio, p, total, rate, self.max_norm)
        return displacement * ratio, None if is_zero(self.weight_decay) else ratio * shrinkage


def _trust_ratio(p: Tensor, displacement: Tensor, rate: Rate, max_norm: float | None) -> Tensor:
    norm, size = over_all_ranks(torch.linalg.vector_norm(p)), over_all_ranks(torch.linalg.vector_norm(displacement))
    if max_norm is not None:
        norm = norm.clamp(max=max_norm)
    return torch.where((norm > 0) & (size > 0), norm * rate / size, 1.0)


@dataclass(frozen=True)
class Sphere(Decay):
    """The parameters keep the norm that they have at the first step: of the whole tensor, or of each row.

    With `relative`, η is an angle: the displacement is first scaled to the norm η·‖θ‖, as in the hyperball optimizers
    (Wen et al. 2025). A tensor that is zero is not held.
    """

    per_row: bool = False
    relative: bool = True
    takes_coefficient = False
    affine = False
    projects = True

    def __post_init__(self) -> None:
        if self.weight_decay != 0:
            raise ValueError(f"Sphere holds the norm, so there is nothing to decay: got {self.weight_decay=!r}")
        self._check_choice("per_row", (True, False))
        self._check_choice("relative", (True, False))

    def buffers(self) -> dict[str, Initial]:
        return {"radius": Initial(self._norm, shaped=True, of_parameter=True)}

    def terms(self, p: Tensor, displacement: Tensor, rate: Rate, state: State) -> Terms:
        if not self.relative:
            return displacement, None
        return each(lambda d, radius: self._scaled(d, radius * rate), displacement, state["radius"]), None

    def project(self, p: Tensor, rate: Rate, state: State) -> None:
        p.copy_(each(self._scaled, p, state["radius"]))

    def _norm(self, x: Tensor) -> Tensor:
        dims = tuple(range(1, x.ndim)) if self.per_row and x.ndim > 1 else None
        norm: Tensor = over_all_ranks(torch.linalg.vector_norm(x, dim=dims, keepdim=True))
        return norm

    def _scaled(self, x: Tensor, norm: Tensor) -> Tensor:
        """The tensor x, scaled to this norm, unless one of the two norms is zero."""
        present = self._norm(x)
        return x * torch.where((norm > 0) & (present > 0), norm / present, 1.0)


# torch's keyword for the kind of decay, and its values as parts; "proximal" is Adan's.
DECOUPLED_KEY = "decoupled_weight_decay"
DECOUPLED: dict[Any, type[Decay]] = {True: Decoupled, False: Coupled, "proximal": Proximal}


def decay_kind(decoupled_weight_decay: Any) -> type[Decay]:
    """The decay that a value of torch's keyword stands for."""
    value = decoupled_weight_decay
    if not (isinstance(value, (bool, str)) and value in DECOUPLED):  # 1 == True, but only True is valid
        raise ValueError(f"{DECOUPLED_KEY} must be one of {list(DECOUPLED)}, got {value!r}")
    return DECOUPLED[value]


def chosen_decay(decay: Decay | None, weight_decay: float, decoupled_weight_decay: Any) -> Decay:
    """The decay that the keywords of a constructor choose. A coefficient of the decay itself comes first."""
    kind = decay_kind(decoupled_weight_decay)
    if decay is None:
        return kind(weight_decay)
    if decay.weight_decay != 0 or not decay.takes_coefficient:
        return decay
    return replace(decay, weight_decay=weight_decay)


def exported_kind(decay_name: Any) -> Any:
    """The value of torch's keyword for a decay, by the name of its class; None if torch has no such decay."""
    return next((value for value, kind in DECOUPLED.items() if kind.__name__ == decay_name), None)
