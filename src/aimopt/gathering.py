"""Gathering: what a step finds of a parameter group, and what of it can move together.

    gathered = Gathered(position, group, parts, params, …)                all that has a gradient, for the kernels
    buckets(gathered)                                                     split for the plain path, step counted

`begin` makes the state of a parameter that has none yet.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.optim.optimizer import _default_to_fused_or_foreach

from aimopt.components import Initial, Parts, State, Step, first_gradient, scalar_dtype, scalar_one
from aimopt.moves import Bucket, gradient, working
from aimopt.tensors import LOW_PRECISION, TensorList


class Gathered(NamedTuple):
    """The parameters of a group that have a gradient, and all that a step needs to know of them."""

    position: int
    first_rank: int  # the rank of the group's first parameter, which need not have a gradient
    group: dict[str, Any]
    parts: Parts
    params: list[Tensor]
    grads: list[Tensor]
    ranks: list[int]  # their places among all parameters of the optimizer
    state: list[Tensor]  # of one after the other: its step count, then its buffers

    @classmethod
    def without_state(cls, position: int, group: dict[str, Any]) -> "Gathered":
        """The parameters that have a gradient, before anything is known of their state."""
        places = [i for i, p in enumerate(group["params"]) if p.grad is not None]
        params = [group["params"][i] for i in places]
        return cls(position, 0, group, Parts.from_group(group), params, [p.grad for p in params], places, [])

    def rows(self) -> list[tuple[Any, ...]]:
        """All tensors of each parameter: itself, its gradient, its state."""
        width = len(self.state) // len(self.params) if self.params else 1
        states = [self.state[i * width : (i + 1) * width] for i in range(len(self.params))]
        return [(p, grad, *state) for p, grad, state in zip(self.params, self.grads, states, strict=True)]

    def only(self, indices: Sequence[int]) -> "Gathered":
        """Some of the parameters."""
        if len(indices) == len(self.params):
            return self
        width = 1 + len(self.parts.buffers())
        return self._replace(
            params=[self.params[i] for i in indices],
            grads=[self.grads[i] for i in indices],
            ranks=[self.ranks[i] for i in indices],
            state=[x for i in indices for x in self.state[i * width : (i + 1) * width]],
        )

    def name_of(self, i: int) -> str:
        """How a message calls a parameter."""
        return parameter_name(self.group, self.ranks[i] - self.first_rank, f"group {self.position}")

    def states(self) -> list[State]:
        """The state of each parameter."""
        names = ("step", *self.parts.buffers())
        rows = zip(*(self.state[k :: len(names)] for k in range(len(names))), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]


def parameter_name(group: dict[str, Any], i: int, group_name: str = "its group") -> str:
    """How a message calls a parameter."""
    names = group.get("param_names") or ()
    return f"parameter {names[i]!r}" if i < len(names) else f"parameter {i} of {group_name}"


def begin(
    state: State,
    p: Tensor,
    group: dict[str, Any],
    buffers: dict[str, Initial],
    scalars: torch.device,
    grad_scale: Tensor | None,
) -> None:
    """Begin the state a parameter lacks: all of it at first, or what a part chosen later needs."""
    if state.keys() >= {"step", *buffers}:
        return
    state.setdefault("step", torch.zeros((), dtype=scalar_dtype(), device=scalars))
    assert p.grad is not None
    raw = working(p.grad) if grad_scale is None else working(p.grad) / grad_scale
    seen = gradient(working(p), raw, group)
    if seen.stride() != p.stride() and not p.is_complex():
        seen = torch.empty_like(p, dtype=seen.dtype).copy_(seen)  # state lies in memory as its parameter does
    for name, initial in buffers.items():
        if name in state:
            continue
        value = initial(seen if initial is first_gradient else seen.detach())
        if initial is scalar_one:
            state[name] = value.to(scalars)
        else:
            state[name] = torch.view_as_complex(value) if p.is_complex() else value.to(kept_in(p, group))


def kept_in(p: Tensor, group: dict[str, Any]) -> torch.dtype:
    """The dtype that a group keeps the state of a parameter in."""
    if group["state_dtype"] is not None and not p.is_complex():
        return cast(torch.dtype, getattr(torch, group["state_dtype"]))
    return torch.float32 if p.dtype in LOW_PRECISION else p.dtype


def uncounted(step: Tensor) -> str:
    """Why there is no step after this step count."""
    return f"its state 'step' is {step.item():g}, and steps are counted from 0"


def buckets(gathered: Gathered, grad_scale: Tensor | None = None) -> Iterator[Bucket]:
    """Count the steps, and split a group into what can move together."""
    if not gathered.params:
        return
    states = gathered.states()
    for same, t, many in _alike(gathered, [state["step"] for state in states]):
        alike, own = gathered.only(same), [states[i] for i in same]
        yield Bucket(gathered.parts, gathered.group, alike.params, alike.grads, own, alike.ranks, t, many, grad_scale)


def _alike(gathered: Gathered, steps: list[Tensor]) -> Iterator[tuple[list[int], Step, bool]]:
    """Count the step, and say what moves together: (indices, step count, whether as a list)."""
    group, params = gathered.group, gathered.params
    compiling = torch.compiler.is_compiling()
    on_device = group["capturable"] or compiling
    for i, step in enumerate(steps if not on_device else ()):
        if not step.item() >= 0:
            name = gathered.name_of(i)
            raise RuntimeError(
                f"{name} cannot be stepped: its state 'step' is {step.item():g}, and steps are counted from 0"
            )
    torch._foreach_add_(steps, 1)
    many = group["foreach"]
    if many is None:
        _, many = _default_to_fused_or_foreach(params, group["differentiable"] or compiling)
    if not many:
        for i, step in enumerate(steps):
            yield [i], step if on_device else step.item(), False
        return
    alike: dict[Any, list[int]] = {}
    for i, (p, step) in enumerate(zip(params, steps, strict=True)):
        alike.setdefault((p.device, p.dtype, None if on_device else step.item()), []).append(i)
    for (_, _, t), same in alike.items():
        yield same, cast(Tensor, TensorList([steps[i] for i in same])) if on_device else t, True
