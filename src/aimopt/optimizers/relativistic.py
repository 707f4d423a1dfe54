"""Relativistic geometry: RAD, and RADAR, the flagship."""

from typing import Unpack, final

from torch.optim.optimizer import ParamsT

from aimopt.aim import AIM
from aimopt.optimizers.signatures import LR, Betas, numbers
from aimopt.parts.corrections import Direct, FixedPoint
from aimopt.parts.filters import EMA, GradientDifference
from aimopt.parts.geometries import Relativistic, zeta_of_eps
from aimopt.step.options import Keywords

ZETA = 1e-16


def _zeta(zeta: float | None, eps: float | None) -> float | None:
    """ζ as given, or from AdamW's ε."""
    if eps is None:
        return zeta
    if zeta != ZETA:
        raise ValueError(f"zeta={zeta!r} and eps={eps!r} set the same value, zeta = eps²; give one of them")
    return zeta_of_eps(eps)


@final
class RADAR(AIM):
    """Relativistic adaptive gradient descent with accelerated residual (Ren, Lyu et al.; Algorithm 2).

    m ← β1·m + (1−β1)·g + γ·(g − g_prev),  v ← β2·v + (1−β2)·g²,  R = √(δ²·v + ζ),  θ ← θ − η·m/R − ℓ·(g − m)/R.
    The state is Adam's: no previous gradient is stored. Equivalently θ ← θ − η·(ν·e + (1−ν)·g)/R with the plain average
    e and ν = (1−ℓ/η)·(1−γ/β1), a quasi-hyperbolic momentum.

    Args:
        lr: η.
        betas: (β1, β2).
        eps: AdamW's ε, for a swap in one line: it sets zeta = eps².
        weight_decay: 0 by default, as in the paper; torch.optim.AdamW's default is 0.01. Write the value you want.
        amsgrad: use the largest v so far, as AdamW's.
        gamma: γ. The paper uses 0.1, and 0.01 for reinforcement learning and Qwen.
        ell: ℓ as a fixed number, as in the authors' code. None lets ℓ follow the learning rate.
        ell_ratio: ℓ = ell_ratio·η, if `ell` is None.
        delta: δ, the speed coefficient.
        zeta: ζ, the symplectic factor.
        bias_correction: True is the authors' code, "exact" also accounts for γ, False is exactly the paper.
    """

    later_keywords = (*AIM.later_keywords, "eps", "amsgrad")

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        betas: Betas = (0.9, 0.999),
        *,
        gamma: float = 0.1,
        ell: float | None = None,
        ell_ratio: float = 0.01,
        delta: float = 1.0,
        zeta: float = ZETA,
        eps: float | None = None,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = True,
        amsgrad: bool = False,
        bias_correction: bool | str = True,
        **keywords: Unpack[Keywords],
    ):
        beta1, beta2 = numbers(betas, 2)
        super().__init__(
            params,
            lr,
            filter=GradientDifference(beta1, gamma, bias_correction),
            geometry=Relativistic(beta2, delta, _zeta(zeta, eps), amsgrad=amsgrad, bias_correction=bias_correction),
            correction=FixedPoint(ell, ell_ratio),
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            **keywords,
        )


@final
class RAD(AIM):
    """Relativistic adaptive gradient descent (Lyu et al. 2024), as in pytorch-rad; annealing as in `Relativistic`."""

    later_keywords = (*AIM.later_keywords, "eps")

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        betas: Betas = (0.9, 0.999),
        *,
        delta: float = 1.0,
        order: int = 1,
        weight_decay: float = 0.0,
        zeta: float | None = ZETA,
        eps: float | None = None,
        max_iter: int | None = None,
        final_delta: float | None = None,
        amsgrad: bool = False,
        **keywords: Unpack[Keywords],
    ):
        beta1, beta2 = numbers(betas, 2)
        geometry = Relativistic(
            beta2, delta, _zeta(zeta, eps), order, amsgrad, debias_zeta=True, max_iter=max_iter, final_delta=final_delta
        )
        super().__init__(
            params,
            lr,
            filter=EMA(beta1),
            geometry=geometry,
            correction=Direct(),
            weight_decay=weight_decay,
            **keywords,
        )
