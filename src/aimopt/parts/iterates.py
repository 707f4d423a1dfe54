"""Iterates: which sequence of points the steps make, and at which of its points the model is evaluated.

    Last            the parameters themselves                          nearly every optimizer
    Average         an exponential average of them, for evaluation     EMA of weights
    ScheduleFree    steps move z, gradients are taken at y between     Defazio et al. (2024)
                    z and its average x, which is evaluated
    Lookahead       every k steps, go back to a part of the way        Zhang et al. (2019)

`optimizer.eval()` puts the parameters to the point of evaluation, and `optimizer.train()` back to the bit.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from aimopt.parts.component import Descent, Filter, Initial, Iterate, State, StepCount, first_parameter, scalar
from aimopt.parts.filters import EMA, Unfiltered
from aimopt.parts.tensor_list import at_most, is_multiple, mix


@dataclass(frozen=True)
class Last(Iterate):
    """The parameters themselves."""

    def as_filter(self) -> Filter:
        return Unfiltered()


@dataclass(frozen=True)
class Average(Iterate):
    """ā ← ρ·ā + (1−ρ)·θ after every step, from the first θ on; ā is evaluated. ρ is `average_decay`."""

    average_decay: float = 0.999

    def __post_init__(self) -> None:
        self._check("average_decay", 0, 1)

    def buffers(self) -> dict[str, Initial]:
        return {"average": first_parameter}

    def observe(self, state: State, p: Tensor, t: StepCount) -> None:
        state["average"].mul_(self.average_decay).add_(p, alpha=1 - self.average_decay)

    def evaluation_point(self, state: State, p: Tensor) -> Tensor:
        return state["average"]

    def as_filter(self) -> Filter:
        return EMA(self.average_decay, bias_correction=False)


@dataclass(frozen=True)
class ScheduleFree(Iterate):
    """No schedule of the learning rate: z takes the steps, x averages z, and the parameters are y = (1−β)·z + β·x.

    z ← z − d,  x ← (1−c)·x + c·z  with c = w/Σw and w = tʳ·η_max^`weight_power`; β is `interpolation`. x is evaluated.
    It is not stored, because y and z determine it. The learning rate grows linearly over the first `warmup_steps`. Use
    it with a filter that has no momentum: β has its role.
    """

    interpolation: float = 0.9
    warmup_steps: int = 0
    weight_power: float = 2.0
    r: float = 0.0
    moves_elsewhere: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._check("interpolation", 0, 1, open_low=True)
        self._check("warmup_steps", 0, integer=True)
        self._check("weight_power", 0)
        self._check("r", 0)

    def buffers(self) -> dict[str, Initial]:
        return {"z": first_parameter, "lr_max": scalar(0.0), "weight_sum": scalar(0.0)}

    def descend(self, step: Descent) -> None:
        y, z, beta = step.p, step.state["z"], self.interpolation
        warmup: Any = at_most(step.t / self.warmup_steps, 1.0) if self.warmup_steps else 1.0
        c = self._next_weight(step.state, step.rate * warmup, step.t)
        d = step.displacement if step.shrinkage is None else step.displacement + y * step.shrinkage
        d = d * warmup
        y.add_((z - y) * c).sub_(d * (1 - (1 - c) * beta))
        z.sub_(d)

    def _next_weight(self, state: State, rate: Any, t: StepCount) -> Any:
        """The weight c of the newest z in x."""
        lr_max = state["lr_max"].double().clamp(min=rate)
        weight = lr_max**self.weight_power * t**self.r
        weight_sum = state["weight_sum"].double() + weight
        state["lr_max"].copy_(lr_max)
        state["weight_sum"].copy_(weight_sum)
        return weight / weight_sum.clamp(min=1e-300)  # 0 while the learning rate is 0

    def evaluation_point(self, state: State, p: Tensor) -> Tensor:
        return mix(p, 1 / self.interpolation, state["z"], 1 - 1 / self.interpolation)


@dataclass(frozen=True)
class Lookahead(Iterate):
    """Every k steps the slow weights φ move towards the parameters, φ ← φ + α·(θ − φ), and θ starts again from φ.

    k is `sync_steps`, α is `slow_step`.
    """

    sync_steps: int = 5
    slow_step: float = 0.5

    def __post_init__(self) -> None:
        self._check("sync_steps", 1, integer=True)
        self._check("slow_step", 0, 1, open_low=True, closed=True)

    def buffers(self) -> dict[str, Initial]:
        return {"slow": first_parameter}

    def observe(self, state: State, p: Tensor, t: StepCount) -> None:
        sync = is_multiple(t, self.sync_steps)  # 1 or 0, so that the step has no branch
        slow = state["slow"]
        slow.add_((p - slow) * (sync * self.slow_step))
        p.copy_(mix(p, 1 - sync, slow, sync))

    def as_filter(self) -> Filter:
        return Unfiltered()
