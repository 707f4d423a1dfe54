"""A move: the step of one parameter, or of a list of parameters, from θ to θ⁺.

`Move` is the only statement of the step, in the arithmetic of the parts:

    move = Move(parts, group, p, g, state, t)    filter and geometry have observed the gradient
    move.go()                                    θ⁺ = θ·(1 − shrinkage) − displacement

A `Bucket` holds the tensors of a move: those of one parameter, or as a `TensorList` those of all parameters of a group
with the same device, dtype and step count.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from aimopt.parts.component import PREVIOUS_GRADIENT, Descent, DisplacementInputs, Geometry, State, StepCount
from aimopt.parts.composition import Parts
from aimopt.parts.tensor_list import LOW_PRECISION, TensorList
from aimopt.step.options import OPTIONS
from aimopt.step.owners import OnOwners
from aimopt.step.precision import draws, random_bits, round_stochastically
from aimopt.step.quantization import CODE_OF_DTYPE, SHIFT, encode_into, scale_name, working_buffer
from aimopt.step.shards import Origin, Place, any_distributed, local_part, place_of

# What a move reads from its group, apart from the learning rate and the hyperparameters of the parts.
GROUP_KEYS = tuple(name for name, option in OPTIONS.items() if option.in_arithmetic)


def to_working_dtype(x: Tensor) -> Tensor:
    """The tensor that the arithmetic runs on: complex numbers as pairs of reals, 16 bits as float32."""
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return x.float() if x.dtype in LOW_PRECISION else x


def gradient(p: Tensor, raw: Tensor, group: dict[str, Any], parts: Parts) -> Tensor:
    """The gradient of the objective that is minimized, coupled weight decay included."""
    g = -raw if group["maximize"] else raw
    return parts.decay.gradient(g, p)


class Move:
    """One step, as arithmetic: on tensors, on lists of tensors, or on the symbols from which kernels are made."""

    def __init__(
        self,
        parts: Parts,
        group: dict[str, Any],
        p: Tensor,
        raw: Tensor,
        state: State,
        t: StepCount,
        geometry: Geometry | None = None,
    ):
        self.parts, self.group, self.p, self.state, self.t = parts, group, p, state, t
        self.geometry = geometry or parts.geometry  # on shards another object maps for the geometry
        self.g = gradient(p, raw, group, parts)
        self.rate = group["lr"].reshape(()) if isinstance(group["lr"], Tensor) else group["lr"]
        self.lr = self.rate * parts.filter.gain
        self._buffers_before = dict(state)
        self.m, g_metric = parts.filter.update(state, self.g, t)
        self.metric = self.geometry.update(state, g_metric, t, parts.filter.pole)
        self._keep_buffers()

    def displacement_inputs(self) -> DisplacementInputs:
        """The inputs from which the correction computes the displacement."""
        pole = self.parts.filter.pole
        return DisplacementInputs(self.geometry, self.metric, self.m, self.g, self.lr, pole, self.state, self._theta())

    def _theta(self) -> Tensor:
        """θ for a part to read; a copy if autograd may need it after the parameters have moved."""
        return self.p.clone() if self.group["differentiable"] else self.p

    def go(self) -> Tensor:
        """Decay, step, store the gradient; return the displacement."""
        displacement = self.parts.correction.displacement(self.displacement_inputs())
        self.move_by(displacement)
        self.finish()
        return displacement

    def move_by(self, displacement: Tensor) -> None:
        """Move the parameters from θ to θ⁺, decay included."""
        decay, state = self.parts.decay, self.state
        d, shrinkage = decay.terms(self._theta(), displacement, self.rate, state)
        self.parts.iterate.descend(Descent(self.p, d, shrinkage, self.rate, self.t, state))
        decay.project(self.p, self.rate, state)

    def finish(self) -> None:
        """Accept the point, and store the gradient for the next step if a part declares that buffer."""
        self.parts.iterate.observe(self.state, self.p, self.t)
        if PREVIOUS_GRADIENT in self.state:
            self.state[PREVIOUS_GRADIENT].copy_(self.g)
        self._keep_buffers()

    def _keep_buffers(self) -> None:
        """Copy what a part assigned as a new tensor into the buffer that it should have written in place."""
        for name, buffer in self._buffers_before.items():
            if self.state[name] is not buffer:
                self.state[name] = buffer.copy_(self.state[name])


class Bucket(NamedTuple):
    """Parameters that move together: one, or if `as_list` several of one group with one device, dtype and count."""

    parts: Parts
    group: dict[str, Any]
    params: Sequence[Tensor]
    grads: Sequence[Tensor]  # as gathered; a closure that is called again makes new ones
    states: Sequence[State]
    param_indices: Sequence[int]  # among all parameters of the optimizer
    t: StepCount
    as_list: bool
    grad_scale: Tensor | None = None  # a GradScaler's, if the gradients are still multiplied by it
    places: Sequence[Place | None] = ()  # of the parameters, if they are local parts of distributed tensors
    origins: Sequence[Origin | None] = ()  # of the parameters, if torch.compile cannot ask for them
    buffer_places: Sequence[Mapping[str, Place]] = ()  # as `places`, of state buffers with shapes of their own

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
        state = {
            name: self._pack([to_working_dtype(working_buffer(s, name)) for s in self.states])
            for name in self.parts.buffers()
        }
        return Move(self.parts, self.group, p, self.unscaled(self.grads), state, self.t, self._geometry())

    def _geometry(self) -> Geometry:
        """What maps for the geometry: itself, or if it needs whole matrices and these are sharded, their owners."""
        sharded = any(self.places) or any_distributed(self.params)
        recorded = self.group["differentiable"] or torch.compiler.is_compiling()
        if not sharded or not self.parts.geometry.matrices_only or recorded:
            return self.parts.geometry
        places = self.places or [None] * len(self.params)
        return cast(Geometry, OnOwners(self.parts.geometry, places, self.buffer_places, self.param_indices[0]))

    def store_params(self, move: Move) -> None:
        """Write the moved parameters back, if the move worked on a copy in higher precision."""
        for i, (p, x) in enumerate(zip(self.params, self._unpack(move.p), strict=True)):
            self._store(i, 0, p, x)

    def store_state(self, move: Move) -> None:
        """Write the state back, if the move worked on a copy in higher precision."""
        names = [name for name, initial in self.parts.buffers().items() if not initial.scalar]
        results = zip(*(self._unpack(move.state[name]) for name in names), strict=True)
        for i, (p, state, row) in enumerate(zip(self.params, self.states, results, strict=False)):
            draw_of = draws([x.element_size() for x in (p, *(state[name] for name in names))])
            for k, (name, x) in enumerate(zip(names, row, strict=True), start=1):
                self._store(i, draw_of.get(k, 0), state[name], x, state.get(scale_name(name)))

    def _unpack(self, result: Any) -> Sequence[Tensor]:
        return result.items if self.as_list else [result]

    def _store(self, i: int, draw: int, target: Tensor, x: Tensor, scale: Tensor | None = None) -> None:
        stochastic = self.group["stochastic_rounding"] and not self.group["differentiable"]
        t = self.t.items[i] if isinstance(self.t, TensorList) else self.t
        if target.dtype in LOW_PRECISION:
            origin = self._origin(i, target)
            target, x = local_part(target), local_part(x)
            target.copy_(
                round_stochastically(x, target.dtype, t, self.param_indices[i], draw, origin) if stochastic else x
            )
        elif target.dtype in CODE_OF_DTYPE:
            assert scale is not None
            origin = self._origin(i, target)
            target, scale, x = local_part(target), local_part(scale), local_part(x)
            first = 0 if origin is None else origin[0]  # no shard of a parameter with 8-bit state has gaps
            positions = torch.arange(first, first + x.numel(), device=x.device)
            random = random_bits(SHIFT, positions, t, self.param_indices[i], draw)
            encode_into(target, scale, x, random if stochastic else None)

    def _origin(self, i: int, target: Tensor) -> Origin | None:
        """Where a tensor of the i-th parameter begins in the whole; None if it is whole."""
        if self.origins:
            return self.origins[i]
        place = self.places[i] if self.places else place_of(target)
        return place.origin if place else None
