"""A move: some parameters of one group on their way from θ to θ⁺.

`Move` is the step of the package, for one tensor or, as a `TensorList`, for all tensors of a group at once:

    move = Move(parts, group, params, …)     filter and geometry have observed the gradient
    move.go()                                θ⁺ = θ − displacement, decay included
    move.again()                             the same from θ, with the gradient found at θ⁺

The corrections that evaluate the closure again drive several moves together: `iterate`, `solve_quadratic`.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from aimopt.components import PREVIOUS_GRADIENT, Displacement, Parts, State, Step
from aimopt.corrections import ExactQuadratic, FixedPoint
from aimopt.tensors import TensorList, inner

_LOW_PRECISION = (torch.float16, torch.bfloat16)


def working(x: Tensor) -> Tensor:
    """What the arithmetic runs on: complex numbers as pairs of reals, half precision as float32."""
    if x.is_complex():
        x = torch.view_as_real(x)
    return x.float() if x.dtype in _LOW_PRECISION else x


def gradient(p: Tensor, raw: Tensor, group: dict[str, Any]) -> Tensor:
    """The gradient the optimizer sees: of the objective it minimizes, coupled weight decay included."""
    g = -raw if group["maximize"] else raw
    if group["weight_decay"] != 0 and group["decoupled_weight_decay"] is False:
        g = g + p * group["weight_decay"]
    return g


class Move:
    """One step of the parameters `params`, which share a group, a device, a dtype and a step count."""

    def __init__(
        self,
        parts: Parts,
        group: dict[str, Any],
        params: Sequence[Tensor],
        states: Sequence[State],
        t: Step,
        *,
        many: bool,
    ):
        self.parts, self.group, self.params, self.many = parts, group, params, many
        self.p = self._pack([working(p) for p in params])
        self.g = self.gradient()
        self.state = {name: self._pack([_as_real(s[name]) for s in states]) for name in parts.buffers()}
        filter, geometry, _ = parts
        self.rate = group["lr"].reshape(()) if isinstance(group["lr"], Tensor) else group["lr"]
        self.lr = self.rate * filter.gain
        self.m, seen = filter.update(self.state, self.g, t)
        self.metric = geometry.update(self.state, seen, t, filter.pole)
        self.start: Tensor | None = None

    def _pack(self, tensors: list[Tensor]) -> Tensor:
        return cast(Tensor, TensorList(tensors)) if self.many else tensors[0]

    def gradient(self) -> Tensor:
        """The gradient at the present point."""
        grads = [working(torch.zeros_like(p) if p.grad is None else p.grad) for p in self.params]
        return gradient(self.p, self._pack(grads), self.group)

    def displacement(self, g: Tensor) -> Tensor:
        """What the correction subtracts from θ, given a gradient to compare m with."""
        filter, geometry, correction = self.parts
        return correction.displacement(Displacement(geometry, self.metric, self.m, g, self.lr, filter.pole, self.state))

    def go(self) -> Tensor:
        """Decay, step, remember the gradient; return the displacement."""
        self._decay()
        displacement = self.displacement(self.g)
        self._subtract(displacement)
        self.remember_gradient()
        return displacement

    def remember_gradient(self) -> None:
        """Keep the gradient for the next step, where a part asked for it."""
        if PREVIOUS_GRADIENT in self.state:
            self.state[PREVIOUS_GRADIENT].copy_(self.g)

    def remember_start(self) -> None:
        """Keep θ, for the corrections that come back to it."""
        self._decay()
        self.start = self.p.clone()

    def place(self, displacement: Tensor) -> None:
        """Put the parameters at θ − displacement."""
        assert self.start is not None
        self.p.copy_(self.start)
        self._subtract(displacement)

    def again(self) -> None:
        """Step from θ with the gradient found at the present point."""
        self.place(self.displacement(self.gradient()))

    def _decay(self) -> None:
        if self.group["weight_decay"] != 0 and self.group["decoupled_weight_decay"] is True:
            self.p.mul_(1 - self.rate * self.group["weight_decay"])

    def _subtract(self, displacement: Tensor) -> None:
        self.p.sub_(displacement)
        if self.group["weight_decay"] != 0 and self.group["decoupled_weight_decay"] == "proximal":
            self.p.div_(1 + self.rate * self.group["weight_decay"])
        if self.params[0].dtype in _LOW_PRECISION:
            self._pack(list(self.params)).copy_(self.p)


def _as_real(x: Tensor) -> Tensor:
    return torch.view_as_real(x) if x.is_complex() else x


def iterate(moves: Sequence[Move], evaluate: Callable[[], Any]) -> None:
    """Repeat the fixed-point step of those moves that ask for more than one iteration."""
    for move in moves:
        move.remember_start()
        move.place(move.displacement(move.g))
    rounds = [m.parts.correction.iterations if isinstance(m.parts.correction, FixedPoint) else 1 for m in moves]
    for done in range(1, max(rounds, default=1)):
        evaluate()
        for move, wanted in zip(moves, rounds, strict=True):
            if done < wanted:
                move.again()


def solve_quadratic(moves: Sequence[Move], evaluate: Callable[[], Any]) -> None:
    """Solve R·Δ + ℓ·(H·Δ) = −((η−ℓ)·m + ℓ·g) for all parameters at once and put them at θ + Δ.

    Conjugate gradients on (R/ℓ + H), preconditioned by ℓ·R⁻¹. H·d is the difference of two gradients, exact where the
    objective is quadratic; R is never formed, because R·d obeys the recursion of d with the residual for R⁻¹·residual.
    """
    settings = moves[0].parts.correction
    assert isinstance(settings, ExactQuadratic)
    ells = [m.parts.correction.ell_at(m.lr, m.parts.filter.pole) for m in moves]  # type: ignore[attr-defined]
    for move in moves:
        move.remember_start()
    moving = [(move, ell) for move, ell in zip(moves, ells, strict=True) if ell != 0]
    residual = [-(m.m * ((m.lr - ell) / ell) + m.g) for m, ell in moving]
    total = [r * 0 for r in residual]
    direction, metric_direction, rho = [r * 0 for r in residual], [r * 0 for r in residual], torch.tensor(1.0)
    first: Tensor | None = None
    for _ in range(settings.cg_iterations):
        scaled = [m.parts.geometry.apply(r, m.metric) * ell for (m, ell), r in zip(moving, residual, strict=True)]
        rho_old, rho = rho, _sum(residual, scaled)
        first = rho if first is None else first
        if not rho > settings.cg_tolerance**2 * first:
            break
        turn = rho / rho_old if rho is not first else torch.tensor(0.0)
        direction = [z + d * turn for z, d in zip(scaled, direction, strict=True)]
        metric_direction = [r + d * turn for r, d in zip(residual, metric_direction, strict=True)]
        for (move, _), d in zip(moving, direction, strict=True):
            move.place(-d)
        evaluate()
        curved = [d + move.gradient() - move.g for (move, _), d in zip(moving, metric_direction, strict=True)]
        bend = _sum(direction, curved)
        if not bend > 0:
            for move, _ in moving:
                move.place(move.g * 0)
            raise RuntimeError("ExactQuadratic met negative curvature: the θ-step has no minimum here; lower lr or ell")
        length = rho / bend
        total = [x + d * length for x, d in zip(total, direction, strict=True)]
        residual = [r - c * length for r, c in zip(residual, curved, strict=True)]
    for (move, _), x in zip(moving, total, strict=True):
        move.place(-x)


def _sum(x: Sequence[Tensor], y: Sequence[Tensor]) -> Tensor:
    return torch.stack([inner(a, b) for a, b in zip(x, y, strict=True)]).sum()
