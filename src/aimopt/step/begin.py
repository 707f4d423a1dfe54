"""The first state of parameters: all of it before their first step, or the buffers of a part that was chosen later."""

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aimopt.messages.reason import Reason
from aimopt.parts.component import State, scalar_dtype
from aimopt.parts.composition import Parts
from aimopt.step.gather import Gathered, refusal
from aimopt.step.move import gradient, to_working_dtype
from aimopt.step.quantization import coded_buffers, scale_name, stored_buffer
from aimopt.step.shards import distributed_buffer, whole_tensor
from aimopt.step.usable import refuse_unusable

AddedState = list[tuple[Tensor, list[str]]]  # parameters, and the keys that were added to their state


def begin_state(
    param_groups: Sequence[dict[str, Any]],
    params: Sequence[Tensor],
    states: MutableMapping[Tensor, Any],
    added: AddedState,
    *,
    optimizer: str,
    grad_scale: Tensor | None,
    compiling: bool,
) -> None:
    """Make the state that these parameters of one group lack, and note in `added` what is new, also if this raises."""
    wanted = {*map(id, params)}
    index = next(i for i, group in enumerate(param_groups) if not wanted.isdisjoint(map(id, group["params"])))
    gathered = Gathered.gradients_only(index, param_groups[index])
    gathered = gathered.select([i for i, p in enumerate(gathered.params) if id(p) in wanted])
    for i, p in enumerate(gathered.params):
        state = states.setdefault(p, {})
        if not isinstance(state, dict):
            reason = f"its state is a {type(state).__name__}, not a dict; delete it (del optimizer.state[p])"
            raise refusal(gathered, i, optimizer, Reason(reason))
        added.append((p, [name for name in gathered.keys if name not in state]))
    refuse_unusable(gathered, optimizer)
    for p in gathered.params:
        scalar_device = p.device if gathered.group["capturable"] or compiling else torch.device("cpu")
        _begin(states[p], p, gathered.group, gathered.parts, scalar_device, grad_scale)


def remove_state(states: MutableMapping[Tensor, Any], added: AddedState) -> None:
    """Remove what was added, because the step was not made."""
    for p, keys in added:
        earlier = {name: value for name, value in states.pop(p, {}).items() if name not in keys}
        if earlier:
            states[p] = earlier


def _begin(
    state: State,
    p: Tensor,
    group: dict[str, Any],
    parts: Parts,
    scalar_device: torch.device,
    grad_scale: Tensor | None,
) -> None:
    """Make the state that a parameter lacks."""
    buffers = parts.buffers()
    scales = {scale_name(name) for name in coded_buffers(buffers, group)}
    if state.keys() >= {"step", *buffers, *scales}:
        return
    state.setdefault("step", torch.zeros((), dtype=scalar_dtype(), device=scalar_device))
    assert p.grad is not None
    raw = to_working_dtype(p.grad) if grad_scale is None else to_working_dtype(p.grad) / grad_scale
    g = gradient(to_working_dtype(p), raw, group, parts)
    if g.stride() != p.stride() and not p.is_complex():
        g = torch.empty_like(p, dtype=g.dtype).copy_(g)  # state has the memory layout of its parameter
    of_matrices = parts.geometry.buffers() if parts.geometry.matrices_only else {}
    for name, initial in buffers.items():
        if name in state:
            continue
        if initial.shaped and name in of_matrices:  # its owner needs it as a whole (`owners.py`)
            value = distributed_buffer(initial.start(whole_tensor(g), whole_tensor(to_working_dtype(p))), p)
        else:
            value = initial.start(g, to_working_dtype(p))
        if initial.scalar:
            state[name] = value.to(scalar_device)
        elif p.is_complex() and not initial.shaped:
            state[name] = torch.view_as_complex(value)
        else:
            state[name], scale = stored_buffer(value, p, initial, group)
            if scale is not None:
                state[scale_name(name)] = scale
    for key in scales - state.keys():  # of a buffer from before the group's state dtype was changed
        state[key] = torch.empty(0, dtype=torch.float32, device=p.device)
