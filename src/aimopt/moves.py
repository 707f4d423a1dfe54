"""A move: some parameters of one group on their way from θ to θ⁺.

`Move` is the step of the package, stated once, in the arithmetic of the three parts:

    move = Move(parts, group, p, g, state, t)    filter and geometry have observed the gradient
    move.go()                                    θ⁺ = θ − displacement, decay included

`Bucket` is where its numbers live: one parameter, or as a `TensorList` all those of a group that are alike. `Attempt`
is for the corrections that evaluate the closure again, which drive several moves together: `iterate`,
`solve_quadratic`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from aimopt.components import PREVIOUS_GRADIENT, Displacement, Parts, State, Step, scalar_one
from aimopt.corrections import ExactQuadratic
from aimopt.rounding import round_stochastically
from aimopt.storage import too_short
from aimopt.tensors import LOW_PRECISION, TensorList, inner


def working(x: Tensor) -> Tensor:
    """What the arithmetic runs on: complex numbers as pairs of reals, half precision as float32."""
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return x.float() if x.dtype in LOW_PRECISION else x


def gradient(p: Tensor, raw: Tensor, group: dict[str, Any]) -> Tensor:
    """The gradient the optimizer sees: of the objective it minimizes, coupled weight decay included."""
    g = -raw if group["maximize"] else raw
    if group["weight_decay"] != 0 and group["decoupled_weight_decay"] is False:
        g = g + p * group["weight_decay"]
    return g


class Move:
    """One step, as arithmetic: on tensors, on lists of tensors, or on the symbols a kernel is made from."""

    def __init__(self, parts: Parts, group: dict[str, Any], p: Tensor, raw: Tensor, state: State, t: Step):
        self.parts, self.group, self.p, self.state, self.t = parts, group, p, state, t
        self.g = gradient(p, raw, group)
        self.rate = group["lr"].reshape(()) if isinstance(group["lr"], Tensor) else group["lr"]
        filter, geometry, _ = parts
        self.lr = self.rate * filter.gain
        given = dict(state)
        self.m, seen = filter.update(state, self.g, t)
        self.metric = geometry.update(state, seen, t, filter.pole)
        for name, value in given.items():
            if state[name] is not value:  # set anew rather than in place
                state[name] = value.copy_(state[name])

    def displacement(self, g: Tensor) -> Tensor:
        """What the correction subtracts from θ, given a gradient to compare m with."""
        filter, geometry, correction = self.parts
        return correction.displacement(Displacement(geometry, self.metric, self.m, g, self.lr, filter.pole, self.state))

    def go(self) -> Tensor:
        """Decay, step, remember the gradient; return the displacement."""
        displacement = self.displacement(self.g)
        self.travel(displacement)
        self.remember_gradient()
        return displacement

    @property
    def decays(self) -> bool:
        """Whether θ is decayed before the step."""
        return self.group["weight_decay"] != 0 and self.group["decoupled_weight_decay"] is True

    def travel(self, displacement: Tensor) -> None:
        """Take the parameters from θ to θ⁺, decay included."""
        decay = self.group["weight_decay"]
        if self.decays:
            self.p.mul_(1 - self.rate * decay)
        self.p.sub_(displacement)
        if decay != 0 and self.group["decoupled_weight_decay"] == "proximal":
            self.p.div_(1 + self.rate * decay)

    def remember_gradient(self) -> None:
        """Keep the gradient for the next step, where a part asked for it."""
        if PREVIOUS_GRADIENT in self.state:
            self.state[PREVIOUS_GRADIENT].copy_(self.g)


class Bucket(NamedTuple):
    """Parameters that move together: they share a group, a device, a dtype and, unless `many`, are but one."""

    parts: Parts
    group: dict[str, Any]
    params: Sequence[Tensor]
    grads: Sequence[Tensor]  # as gathered; a closure that is called again sets others
    states: Sequence[State]
    ranks: Sequence[int]  # their places among all parameters of the optimizer
    t: Step
    many: bool
    grad_scale: Tensor | None = None  # a GradScaler's, if the gradients are still multiplied by it

    def _pack(self, tensors: list[Tensor]) -> Tensor:
        return cast(Tensor, TensorList(tensors)) if self.many else tensors[0]

    def gradient(self, grads: Sequence[Tensor]) -> Tensor:
        """Gradients as backward left them, unscaled and in working precision."""
        g = self._pack([working(grad) for grad in grads])
        return g if self.grad_scale is None else g / self.grad_scale

    def present_gradient(self) -> Tensor:
        """The gradient that the parameters have now."""
        return self.gradient([torch.zeros_like(p) if p.grad is None else p.grad for p in self.params])

    def move(self) -> Move:
        """The step of these parameters, filter and geometry having observed the gradient."""
        p = self._pack([working(p) for p in self.params])
        state = {name: self._pack([working(s[name]) for s in self.states]) for name in self.parts.buffers()}
        return Move(self.parts, self.group, p, self.gradient(self.grads), state, self.t)

    def store_params(self, move: Move) -> None:
        """Bring the parameters where the move has taken them, if it worked on a copy in higher precision."""
        self._store(0, self.params, move.p)

    def store_state(self, move: Move) -> None:
        """Likewise the state."""
        tensors = [name for name, initial in self.parts.buffers().items() if initial is not scalar_one]
        for salt, name in enumerate(tensors, start=1):
            self._store(salt, [s[name] for s in self.states], move.state[name])

    def _store(self, salt: int, homes: Sequence[Tensor], worked: Any) -> None:
        stochastic = self.group["stochastic_rounding"] and not self.group["differentiable"]
        counts = self.t.items if isinstance(self.t, TensorList) else [self.t] * len(homes)
        for home, x, t, rank in zip(homes, worked.items if self.many else [worked], counts, self.ranks, strict=True):
            if home.dtype in LOW_PRECISION:
                home.copy_(round_stochastically(x, home.dtype, t, rank, salt) if stochastic else x)


class Attempt:
    """A move that can be repeated with gradients found elsewhere, and undone, from before it began."""

    move: Move
    theta: Tensor

    def __init__(self, bucket: Bucket):
        self.bucket = bucket
        self.params = [p.clone() for p in bucket.params]
        self.states = [{name: value.clone() for name, value in state.items()} for state in bucket.states]
        torch._foreach_sub_([state["step"] for state in self.states], 1)

    def begin(self) -> None:
        """Let filter and geometry observe the gradient."""
        self.move = self.bucket.move()
        self.theta = self.move.p.clone()

    @property
    def evaluations(self) -> int:
        """How many gradients this move takes."""
        return self.move.parts.correction.evaluations

    def gradient(self) -> Tensor:
        """The gradient at the present point."""
        return gradient(self.move.p, self.bucket.present_gradient(), self.move.group)

    def place(self, displacement: Tensor) -> None:
        """Put the parameters where this displacement leads from θ."""
        self.displaced = displacement
        self.move.p.copy_(self.theta)
        self.move.travel(displacement)
        self.bucket.store_params(self.move)

    def again(self) -> None:
        """Step from θ with the gradient found at the present point."""
        self.place(self.move.displacement(self.gradient()))

    def finish(self) -> None:
        """Keep the point reached, and the state."""
        self.move.remember_gradient()
        self.bucket.store_state(self.move)

    def undo(self) -> None:
        """Leave parameters and state as they were before this move."""
        pairs = list(zip(self.bucket.params, self.params, strict=True))
        for state, saved in zip(self.bucket.states, self.states, strict=True):
            pairs += [(state[name], value) for name, value in saved.items()]
        for x, before in pairs:
            if x.shape == before.shape and not too_short("", x):  # unless the closure has put another in its place
                x.copy_(before)


def iterate(attempts: Sequence[Attempt], evaluate: Callable[[], Any]) -> None:
    """Make all moves, and repeat those that take more than one evaluation with the gradient found there."""
    for attempt in attempts:
        attempt.place(attempt.move.displacement(attempt.move.g))
    for done in range(1, max(attempt.evaluations for attempt in attempts)):
        evaluate()
        for attempt in attempts:
            if done < attempt.evaluations:
                attempt.again()


def solve_quadratic(attempts: Sequence[Attempt], evaluate: Callable[[], Any]) -> None:
    """Solve R·Δ + ℓ·(H·Δ) = −((η−ℓ)·m + ℓ·g) for all parameters at once and put them at θ + Δ.

    Conjugate gradients on (R/ℓ + H), preconditioned by ℓ·R⁻¹. H·d is the difference of two gradients, exact where the
    objective is quadratic; R is never formed, because R·d obeys the recursion of d with the residual for R⁻¹·residual.
    """
    moves = [attempt.move for attempt in attempts]
    settings = [cast(ExactQuadratic, move.parts.correction) for move in moves]
    tolerance, iterations = min(s.cg_tolerance for s in settings), max(s.cg_iterations for s in settings)
    ells = [s.ell_at(move.lr, move.parts.filter.pole) for s, move in zip(settings, moves, strict=True)]
    for attempt, move, ell in zip(attempts, moves, ells, strict=True):
        attempt.place(move.displacement(move.g) if ell == 0 else move.g * 0)
    moving = [(attempt, ell) for attempt, ell in zip(attempts, ells, strict=True) if ell != 0]
    if len(moving) < len(moves) or any(move.decays for move in moves):
        evaluate()  # the point the solution starts from is not the one the gradient was taken at
    origin = [attempt.gradient() for attempt, _ in moving]
    residual = [-(a.move.m * ((a.move.lr - ell) / ell) + g) for (a, ell), g in zip(moving, origin, strict=True)]
    total, direction, metric_direction = ([r * 0 for r in residual] for _ in range(3))
    rho = first = torch.zeros(())
    for iteration in range(iterations if moving else 0):
        scaled = [
            a.move.parts.geometry.apply(r, a.move.metric) * ell for (a, ell), r in zip(moving, residual, strict=True)
        ]
        rho_before, rho = rho, _sum(residual, scaled)
        first = first if iteration else rho
        if not rho > tolerance**2 * first:
            break
        turn = rho / rho_before if iteration else rho * 0
        direction = [z + d * turn for z, d in zip(scaled, direction, strict=True)]
        metric_direction = [r + d * turn for r, d in zip(residual, metric_direction, strict=True)]
        for (attempt, _), d in zip(moving, direction, strict=True):
            attempt.place(-d)
        evaluate()
        found = [attempt.gradient() for attempt, _ in moving]
        curved = [d + new - old for d, new, old in zip(metric_direction, found, origin, strict=True)]
        bend = _sum(direction, curved)
        if not bend > 0:
            raise RuntimeError("ExactQuadratic met negative curvature: the θ-step has no minimum here; lower lr or ell")
        total = [x + d * (rho / bend) for x, d in zip(total, direction, strict=True)]
        residual = [r - c * (rho / bend) for r, c in zip(residual, curved, strict=True)]
    for (attempt, _), x in zip(moving, total, strict=True):
        attempt.place(-x)


def _sum(x: Sequence[Tensor], y: Sequence[Tensor]) -> Tensor:
    return torch.stack([inner(a, b) for a, b in zip(x, y, strict=True)]).sum()
