"""Geometries of matrices: Muon, Muon accelerated, NorMuon and SOAP."""

from typing import Unpack, final

from torch.optim.optimizer import ParamsT

from aimopt.aim import AIM
from aimopt.optimizers.signatures import LR, Betas, numbers
from aimopt.parts.corrections import Direct, FixedPoint, MixThenMap
from aimopt.parts.filters import EMA, HeavyBall
from aimopt.parts.matrices import Eigenbasis, NormalizedSpectral, Spectral
from aimopt.parts.orthogonalization import QUINTIC, Quintic
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
        ns_coefficients: Quintic | str = QUINTIC,
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
        ns_coefficients: Quintic | str = QUINTIC,
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


@final
class NorMuon(AIM):
    """NorMuon (Li et al. 2025): Muon whose updates have rows of equal size on average; for hidden matrices."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 2e-2,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        beta2: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Quintic | str = QUINTIC,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        **keywords: Unpack[Keywords],
    ):
        super().__init__(
            params,
            lr,
            filter=HeavyBall(momentum, normalized=True),
            geometry=NormalizedSpectral(ns_steps, ns_coefficients, eps, adjust_lr_fn, beta2=beta2),
            correction=MixThenMap() if nesterov else Direct(),
            weight_decay=weight_decay,
            **keywords,
        )


@final
class SOAP(AIM):
    """SOAP (Vyas et al. 2024): Adam in the eigenbasis of Shampoo's factors, for matrices; see `Eigenbasis`."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 3e-3,
        betas: Betas = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        shampoo_beta: float | None = None,
        precondition_frequency: int = 10,
        max_side: int = 10_000,
        bias_correction: bool = True,
        **keywords: Unpack[Keywords],
    ):
        beta1, beta2 = numbers(betas, 2)
        geometry = Eigenbasis(
            beta2, eps, shampoo_beta, precondition_frequency, max_side, bias_correction=bias_correction
        )
        super().__init__(
            params,
            lr,
            filter=EMA(beta1, bias_correction),
            geometry=geometry,
            correction=Direct(),
            weight_decay=weight_decay,
            **keywords,
        )
