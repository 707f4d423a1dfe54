"""The spectral norm: Muon, and Muon accelerated."""

from typing import Unpack, final

from torch.optim.optimizer import ParamsT

from aimopt.aim import AIM
from aimopt.optimizers.signatures import LR
from aimopt.parts.corrections import Direct, FixedPoint, MixThenMap
from aimopt.parts.filters import HeavyBall
from aimopt.parts.geometries import QUINTIC, Spectral
from aimopt.step.options import Keywords


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
        **keywords: Unpack[Keywords],
    ):
        super().__init__(
            params,
            lr,
            filter=HeavyBall(momentum, normalized=True),
            geometry=Spectral(ns_steps, ns_coefficients, eps, adjust_lr_fn),
            correction=MixThenMap() if nesterov else Direct(),
            weight_decay=weight_decay,
            **keywords,
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
        **keywords: Unpack[Keywords],
    ):
        super().__init__(
            params,
            lr,
            filter=HeavyBall(momentum, normalized=True),
            geometry=Spectral(ns_steps, ns_coefficients, eps, adjust_lr_fn),
            correction=FixedPoint(ell, ell_ratio),
            weight_decay=weight_decay,
            **keywords,
        )
