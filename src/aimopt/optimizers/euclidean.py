"""Euclidean geometry: stochastic gradient descent with momentum."""

from typing import Unpack, final

from torch.optim.optimizer import ParamsT

from aimopt.aim import AIM
from aimopt.optimizers.signatures import LR
from aimopt.parts.corrections import Direct, FixedPoint
from aimopt.parts.filters import HeavyBall
from aimopt.parts.geometries import Euclidean
from aimopt.step.options import Keywords


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
        **keywords: Unpack[Keywords],
    ):
        super().__init__(
            params,
            lr,
            filter=HeavyBall(momentum),
            geometry=Euclidean(),
            correction=Direct(),
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            **keywords,
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
        **keywords: Unpack[Keywords],
    ):
        super().__init__(
            params,
            lr,
            filter=HeavyBall(momentum),
            geometry=Euclidean(),
            correction=FixedPoint(),
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            **keywords,
        )
