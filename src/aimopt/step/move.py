"""A move: the step of one parameter, or of a list of parameters, from θ to θ⁺.

`Move` is the only statement of the step, in the arithmetic of the three parts:

    move = Move(parts, group, p, g, state, t)    filter and geometry have observed the gradient
    move.go()                                    θ⁺ = θ − displacement, decay included

A `Bucket` holds the tensors of a move: those of one parameter, or as a `TensorList` those of all parameters of a group
with the same device, dtype and step count.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from aimopt.parts.component import PREVIOUS_GRADIENT, DisplacementInputs, Geometry, Parts, State, StepCount
from aimopt.parts.tensor_list import LOW_PRECISION, TensorList
from aimopt.step.options import OPTIONS
from aimopt.step.owners import OnOwners
from aimopt.step.precision import round_stochastically
from aimopt.step.shards import Origin, Place, any_distributed, local_part, place_of

# What a move reads from its group, apart from the learning rate and the hyperparameters of the parts.
GROUP_KEYS = (
    "weight_decay",
    "decoupled_weight_decay",
    *(name for name, option in OPTIONS.items() if option.in_arithmetic),
)


def to_working_dtype(x: Tensor) -> Tensor:
    """The tensor that the arithmetic runs on: complex numbers as pairs of reals, 16 bits as float32."""
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return x.float() if x.dtype in LOW_PRECISION else x


def gradient(p: Tensor, raw: Tensor, group: dict[str, Any]) -> Tensor:
    """The gradient of the objective that is minimized, coupled weight decay included."""
    g = -raw if group["maximize"] else raw
    if group["weight_decay"] != 0 and group["decoupled_weight_decay"] is False:
        g = g + p * group["weight_decay"]
    return g


class Move:
    """One step, as arithmetic: on tensors, on lists of tensors, or on the symbols from which kernels are made."""

    def __init__(self, parts: Parts, group: dict[str, Any], p: Tensor, raw: Tensor, state: State, t: StepCount):
        self.parts, self.group, self.p, self.state, self.t = parts, group, p, state, t
        self.map = parts.geometry  # what applies P; on shards not the geometry itself
        self.g = gradient(p, raw, group)
        self.rate = group["lr"].reshape(()) if isinstance(group["lr"], Tensor) else group["lr"]
        filter, geometry = parts.filter, parts.geometry
        self.lr = self.rate * filter.gain
        buffers_before = dict(state)
        self.m, g_metric = filter.update(state, self.g, t)
        self.metric = geometry.update(state, g_metric, t, filter.pole)
        for name, buffer in buffers_before.items():
            if state[name] is not buffer:  # the part assigned a new tensor instead of writing in place
                state[name] = buffer.copy_(state[name])

    def displacement_inputs(self) -> DisplacementInputs:
        """The inputs from which the correction computes the displacement."""
        pole = self.parts.filter.pole
        return DisplacementInputs(self.map, self.metric, self.m, self.g, self.lr, pole, self.state)

    def go(self) -> Tensor:
        """Decay, step, store the gradient; return the displacement."""
        displacement = self.parts.correction.displacement(self.displacement_inputs())
        self.move_by(displacement)
        self.store_gradient()
        return displacement

    @property
    def decays_first(self) -> bool:
        """Whether θ is decayed before the step."""
        return self.group["weight_decay"] != 0 and self.group["decoupled_weight_decay"] is True

    def move_by(self, displacement: Tensor) -> None:
        """Move the parameters from θ to θ⁺, decay included."""
        decay = self.group["weight_decay"]
        if self.decays_first:
            self.p.mul_(1 - self.rate * decay)
        self.p.sub_(displacement)
        if decay != 0 and self.group["decoupled_weight_decay"] == "proximal":
            self.p.div_(1 + self.rate * decay)

    def store_gradient(self) -> None:
        """Store the gradient for the next step, if a part declares that buffer."""
        if PREVIOUS_GRADIENT in self.state:
            self.state[PREVIOUS_GRADIENT].copy_(self.g)


class Bucket(NamedTuple):
    """Parameters that move together: one, or if `as_list` several of one group with one device, dtype and count."""

    parts: Parts
    group: dict[str, Any]
    params: Sequence[Tensor]
    grads: Sequence[Tensor]  # as gathered; a closure that is called again makes new ones
    states: Sequence[State]
    ranks: Sequence[int]  # their positions among all parameters of the optimizer
    t: StepCount
    as_list: bool
    grad_scale: Tensor | None = None  # a GradScaler's, if the gradients are still multiplied by it
    places: Sequence[Place | None] = ()  # of the parameters, if they are local parts of distributed tensors
    origins: Sequence[Origin | None] = ()  # of the parameters, if torch.compile cannot ask for them

    def _pack(self, tensors: list[Tensor]) -> Tensor:
        return cast(Tensor, TensorList(tensors)) if self.as_list else tensors[0]

    def unscaled(self, grads: Sequence[Tensor]) -> Tensor:
        """Gradients of backward, unscaled and in working precision."""
        g = self._pack([to_working_dtype(grad) for grad in grads])
        return g if self.grad_scale is None else g / self.grad_scale

    def present_gradient(self) -> Tensor:
        """The gradient that the parameters have now."""
        return self.unscaled([torch.zeros_like(p) if p.grad is None else p.grad for p in self.params])

    def move(self) -> Move:
        """The move of these parameters, after filter and geometry have observed the gradient."""
        p = self._pack([to_working_dtype(p) for p in self.params])
        state = {name: self._pack([to_working_dtype(s[name]) for s in self.states]) for name in self.parts.buffers()}
        move = Move(self.parts, self.group, p, self.unscaled(self.grads), state, self.t)
        sharded = any(self.places) or any_distributed(self.params)
        recorded = self.group["differentiable"] or torch.compiler.is_compiling()
        if sharded and self.parts.geometry.matrices_only and not recorded:
            places = self.places or [None] * len(self.params)
            move.map = cast(Geometry, OnOwners(self.parts.geometry, places))
        return move

    def store_params(self, move: Move) -> None:
        """Write the moved parameters back, if the move worked on a copy in higher precision."""
        self._store(0, self.params, move.p)

    def store_state(self, move: Move) -> None:
        """Write the state back, if the move worked on a copy in higher precision."""
        draw = int(self.params[0].dtype in LOW_PRECISION)
        for name in (name for name, initial in self.parts.buffers().items() if not initial.scalar):
            targets = [s[name] for s in self.states]
            self._store(draw, targets, move.state[name])
            draw += targets[0].dtype in LOW_PRECISION

    def _store(self, draw: int, targets: Sequence[Tensor], result: Any) -> None:
        stochastic = self.group["stochastic_rounding"] and not self.group["differentiable"]
        counts = self.t.items if isinstance(self.t, TensorList) else [self.t] * len(targets)
        results = result.items if self.as_list else [result]
        origins = self.origins or [place.origin if place else None for place in self.places or map(place_of, targets)]
        for target, x, t, rank, origin in zip(targets, results, counts, self.ranks, origins, strict=True):
            if target.dtype in LOW_PRECISION:
                target, x = local_part(target), local_part(x)
                target.copy_(round_stochastically(x, target.dtype, t, rank, draw, origin) if stochastic else x)
