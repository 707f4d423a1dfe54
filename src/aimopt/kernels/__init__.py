"""Fused steps: a whole optimizer step in one pass over memory.

A step that is element-wise becomes a program (`program.py`, by running the optimizer's own arithmetic on the symbols
of `symbols.py`), and a program is run

    on CPUs    by the block interpreter of `step.cpp` (`cpu.py`)

So a filter or geometry that you write is fused as well, and there is no second statement of any rule. What cannot be
fused takes the plain path. `status()` tells what is live here, and `python -m aimopt` prints it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aimopt.components import Parts
from aimopt.kernels import cpu
from aimopt.kernels.program import Fusible, Program, fuse
from aimopt.kernels.symbols import Untraceable


def status() -> dict[str, str]:
    """The paths a step may take here: whether each is live, and why or why not."""
    lib = cpu.library()
    if isinstance(lib, str):
        fused = f"off: {lib}"
    else:
        threads = "torch's threads" if lib.shares_threads else "threads of its own"
        fused = f"on: {cpu.ISAS[lib.isa]}, {threads} ({torch.get_num_threads()})"
    return {"fused, CPU": fused, "foreach": "on: torch's multi-tensor functions", "plain": "on"}


def program_of(parts: Parts, group: dict[str, Any], *, scaled: bool = False) -> Program | str:
    """The program of a group's step, or why it has none."""
    try:
        return fuse(Fusible.of(parts, group, scaled=scaled))
    except Untraceable as reason:
        return str(reason)
    except TypeError as error:  # a part with a field that cannot be hashed, or that does something odd to a symbol
        return str(error)


def why_not(parts: Parts, group: dict[str, Any]) -> str | None:
    """Why the step of this group cannot be fused, for `fused=True`; None if it can."""
    lib = cpu.library()
    if isinstance(lib, str):
        return lib
    names = " + ".join(type(part).__name__ for part in parts)
    if isinstance(program := program_of(parts, group), str):
        return f"{names} has no fused step: {program}"
    for name in ("differentiable", "foreach"):
        if group[name]:
            return f"{name}=True takes another path"
    for p in group["params"]:
        if p.device.type != "cpu":
            return f"there is no kernel for tensors on {p.device.type!r}"
        if p.dtype not in cpu.TYPES:
            return f"there is no kernel for {p.dtype}"
    return None


class FusedGroup:
    """The fused step of one parameter group, kept from step to step."""

    def __init__(self) -> None:
        self._made_of: tuple[Any, ...] = ()
        self._plan: cpu.Plan | None = None

    def run(
        self,
        group: dict[str, Any],
        parts: Parts,
        params: list[Tensor],
        ranks: list[int],
        states: list[tuple[Tensor, ...]],
        grad_scale: Tensor | None,
    ) -> Sequence[int]:
        """Step the parameters that a kernel can reach, and return the indices of the others."""
        settings = [
            group[name] for name in ("weight_decay", "decoupled_weight_decay", "maximize", "stochastic_rounding")
        ]
        made_of = (parts, *settings, grad_scale is not None)
        if self._made_of != made_of:
            self._made_of = made_of
            program = program_of(parts, group, scaled=grad_scale is not None)
            usable = not isinstance(program, str) and not isinstance(cpu.library(), str)
            names = ("step", *parts.buffers())
            self._plan = cpu.Plan(program, names, group["stochastic_rounding"]) if usable else None
        if self._plan is None or not params[0].is_cpu:
            return range(len(params))
        lr = group["lr"].item() if isinstance(group["lr"], Tensor) else group["lr"]
        return self._plan.run(params, ranks, states, lr, 1.0 if grad_scale is None else grad_scale.item())
