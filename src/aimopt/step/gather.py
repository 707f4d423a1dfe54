"""Gathering: the tensors of a parameter group that a step works on.

gathered = Gathered(group_index, …, params, grads, param_indices, state)     parameters with a gradient, their state
buckets(gathered, "RADAR")                                           split for the unfused path, steps counted
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.optim.optimizer import _default_to_fused_or_foreach

from aimopt.messages.reason import Reason
from aimopt.parts.component import Initial, State, StepCount
from aimopt.parts.composition import Parts
from aimopt.parts.tensor_list import TensorList
from aimopt.step.move import Bucket
from aimopt.step.quantization import state_keys
from aimopt.step.shards import (
    Origin,
    Place,
    any_distributed,
    is_distributed,
    local_row,
    place_of,
)
from aimopt.step.storage import is_plain


class Gathered(NamedTuple):
    """The parameters of a group that have a gradient, and everything else that their step needs."""

    group_index: int
    first_param_index: int  # of the group's first parameter, with or without a gradient
    group: dict[str, Any]
    parts: Parts
    params: list[Tensor]
    grads: list[Tensor]
    param_indices: list[int]  # among all parameters of the optimizer
    state: list[Tensor]  # one parameter after the other, in the order of `keys`
    places: Sequence[Place | None] = ()  # after `localize`, those of the parameters; empty if all are plain tensors
    origins: Sequence[Origin | None] = ()  # those of the parameters, if torch.compile cannot ask for them
    buffer_places: Sequence[Mapping[str, Place]] = ()  # as `places`, of state buffers with shapes of their own

    @classmethod
    def gradients_only(cls, group_index: int, group: dict[str, Any]) -> "Gathered":
        """The parameters and gradients, without state; indices are counted from the start of the group."""
        indices = [i for i, p in enumerate(group["params"]) if p.grad is not None]
        params = [group["params"][i] for i in indices]
        return cls(group_index, 0, group, Parts.from_group(group), params, [p.grad for p in params], indices, [])

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of a parameter's state: its step count, its buffers, the scales of those that may be in 8 bits."""
        return state_keys(self.parts.buffers(), self.group)

    def rows(self) -> list[tuple[Any, ...]]:
        """One row per parameter: the parameter, its gradient, its state."""
        width = len(self.state) // len(self.params) if self.params else 1
        states = [self.state[i * width : (i + 1) * width] for i in range(len(self.params))]
        return [(p, grad, *state) for p, grad, state in zip(self.params, self.grads, states, strict=True)]

    def select(self, indices: Sequence[int]) -> "Gathered":
        """The parameters with these indices."""
        if len(indices) == len(self.params):
            return self
        width = len(self.keys)
        return self._replace(
            params=[self.params[i] for i in indices],
            grads=[self.grads[i] for i in indices],
            param_indices=[self.param_indices[i] for i in indices],
            state=[x for i in indices for x in self.state[i * width : (i + 1) * width]],
            places=[self.places[i] for i in indices] if self.places else (),
            origins=[self.origins[i] for i in indices] if self.origins else (),
            buffer_places=[self.buffer_places[i] for i in indices] if self.buffer_places else (),
        )

    def localize(self) -> "Gathered":
        """The same, with the local part of every distributed tensor."""
        if not any_distributed(self.params):
            return self
        buffers = self.parts.buffers()
        shaped = {2 + k: key for k, key in enumerate(self.keys) if key != "step" and _has_own_shape(buffers.get(key))}
        rows = self.rows()
        local, places = zip(*(local_row(row, shaped) for row in rows), strict=True)
        return self._replace(
            params=[row[0] for row in local],
            grads=[row[1] for row in local],
            state=[x for row in local for x in row[2:]],
            places=places,
            buffer_places=[
                {key: place for k, key in shaped.items() if localized and (place := place_of(row[k]))}
                for row, localized in zip(rows, places, strict=True)
            ],
        )

    def name_of(self, i: int) -> str:
        """The name of a parameter in messages."""
        return parameter_name(self.group, self.param_indices[i] - self.first_param_index, f"group {self.group_index}")

    def states(self) -> list[State]:
        """The state of each parameter."""
        keys = self.keys
        rows = zip(*(self.state[k :: len(keys)] for k in range(len(keys))), strict=True)
        return [dict(zip(keys, row, strict=True)) for row in rows]


def _has_own_shape(initial: Initial | None) -> bool:
    """Whether a buffer has another shape than its parameter. So have scales, which have no `Initial`."""
    return initial is None or initial.shaped


def parameter_name(group: dict[str, Any], i: int, group_name: str = "its group") -> str:
    """The name of a parameter in messages."""
    names = group.get("param_names") or ()
    return f"parameter {names[i]!r}" if i < len(names) else f"parameter {i} of {group_name}"


class Unusable(RuntimeError):
    """A parameter that cannot be stepped, because of its tensors."""


def refusal(gathered: Gathered, i: int, optimizer: str, reason: Reason) -> Unusable:
    """The error for one parameter."""
    return Unusable(f"{optimizer}.step: {gathered.name_of(i)} cannot be stepped: {reason}")


def invalid_count(step: Tensor) -> Reason:
    """Why this step count cannot be advanced."""
    return Reason(f"its state 'step' is {step.item():g}, and steps are counted from 0")


def buckets(gathered: Gathered, optimizer: str, grad_scale: Tensor | None = None) -> Iterator[Bucket]:
    """Count the steps, and split a group into buckets of parameters that can move together.

    The error for a step count that is invalid names the optimizer's class.
    """
    if not gathered.params:
        return
    states, group = gathered.states(), gathered.group
    steps = [state["step"] for state in states]
    for indices, t, as_list in _count_and_split(gathered, steps, optimizer):
        part, part_states = gathered.select(indices), [states[i] for i in indices]
        tensors = part.params, part.grads, part_states
        yield Bucket(
            part.parts,
            group,
            *tensors,
            part.param_indices,
            t,
            as_list,
            grad_scale,
            part.places,
            part.origins,
            part.buffer_places,
        )


def _count_and_split(
    gathered: Gathered, steps: list[Tensor], optimizer: str
) -> Iterator[tuple[list[int], StepCount, bool]]:
    """Advance the step counts, and yield the parameters of each bucket: (indices, step count, whether as a list)."""
    group, params = gathered.group, gathered.params
    compiling = torch.compiler.is_compiling()
    # The value of a FakeTensor is not known: then its count stays a tensor, as on a device.
    on_device = group["capturable"] or compiling or not all(map(is_plain, {*map(type, steps)}))
    for i, step in enumerate(steps if not on_device else ()):
        if not step.item() >= 0:
            raise refusal(gathered, i, optimizer, invalid_count(step))
    torch._foreach_add_(steps, 1)
    foreach = group["foreach"]
    if foreach is None:
        _, foreach = _default_to_fused_or_foreach(params, group["differentiable"] or compiling)
        # As a list, all sharded matrices of a group share two collectives.
        foreach = foreach or (gathered.parts.geometry.matrices_only and any(gathered.places))
    if not foreach:
        for i, step in enumerate(steps):
            yield [i], step if on_device else step.item(), False
        return
    by_kind: dict[Any, list[int]] = {}
    for i, (p, step) in enumerate(zip(params, steps, strict=True)):
        kind = p.device, p.dtype, is_distributed(p), None if on_device else step.item()
        by_kind.setdefault(kind, []).append(i)
    for (*_, t), indices in by_kind.items():
        yield indices, cast(Tensor, TensorList([steps[i] for i in indices])) if on_device else t, True
