"""Diagnostics: what an optimizer is doing, on the side.

    watch = aimopt.watch(optimizer)                            after a step: watch.read()
    aimopt.log_to(optimizer, writer.add_scalar, every=100)     TensorBoard, or anything that takes (tag, value, step)

Per parameter group: the residual norm ‖g−m‖, the cosine of g and m, the norm of the update, the effective step
‖Δθ‖/‖m‖, the relative update ‖Δθ‖/‖θ‖, and the weight ν of the average in the quasi-hyperbolic reading ν·e + (1−ν)·g.
The sums stay on the device; only reading them waits for it.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from aimopt.filters import OnePole
from aimopt.tensors import inner

if TYPE_CHECKING:
    from aimopt.aim import AIM
    from aimopt.moves import Move


class Diagnostics:
    """The sums of the last observed step, per parameter group."""

    def __init__(self, every: int = 1):
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every!r}")
        self.every = every
        self.steps = 0
        self.active = False
        self._sums: list[list[Tensor]] = []
        self._nu: list[float | None] = []

    def begin(self, groups: int) -> None:
        """Called by the optimizer before a step: forget the last one if this one is to be observed."""
        self.steps += 1
        self.active = self.steps % self.every == 0
        if self.active:
            self._sums = [[] for _ in range(groups)]
            self._nu = [None] * groups

    def record(self, group: int, move: "Move", displacement: Tensor) -> None:
        """Called by the optimizer after a move."""
        if not self.active:
            return
        with torch.no_grad():
            g, m, residual = move.g, move.m, move.g - move.m
            pairs = (residual, residual), (g, g), (m, m), (g, m), (displacement, displacement), (move.p, move.p)
            sums = torch.stack([inner(x, y).detach() for x, y in pairs])
        self._sums[group].append(sums)
        filter, _, correction = move.parts
        if isinstance(filter, OnePole) and not isinstance(move.lr, Tensor) and move.lr:
            self._nu[group] = filter.average_weight * (1 - float(correction.ratio(move.lr, filter.pole)))

    def read(self) -> list[dict[str, float]]:
        """The figures of the last observed step, a dict per group; empty before it, or where no parameter moved."""
        return [self._figures(sums, nu) for sums, nu in zip(self._sums, self._nu, strict=True)]

    @staticmethod
    def _figures(parts: list[Tensor], nu: float | None) -> dict[str, float]:
        if not parts:
            return {}
        total = torch.stack([x.double().cpu() for x in parts]).sum(0).tolist()
        residual, gg, mm, gm, update, parameter = total
        figures = {
            "residual_norm": math.sqrt(residual),
            "cosine": _ratio(gm, math.sqrt(gg * mm)),
            "update_norm": math.sqrt(update),
            "effective_step": _ratio(math.sqrt(update), math.sqrt(mm)),
            "relative_update": _ratio(math.sqrt(update), math.sqrt(parameter)),
        }
        return figures if nu is None else {**figures, "nu": nu}


def _ratio(x: float, y: float) -> float:
    return x / y if y else math.nan


def watch(optimizer: "AIM", every: int = 1) -> Diagnostics:
    """Let `optimizer` record the figures of every so-many-th step; `optimizer.diagnostics = None` ends it."""
    optimizer.diagnostics = Diagnostics(every)
    return optimizer.diagnostics


def log_to(optimizer: "AIM", log: Callable[[str, float, int], Any], every: int = 100) -> RemovableHandle:
    """Call `log(tag, value, step)` for every figure of every `every`-th step; remove the returned handle to stop."""
    observed = watch(optimizer, every)

    def after_step(*_: Any) -> None:
        if observed.active:
            for index, figures in enumerate(observed.read()):
                for name, value in figures.items():
                    log(f"optimizer/group{index}/{name}", value, observed.steps)

    return optimizer.register_step_post_hook(after_step)
