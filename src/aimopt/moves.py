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
from aimopt.corrections import ExactQuadratic
from aimopt.tensors import TensorList, inner

_LOW_PRECISION = (torch.float16, torch.bfloat16)


def working(x: Tensor) -> Tensor:
    """What the arithmetic runs on: complex numbers as pairs of reals, half precision as float32."""
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
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
        undoable: bool = False,
    ):
        self.parts, self.group, self.params, self.many, self.t = parts, group, params, many, t
        self.p = self._pack([working(p) for p in params])
        self.g = self.gradient()
        self.state = {name: self._pack([_as_real(s[name]) for s in states]) for name in parts.buffers()}
        if undoable:
            self.theta, self.steps = self.p.clone(), [s["step"] for s in states]
            self.state_before = {name: value.clone() for name, value in self.state.items()}
        filter, geometry, _ = parts
        self.rate = group["lr"].reshape(()) if isinstance(group["lr"], Tensor) else group["lr"]
        self.lr = self.rate * filter.gain
        self.m, seen = filter.update(self.state, self.g, t)
        self.metric = geometry.update(self.state, seen, t, filter.pole)

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

    def place(self, displacement: Tensor) -> None:
        """Put the parameters where this displacement leads from θ."""
        self.displaced = displacement
        self.p.copy_(self.theta)
        self._decay()
        self._subtract(displacement)

    def again(self) -> None:
        """Step from θ with the gradient found at the present point."""
        self.place(self.displacement(self.gradient()))

    def undo(self) -> None:
        """Leave parameters and state as they were before this move."""
        self.p.copy_(self.theta)
        self._write_back()
        for name, value in self.state_before.items():
            self.state[name].copy_(value)
        torch._foreach_sub_(self.steps, 1)

    @property
    def decays(self) -> bool:
        """Whether θ is decayed before the step."""
        return self.group["weight_decay"] != 0 and self.group["decoupled_weight_decay"] is True

    def _decay(self) -> None:
        if self.decays:
            self.p.mul_(1 - self.rate * self.group["weight_decay"])

    def _subtract(self, displacement: Tensor) -> None:
        self.p.sub_(displacement)
        if self.group["weight_decay"] != 0 and self.group["decoupled_weight_decay"] == "proximal":
            self.p.div_(1 + self.rate * self.group["weight_decay"])
        self._write_back()

    def _write_back(self) -> None:
        if self.params[0].dtype in _LOW_PRECISION:
            self._pack(list(self.params)).copy_(self.p)


def _as_real(x: Tensor) -> Tensor:
    return torch.view_as_real(x) if x.is_complex() else x


def iterate(moves: Sequence[Move], evaluate: Callable[[], Any]) -> None:
    """Make all moves, and repeat those that take more than one evaluation with the gradient found there."""
    for move in moves:
        move.place(move.displacement(move.g))
    for done in range(1, max(move.parts.correction.evaluations for move in moves)):
        evaluate()
        for move in moves:
            if done < move.parts.correction.evaluations:
                move.again()


def solve_quadratic(moves: Sequence[Move], evaluate: Callable[[], Any]) -> None:
    """Solve R·Δ + ℓ·(H·Δ) = −((η−ℓ)·m + ℓ·g) for all parameters at once and put them at θ + Δ.

    Conjugate gradients on (R/ℓ + H), preconditioned by ℓ·R⁻¹. H·d is the difference of two gradients, exact where the
    objective is quadratic; R is never formed, because R·d obeys the recursion of d with the residual for R⁻¹·residual.
    """
    settings = [cast(ExactQuadratic, move.parts.correction) for move in moves]
    tolerance, iterations = min(s.cg_tolerance for s in settings), max(s.cg_iterations for s in settings)
    ells = [s.ell_at(move.lr, move.parts.filter.pole) for s, move in zip(settings, moves, strict=True)]
    for move, ell in zip(moves, ells, strict=True):
        move.place(move.displacement(move.g) if ell == 0 else move.g * 0)
    moving = [(move, ell) for move, ell in zip(moves, ells, strict=True) if ell != 0]
    if len(moving) < len(moves) or any(move.decays for move in moves):
        evaluate()  # the point the solution starts from is not the one the gradient was taken at
    origin = [move.gradient() for move, _ in moving]
    residual = [-(m.m * ((m.lr - ell) / ell) + g) for (m, ell), g in zip(moving, origin, strict=True)]
    total, direction, metric_direction = ([r * 0 for r in residual] for _ in range(3))
    rho = first = torch.zeros(())
    for iteration in range(iterations if moving else 0):
        scaled = [m.parts.geometry.apply(r, m.metric) * ell for (m, ell), r in zip(moving, residual, strict=True)]
        rho_before, rho = rho, _sum(residual, scaled)
        first = first if iteration else rho
        if not rho > tolerance**2 * first:
            break
        turn = rho / rho_before if iteration else rho * 0
        direction = [z + d * turn for z, d in zip(scaled, direction, strict=True)]
        metric_direction = [r + d * turn for r, d in zip(residual, metric_direction, strict=True)]
        for (move, _), d in zip(moving, direction, strict=True):
            move.place(-d)
        evaluate()
        found = [move.gradient() for move, _ in moving]
        curved = [d + new - old for d, new, old in zip(metric_direction, found, origin, strict=True)]
        bend = _sum(direction, curved)
        if not bend > 0:
            raise RuntimeError("ExactQuadratic met negative curvature: the θ-step has no minimum here; lower lr or ell")
        total = [x + d * (rho / bend) for x, d in zip(total, direction, strict=True)]
        residual = [r - c * (rho / bend) for r, c in zip(residual, curved, strict=True)]
    for (move, _), x in zip(moving, total, strict=True):
        move.place(-x)


def _sum(x: Sequence[Tensor], y: Sequence[Tensor]) -> Tensor:
    return torch.stack([inner(a, b) for a, b in zip(x, y, strict=True)]).sum()
