"""Evaluation: put parameters where their model is to be evaluated, and back to the bit.

    refuse_immovable(groups, state, "RADAR.eval")      an error for tensors that cannot be copied, before any is
    enter(group, state)                                parameters are at their iterate's point of evaluation
    leave(group, state)                                parameters are where training goes on

The points of training are kept in the state meanwhile, so that a checkpoint that is written then holds both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from aimopt.parts.component import State
from aimopt.parts.composition import Parts, parts_of_groups
from aimopt.step.gather import Unusable, parameter_name
from aimopt.step.move import to_working_dtype
from aimopt.step.usable import why_unusable

TRAIN_MODE = "train_mode"  # the key of a group, as in the package schedulefree
TRAINING_POINT = "training_point"  # the state key


def refuse_immovable(groups: Sequence[dict[str, Any]], states: Mapping[Tensor, State], called: str) -> None:
    """Raise `Unusable` for the first parameter that its state cannot be copied to.

    torch would follow the address of a storage that was freed, and repeat a point to fill a larger shape.
    """
    for index, (group, parts) in enumerate(zip(groups, parts_of_groups(groups, called), strict=True)):
        buffers = {name: initial for name, initial in parts.buffers().items() if name in parts.iterate.buffers()}
        for i, p in enumerate(group["params"]):
            points = {name: x for name, x in states.get(p, {}).items() if name in buffers or name == TRAINING_POINT}
            scalars = {name: points.pop(name) for name in [*points] if name in buffers and buffers[name].scalar}
            shapes = {name: initial.shape_for(p) for name, initial in buffers.items() if initial.shaped}
            if points and (reason := why_unusable(p, p, points, scalars, shapes)) is not None:
                name = parameter_name(group, i, f"group {index}")
                raise Unusable(f"{called}: {name} cannot be moved: {reason}")


def enter(group: dict[str, Any], states: Mapping[Tensor, State]) -> None:
    """Move the parameters of a group to their point of evaluation. Does nothing if that is where they are."""
    parts = Parts.from_group(group)
    if not group[TRAIN_MODE]:
        return
    for p in group["params"]:
        state = states.get(p, {})
        if not state.keys() >= parts.iterate.buffers().keys() or "step" not in state:
            continue  # a parameter without a gradient so far
        working = {name: to_working_dtype(state[name]) for name in parts.iterate.buffers()}
        point = parts.iterate.evaluation_point(working, to_working_dtype(p))
        if point is not None:
            state[TRAINING_POINT] = p.detach().clone()
            (to_working_dtype(p) if p.is_complex() else p).copy_(point)
            group[TRAIN_MODE] = False


def leave(group: dict[str, Any], states: Mapping[Tensor, State]) -> None:
    """Move the parameters of a group back to where training goes on."""
    for p in group["params"]:
        if TRAINING_POINT in states.get(p, {}):
            p.copy_(states[p][TRAINING_POINT])
            del states[p][TRAINING_POINT]  # only now: the copy may fail
    group[TRAIN_MODE] = True
