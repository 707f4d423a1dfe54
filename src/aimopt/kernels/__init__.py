"""Fused steps: a whole optimizer step in one pass over memory.

A step that is element-wise becomes a program (`program.py`, by running the optimizer's own arithmetic on the symbols
of `symbols.py`), and a program is run

    on CPUs    by the block interpreter of `step.cpp` (`cpu.py`)
    on GPUs    by Triton, printed as source (`gpu.py`)

So a filter or geometry that you write is fused as well, and there is no second statement of any rule. What cannot be
fused takes the plain path. `status()` tells what is live here, and `python -m aimopt` prints it.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from aimopt.components import Parts
from aimopt.kernels import cpu, gpu
from aimopt.kernels.library import library
from aimopt.kernels.memory import Checked
from aimopt.kernels.program import Fusible, Numbers, Program, fuse
from aimopt.kernels.tables import TYPES, Located, Locator


def status() -> dict[str, str]:
    """The paths a step may take here: whether each is live, and why or why not."""
    lib = library()
    if isinstance(lib, str):
        on_cpu = f"off: {lib}"
    else:
        threads = "torch's threads" if lib.shares_threads else "threads of its own"
        on_cpu = f"on: {cpu.ISAS[lib.isa]}, {threads} ({torch.get_num_threads()})"
    why_off = gpu.missing()
    return {
        "fused, CPU": on_cpu,
        "fused, CUDA": f"off: {why_off}" if why_off else "on: Triton",
        "foreach": "on: torch's multi-tensor functions",
        "plain": "on",
    }


def _backend(device_type: str) -> Any:
    """The module that runs programs on this kind of device, or why there is none."""
    if device_type == gpu.DEVICE:
        return gpu.missing() or gpu
    if device_type == cpu.DEVICE:
        lib = library()
        return lib if isinstance(lib, str) else cpu
    return f"there is no kernel for tensors on {device_type!r}"


def program_of(parts: Parts, group: dict[str, Any], *, scaled: bool = False) -> Program | str:
    """The program of a group's step, or why it has none."""
    try:
        return fuse(Fusible.of(parts, group, scaled=scaled))
    except Exception as reason:  # whatever a part does to symbols: also a field without a hash, an error of its own
        return str(reason)


def why_not(parts: Parts, group: dict[str, Any]) -> str | None:
    """Why the step of this group cannot be fused, for `fused=True`; None if it can."""
    names = " + ".join(type(part).__name__ for part in parts)
    if isinstance(program := program_of(parts, group), str):
        return f"{names} has no fused step: {program}"
    for name in ("differentiable", "foreach"):
        if group[name]:
            return f"{name}=True takes another path"
    for device_type in (kinds := sorted({p.device.type for p in group["params"]})):
        if isinstance(reason := _backend(device_type), str):
            return reason
    if len(kinds) > 1:
        return f"the parameters of this group are on {' and '.join(kinds)}"
    for p in group["params"]:
        if p.dtype not in TYPES:
            return f"there is no kernel for {p.dtype}"
        if group["state_dtype"] is not None and p.dtype == torch.float64:
            return f"there is no kernel for {p.dtype} with state_dtype={group['state_dtype']!r}"
    return None


def reads_found_inf(p: Tensor) -> bool:
    """Whether the kernel for a tensor can leave it as it is where `found_inf` says so."""
    return p.device.type == gpu.DEVICE


class FusedGroup:
    """The fused step of one parameter group, kept from step to step."""

    def __init__(self) -> None:
        self.off: str | None = None  # why there is none
        self.unreachable: Sequence[int] = ()  # the parameters of the step at hand that take the plain path
        self._made_of: tuple[Any, ...] = ()
        self._plan: cpu.Plan | gpu.Plan | None = None
        self._locator: Locator | None = None
        self._located: Located | None = None

    def locate(self, checked: Checked, *, scaled: bool) -> None:
        """Locate the parameters that a kernel can step; the others are `unreachable`."""
        group, parts, params = checked.gathered.group, checked.gathered.parts, checked.gathered.params
        made_of = Fusible.of(parts, group, scaled=scaled), group["stochastic_rounding"], params[0].device.type
        if self._made_of != made_of:
            self._plan = self._planned(parts, group, scaled, _backend(params[0].device.type))
            self._made_of = made_of
        if self._plan is None or self._locator is None:
            self.unreachable = range(len(params))
        else:
            self._located = self._locator.locate(checked)
            self.unreachable = self._located.reach.unreachable

    def _planned(self, parts: Parts, group: dict[str, Any], scaled: bool, backend: Any) -> "cpu.Plan | gpu.Plan | None":
        program = program_of(parts, group, scaled=scaled)
        self.off = next((reason for reason in (program, backend) if isinstance(reason, str)), None)
        if isinstance(program, str) or self.off is not None:
            return None
        locator = Locator(program, ("step", *parts.buffers()), backend.DEVICE)
        if locator != self._locator:  # a schedule of a hyperparameter changes the program, not the tensors
            self._locator = locator
        return cast("cpu.Plan | gpu.Plan", backend.Plan(program, group["stochastic_rounding"]))

    def run(self, lr: float | Tensor, grad_scale: Tensor | None, found_inf: Tensor | None) -> int | None:
        """Step what was located; where a step count is no count, return whose, as of what was gathered."""
        located = self._located
        self.forget()  # gradients are not to live longer than their step
        if self._plan is None or located is None:
            return None
        uncounted = self._plan.run(located.laid_out(), Numbers(lr, grad_scale, found_inf))
        return None if uncounted is None else located.layout.members[uncounted]

    def forget(self) -> None:
        """Let go of the tensors that were located."""
        self._located = None
