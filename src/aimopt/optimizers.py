"""The named optimizers: each only picks a filter, a geometry and a correction.

    optimizer        filter               geometry       correction
    SGDM             HeavyBall            Euclidean      Direct
    Nesterov         HeavyBall            Euclidean      FixedPoint
    Adam, AdamW      EMA                  Adaptive       Direct
    NAdam            ScheduledNesterov    Adaptive       Direct           torch's, with scheduled μ
    ConstantNAdam    EMA                  Adaptive       FixedPoint       the paper's, with constant β1
    QHAdam           QuasiHyperbolic      Adaptive       Direct
    Adan             AdanPair             Adaptive       Direct
    AdaBelief        EMA                  Belief         Direct
    RAD              EMA                  Relativistic   Direct
    RADAR            GradientDifference   Relativistic   FixedPoint
    Lion             Lookback             Sign           Direct
    AcceleratedLion  Lookback             Sign           FixedPoint       open in the paper
    Muon             HeavyBall            Spectral       MixThenMap       Direct without Nesterov momentum
    AcceleratedMuon  HeavyBall            Spectral       FixedPoint       open in the paper

`create("radar", model, lr=1e-3)` builds one by name; all take the keywords of `Execution` too.
"""

import difflib
from collections.abc import Iterable
from typing import Any, Unpack, final

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from aimopt.aim import AIM, Execution
from aimopt.corrections import Direct, FixedPoint, MixThenMap
from aimopt.filters import EMA, AdanPair, GradientDifference, HeavyBall, Lookback, QuasiHyperbolic, ScheduledNesterov
from aimopt.geometries import Adaptive, Belief, Euclidean, Relativistic, Sign, Spectral

LR = float | Tensor
Betas = tuple[float, float]
QUINTIC = (3.4445, -4.7750, 2.0315)


@final
class RADAR(AIM):
    """Relativistic adaptive gradient descent with accelerated residual (Ren, Lyu et al.; Algorithm 2).

    m ← β1·m + (1−β1)·g + γ·(g − g_prev),  v ← β2·v + (1−β2)·g²,  R = √(δ²·v + ζ),  θ ← θ − η·m/R − ℓ·(g − m)/R.
    The state is Adam's: no previous gradient is stored. Equivalently θ ← θ − η·(ν·e + (1−ν)·g)/R with the plain average
    e and ν = (1−ℓ/η)·(1−γ/β1), a quasi-hyperbolic momentum.

    Args:
        lr: η.
        betas: (β1, β2).
        gamma: γ, 0.1 in the paper, 0.01 there for reinforcement learning and Qwen.
        ell: ℓ as a fixed number, as in the authors' code; None lets it follow the learning rate,
        ell_ratio: ℓ = ell_ratio·η.
        delta: δ, the speed coefficient.
        zeta: ζ, the symplectic factor.
        bias_correction: True is the authors' code, "exact" also accounts for γ, False is the paper to the letter.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        betas: Betas = (0.9, 0.999),
        gamma: float = 0.1,
        *,
        ell: float | None = None,
        ell_ratio: float = 0.01,
        delta: float = 1.0,
        zeta: float = 1e-16,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = True,
        bias_correction: bool | str = True,
        **execution: Unpack[Execution],
    ):
        beta1, beta2 = _numbers(betas, 2)
        super().__init__(
            params,
            lr,
            filter=GradientDifference(beta1, gamma, bias_correction),
            geometry=Relativistic(beta2, delta, zeta, bias_correction=bias_correction),
            correction=FixedPoint(ell, ell_ratio),
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            **execution,
        )


@final
class RAD(AIM):
    """Relativistic adaptive gradient descent (Lyu et al. 2024), as in pytorch-rad; annealing as in `Relativistic`."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        betas: Betas = (0.9, 0.999),
        delta: float = 1.0,
        order: int = 1,
        weight_decay: float = 0.0,
        *,
        zeta: float | None = 1e-16,
        max_iter: int | None = None,
        final_delta: float | None = None,
        amsgrad: bool = False,
        **execution: Unpack[Execution],
    ):
        beta1, beta2 = _numbers(betas, 2)
        geometry = Relativistic(
            beta2, delta, zeta, order, amsgrad, debias_zeta=True, max_iter=max_iter, final_delta=final_delta
        )
        super().__init__(
            params,
            lr,
            filter=EMA(beta1),
            geometry=geometry,
            correction=Direct(),
            weight_decay=weight_decay,
            **execution,
        )


@final
class SGDM(AIM):
    """Stochastic gradient descent with heavy-ball momentum, as torch.optim.SGD(momentum=…)."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        decoupled_weight_decay: bool = False,
        **execution: Unpack[Execution],
    ):
        super().__init__(
            params,
            lr,
            filter=HeavyBall(momentum),
            geometry=Euclidean(),
            correction=Direct(),
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            **execution,
        )


@final
class Nesterov(AIM):
    """Nesterov momentum, as torch.optim.SGD(nesterov=True): the fixed-point step with ℓ = (1−μ)·η over SGDM."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        decoupled_weight_decay: bool = False,
        **execution: Unpack[Execution],
    ):
        super().__init__(
            params,
            lr,
            filter=HeavyBall(momentum),
            geometry=Euclidean(),
            correction=FixedPoint(),
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            **execution,
        )


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
        **execution: Unpack[Execution],
    ):
        beta1, beta2 = _numbers(betas, 2)
        super().__init__(
            params,
            lr,
            filter=EMA(beta1),
            geometry=Adaptive(beta2, eps, amsgrad),
            correction=Direct(),
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            **execution,
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
        **execution: Unpack[Execution],
    ):
        beta1, beta2 = _numbers(betas, 2)
        geometry = Adaptive(beta2, eps, amsgrad)
        super().__init__(
            params,
            lr,
            filter=EMA(beta1),
            geometry=geometry,
            correction=Direct(),
            weight_decay=weight_decay,
            **execution,
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
        **execution: Unpack[Execution],
    ):
        beta1, beta2 = _numbers(betas, 2)
        super().__init__(
            params,
            lr,
            filter=ScheduledNesterov(beta1, momentum_decay),
            geometry=Adaptive(beta2, eps),
            correction=Direct(),
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            **execution,
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
        **execution: Unpack[Execution],
    ):
        beta1, beta2 = _numbers(betas, 2)
        super().__init__(
            params,
            lr,
            filter=EMA(beta1, bias_correction),
            geometry=Adaptive(beta2, eps, bias_correction=bias_correction),
            correction=FixedPoint(),
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            **execution,
        )


@final
class QHAdam(AIM):
    """Quasi-hyperbolic Adam (Ma & Yarats 2019), as in qhoptim; in the long run RADAR is one, see there."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        betas: Betas = (0.9, 0.999),
        nus: tuple[float, float] = (1.0, 1.0),
        weight_decay: float = 0.0,
        decouple_weight_decay: bool = False,
        eps: float = 1e-8,
        **execution: Unpack[Execution],
    ):
        beta1, beta2 = _numbers(betas, 2)
        nu1, nu2 = _numbers(nus, 2, "nus")
        super().__init__(
            params,
            lr,
            filter=QuasiHyperbolic(beta1, nu1),
            geometry=Adaptive(beta2, eps, nu2=nu2),
            correction=Direct(),
            weight_decay=weight_decay,
            decoupled_weight_decay=decouple_weight_decay,
            **execution,
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
        **execution: Unpack[Execution],
    ):
        beta1, beta2, beta3 = _numbers(betas, 3)
        super().__init__(
            params,
            lr,
            filter=AdanPair(beta1, beta2),
            geometry=Adaptive(beta3, eps),
            correction=Direct(),
            weight_decay=weight_decay,
            decoupled_weight_decay=True if no_prox else "proximal",
            **execution,
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
        **execution: Unpack[Execution],
    ):
        beta1, beta2 = _numbers(betas, 2)
        super().__init__(
            params,
            lr,
            filter=EMA(beta1),
            geometry=Belief(beta2, eps, amsgrad, rectify),
            correction=Direct(),
            weight_decay=weight_decay,
            decoupled_weight_decay=weight_decouple,
            **execution,
        )


@final
class Lion(AIM):
    """Lion (Chen et al. 2023), as in lion-pytorch."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-4,
        betas: Betas = (0.9, 0.99),
        weight_decay: float = 0.0,
        **execution: Unpack[Execution],
    ):
        super().__init__(
            params,
            lr,
            filter=Lookback(*_numbers(betas, 2)),
            geometry=Sign(),
            correction=Direct(),
            weight_decay=weight_decay,
            **execution,
        )


@final
class AcceleratedLion(AIM):
    """Lion with one fixed-point step, θ ← θ − η·sign(m) − ℓ·sign(g − m): an open cell of the paper's table."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-4,
        betas: Betas = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        ell: float | None = None,
        ell_ratio: float | None = None,
        **execution: Unpack[Execution],
    ):
        super().__init__(
            params,
            lr,
            filter=Lookback(*_numbers(betas, 2)),
            geometry=Sign(),
            correction=FixedPoint(ell, ell_ratio),
            weight_decay=weight_decay,
            **execution,
        )


@final
class Muon(AIM):
    """Muon (Jordan et al. 2024) as torch.optim.Muon, for hidden matrices; convolution kernels are flattened."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = QUINTIC,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        **execution: Unpack[Execution],
    ):
        super().__init__(
            params,
            lr,
            filter=HeavyBall(momentum, normalized=True),
            geometry=Spectral(ns_steps, ns_coefficients, eps, adjust_lr_fn),
            correction=MixThenMap() if nesterov else Direct(),
            weight_decay=weight_decay,
            **execution,
        )


@final
class AcceleratedMuon(AIM):
    """Muon with one fixed-point step, Θ ← Θ − η·Orth(M) − ℓ·Orth(G − M): an open cell of the paper's table."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        *,
        ell: float | None = None,
        ell_ratio: float | None = None,
        ns_coefficients: tuple[float, float, float] = QUINTIC,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        **execution: Unpack[Execution],
    ):
        super().__init__(
            params,
            lr,
            filter=HeavyBall(momentum, normalized=True),
            geometry=Spectral(ns_steps, ns_coefficients, eps, adjust_lr_fn),
            correction=FixedPoint(ell, ell_ratio),
            weight_decay=weight_decay,
            **execution,
        )


NAMED: tuple[type[AIM], ...] = (
    RADAR,
    RAD,
    SGDM,
    Nesterov,
    Adam,
    AdamW,
    NAdam,
    ConstantNAdam,
    QHAdam,
    Adan,
    AdaBelief,
    Lion,
    Muon,
    AcceleratedLion,
    AcceleratedMuon,
)


def available() -> list[str]:
    """The names `create` knows."""
    return [optimizer.__name__ for optimizer in NAMED]


def create(name: str, model_or_params: torch.nn.Module | ParamsT, **hyperparameters: Any) -> AIM:
    """Build an optimizer by the name papers give it, in any case: `create("radar", model, lr=1e-3)`.

    A model stands for its trainable named parameters.
    """
    by_key = {_key(optimizer.__name__): optimizer for optimizer in NAMED}
    if _key(name) not in by_key:
        close = difflib.get_close_matches(_key(name), by_key, n=1)
        hint = f"did you mean {by_key[close[0]].__name__!r}?" if close else f"known are {', '.join(available())}"
        raise ValueError(f"no optimizer is called {name!r}; {hint}")
    params = model_or_params
    if isinstance(params, torch.nn.Module):
        params = [(n, p) for n, p in params.named_parameters() if p.requires_grad]
    optimizer: Any = by_key[_key(name)]
    return optimizer(params, **hyperparameters)


def _key(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def _numbers(values: Any, count: int, name: str = "betas") -> tuple[float, ...]:
    if not isinstance(values, Iterable) or len(numbers := tuple(values)) != count:
        raise ValueError(f"{name} must be {count} numbers, got {values!r}")
    return numbers
