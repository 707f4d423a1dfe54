"""Adam's geometry and its relatives."""

from typing import Unpack, final

from torch.optim.optimizer import ParamsT

from aimopt.aim import AIM
from aimopt.optimizers.signatures import LR, Betas, numbers
from aimopt.parts.corrections import Cautious, Direct, FixedPoint
from aimopt.parts.decays import TrustRatio
from aimopt.parts.filters import (
    EMA,
    AdanPair,
    QuasiHyperbolic,
    ScheduledNesterov,
    TwoSpeed,
    Unfiltered,
    VarianceReduced,
)
from aimopt.parts.geometries import Adaptive, Belief
from aimopt.parts.iterates import ScheduleFree
from aimopt.step.options import Execution, Keywords


@final
class Adam(AIM):
    """Adam (Kingma & Ba 2015), as torch.optim.Adam."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        decoupled_weight_decay: bool = False,
        **keywords: Unpack[Keywords],
    ):
        beta1, beta2 = numbers(betas, 2)
        super().__init__(
            params,
            lr,
            filter=EMA(beta1),
            geometry=Adaptive(beta2, eps, amsgrad),
            correction=Direct(),
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            **keywords,
        )


@final
class AdamW(AIM):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), as torch.optim.AdamW."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **keywords: Unpack[Keywords],
    ):
        beta1, beta2 = numbers(betas, 2)
        geometry = Adaptive(beta2, eps, amsgrad)
        super().__init__(
            params,
            lr,
            filter=EMA(beta1),
            geometry=geometry,
            correction=Direct(),
            weight_decay=weight_decay,
            **keywords,
        )


@final
class NAdam(AIM):
    """NAdam (Dozat 2016) as torch.optim.NAdam, with its schedule of μ; `ConstantNAdam` is the paper's simpler rule."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 2e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        **keywords: Unpack[Keywords],
    ):
        beta1, beta2 = numbers(betas, 2)
        super().__init__(
            params,
            lr,
            filter=ScheduledNesterov(beta1, momentum_decay),
            geometry=Adaptive(beta2, eps),
            correction=Direct(),
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            **keywords,
        )


@final
class ConstantNAdam(AIM):
    """NAdam as the paper derives it: Adam with one fixed-point step of ℓ = (1−β1)·η, and no schedule of μ."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 2e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        bias_correction: bool = True,
        **keywords: Unpack[Keywords],
    ):
        beta1, beta2 = numbers(betas, 2)
        super().__init__(
            params,
            lr,
            filter=EMA(beta1, bias_correction),
            geometry=Adaptive(beta2, eps, bias_correction=bias_correction),
            correction=FixedPoint(),
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            **keywords,
        )


@final
class QHAdam(AIM):
    """Quasi-hyperbolic Adam (Ma & Yarats 2019), as in qhoptim. RADAR is one after bias correction has faded."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        betas: Betas = (0.9, 0.999),
        nus: tuple[float, float] = (1.0, 1.0),
        weight_decay: float = 0.0,
        decouple_weight_decay: bool = False,
        eps: float = 1e-8,
        **keywords: Unpack[Keywords],
    ):
        beta1, beta2 = numbers(betas, 2)
        nu1, nu2 = numbers(nus, 2, "nus")
        super().__init__(
            params,
            lr,
            filter=QuasiHyperbolic(beta1, nu1),
            geometry=Adaptive(beta2, eps, nu2=nu2),
            correction=Direct(),
            weight_decay=weight_decay,
            decoupled_weight_decay=decouple_weight_decay,
            **keywords,
        )


@final
class Adan(AIM):
    """Adan (Xie et al. 2022); weight decay is proximal, or with `no_prox` as in AdamW."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        betas: tuple[float, float, float] = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        no_prox: bool = False,
        **keywords: Unpack[Keywords],
    ):
        beta1, beta2, beta3 = numbers(betas, 3)
        super().__init__(
            params,
            lr,
            filter=AdanPair(beta1, beta2),
            geometry=Adaptive(beta3, eps),
            correction=Direct(),
            weight_decay=weight_decay,
            decoupled_weight_decay=True if no_prox else "proximal",
            **keywords,
        )


@final
class AdaBelief(AIM):
    """AdaBelief (Zhuang et al. 2020), as in adabelief-pytorch."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-16,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        weight_decouple: bool = True,
        *,
        rectify: bool = True,
        **keywords: Unpack[Keywords],
    ):
        beta1, beta2 = numbers(betas, 2)
        super().__init__(
            params,
            lr,
            filter=EMA(beta1),
            geometry=Belief(beta2, eps, amsgrad, rectify),
            correction=Direct(),
            weight_decay=weight_decay,
            decoupled_weight_decay=weight_decouple,
            **keywords,
        )


@final
class LAMB(AIM):
    """LAMB (You et al. 2020): Adam's direction, decay included, scaled per tensor to the norm lr·‖θ‖."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        max_norm: float | None = 10.0,
        *,
        bias_correction: bool = True,
        **execution: Unpack[Execution],
    ):
        beta1, beta2 = numbers(betas, 2)
        super().__init__(
            params,
            lr,
            filter=EMA(beta1, bias_correction),
            geometry=Adaptive(beta2, eps, bias_correction=bias_correction),
            correction=Direct(),
            decay=TrustRatio(weight_decay, max_norm),
            **execution,
        )


@final
class ScheduleFreeAdamW(AIM):
    """Schedule-free AdamW (Defazio et al. 2024), as in the package schedulefree; call `eval()` before evaluation.

    betas are (interpolation, β2). After `optimizer.eval()` the parameters are the averaged ones; call `train()` before
    the next step. Training begins in train mode.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 2.5e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        **execution: Unpack[Execution],
    ):
        interpolation, beta2 = numbers(betas, 2)
        super().__init__(
            params,
            lr,
            filter=Unfiltered(),
            geometry=Adaptive(beta2, eps),
            correction=Direct(),
            weight_decay=weight_decay,
            iterate=ScheduleFree(interpolation, warmup_steps, weight_lr_power, r),
            **execution,
        )


@final
class AdEMAMix(AIM):
    """AdEMAMix (Pagliardini et al. 2024): AdamW with a fast and a slow average of gradients.

    Args:
        lr: η.
        betas: (β1, β2, β3): of the fast average, the squares and the slow average. A group stores (β1, β2) as `betas`
            and β3 as `beta_slow`.
        alpha: α, the weight of the slow average.
        alpha_warmup: the number of steps over which α grows from 0, or None; the paper uses the length of the run.
        beta3_warmup: the number of steps over which β3 grows from β1, or None; likewise. A group: `beta_slow_warmup`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        *,
        alpha: float = 5.0,
        alpha_warmup: int | None = None,
        beta3_warmup: int | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **keywords: Unpack[Keywords],
    ):
        beta1, beta2, beta3 = numbers(betas, 3)
        super().__init__(
            params,
            lr,
            filter=TwoSpeed(beta1, beta3, alpha, alpha_warmup, beta3_warmup),
            geometry=Adaptive(beta2, eps),
            correction=Direct(),
            weight_decay=weight_decay,
            **keywords,
        )


@final
class MARS(AIM):
    """MARS-AdamW (Yuan et al. 2024): AdamW on a variance-reduced gradient, with the approximate g − g_prev.

    RADAR's γ is MARS's times β1. The authors use MARS for matrices, and AdamW for vectors: `aimopt.groups`.

    Args:
        lr: η.
        betas: (β1, β2).
        gamma: γ, the strength of the correction.
        clip_norm: the largest norm of a corrected gradient, per tensor. None does not limit it, and the step is fused.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 3e-3,
        betas: Betas = (0.95, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        gamma: float = 0.025,
        clip_norm: float | None = 1.0,
        **keywords: Unpack[Keywords],
    ):
        beta1, beta2 = numbers(betas, 2)
        super().__init__(
            params,
            lr,
            filter=VarianceReduced(beta1, gamma, clip_norm),
            geometry=Adaptive(beta2, eps, amsgrad, debias_eps=True),
            correction=Direct(),
            weight_decay=weight_decay,
            **keywords,
        )


@final
class CautiousAdamW(AIM):
    """C-AdamW (Liang et al. 2024): AdamW that moves only where the step descends.

    Args:
        lr: η.
        betas: (β1, β2).
        rescale: "mean" as the authors' code, "count" as their paper, False not at all: then the step is fused.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        rescale: bool | str = "mean",
        **keywords: Unpack[Keywords],
    ):
        beta1, beta2 = numbers(betas, 2)
        super().__init__(
            params,
            lr,
            filter=EMA(beta1),
            geometry=Adaptive(beta2, eps, amsgrad),
            correction=Cautious(Direct(), rescale),
            weight_decay=weight_decay,
            **keywords,
        )
