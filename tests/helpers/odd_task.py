"""Tasks and optimizers that a user might bring: odd names, runs that diverge."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn

from aimopt.lab import Measure, PublishedTable, TaskEntry, same_options
from aimopt.paper.protocols import PROTOCOL
from aimopt.paper.tasks.digits import Digits

NAME = "<script>alert(1)</script> & $x_1$ | 50%"


@dataclass(frozen=True, kw_only=True)
class Small(Digits):
    """Digits by a network that learns in a moment."""

    title: ClassVar[str] = "Digits, MLP (1k)"
    lr: float = 1e-2
    steps: int = 40
    evaluate_every: int = 5
    log_every: int = 5
    warmup_steps: int = 4

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


@dataclass(frozen=True, kw_only=True)
class Accuracy(Small):
    """The same, but the accuracy is reported, and there are published results."""

    title: ClassVar[str] = NAME
    measure: ClassVar[Measure] = Measure("test_accuracy", "test accuracy", "higher")
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": {}, "full": {}}


DEMO = replace(PROTOCOL, options=same_options(weight_decay=5e-5), search_steps=20)
PUBLISHED = PublishedTable(
    source="the manual",
    scale="full",
    results={"RADAR": (0.9, 0.01), "AdamW": (0.8, 0.02), "RAD": (0.7, 0.1)},
)
SMALL = TaskEntry(task=Small, protocols={"demo": DEMO})
ACCURACY = TaskEntry(task=Accuracy, protocols=dict.fromkeys(("demo", "full"), replace(DEMO, published=PUBLISHED)))


class Explodes(torch.optim.SGD):
    """Diverges for about half of all seeds."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        weights = self.param_groups[0]["params"]
        if weights[0].flatten()[0] > 0:
            weights[0].fill_(float("nan"))
