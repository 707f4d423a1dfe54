"""The infinity norm: Lion, and Lion accelerated."""

from typing import Unpack, final

from torch.optim.optimizer import ParamsT

from aimopt.aim import AIM
from aimopt.optimizers.signatures import LR, Betas, numbers
from aimopt.parts.corrections import Direct, FixedPoint
from aimopt.parts.filters import Lookback
from aimopt.parts.geometries import Sign
from aimopt.step.options import Keywords


@final
class Lion(AIM):
    """Lion (Chen et al. 2023), as in lion-pytorch."""

    def __init__(
        self,
        params: ParamsT,
        lr: LR = 1e-4,
        betas: Betas = (0.9, 0.99),
        weight_decay: float = 0.0,
        **keywords: Unpack[Keywords],
    ):
        super().__init__(
            params,
            lr,
            filter=Lookback(*numbers(betas, 2)),
            geometry=Sign(),
            correction=Direct(),
            weight_decay=weight_decay,
            **keywords,
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
        **keywords: Unpack[Keywords],
    ):
        super().__init__(
            params,
            lr,
            filter=Lookback(*numbers(betas, 2)),
            geometry=Sign(),
            correction=FixedPoint(ell, ell_ratio),
            weight_decay=weight_decay,
            **keywords,
        )
