"""Tasks and optimizers that a user might bring: odd names, runs that diverge, runs that fail."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from aimopt.lab.tasks import Measure
from aimopt.lab.tasks.digits import Digits

NAME = "<script>alert(1)</script> & $x_1$ | 50%"


@dataclass(frozen=True, kw_only=True)
class Small(Digits):
    """Digits by a network that learns in a moment."""

    title: ClassVar[str] = "Digits, MLP (1k)"
    lr: float = 1e-2
    steps: int = 40
    search_steps: int = 20
    evaluate_every: int = 5
    log_every: int = 5
    warmup_steps: int = 4

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


@dataclass(frozen=True, kw_only=True)
class Accuracy(Small):
    """The same, of which the accuracy is reported, with results that a paper might have."""

    title: ClassVar[str] = NAME
    measure: ClassVar[Measure] = Measure("test_accuracy", "test accuracy", "higher")
    published: ClassVar[Mapping[str, tuple[float, float]]] = {
        "RADAR": (0.9, 0.01),
        "AdamW": (0.8, 0.02),
        "RAD": (0.7, 0.1),
    }
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": {}, "paper": {}}


class Explodes(torch.optim.SGD):
    """Diverges for about half of all seeds."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        weights = self.param_groups[0]["params"]
        if weights[0].flatten()[0] > 0:
            weights[0].fill_(float("nan"))


class Raises(torch.optim.SGD):
    """Fails at its first step."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        raise RuntimeError("out of luck")
