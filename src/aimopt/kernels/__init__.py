"""Fused steps: a whole optimizer step in one pass over memory.

A step that is element-wise becomes a program (`program.py`, by running the optimizer's own arithmetic on the symbols
of `symbols.py`). A program is run

    on CPUs    by straight-line code in C++, or by an interpreter until that is compiled (`cpu/`)
    on GPUs    by Triton, printed as source (`gpu/`)

So a filter or geometry that you write is fused as well, and no rule is stated twice. A step that cannot be fused runs
unfused. `status()` lists the paths that are available here, and `python -m aimopt` prints them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from aimopt.kernels.addresses import STREAM_TYPES, LocatedTensors, Locator
from aimopt.kernels.cpu import launch as cpu
from aimopt.kernels.cpu.compiled import find_compiler
from aimopt.kernels.cpu.library import library
from aimopt.kernels.gpu import launch as gpu
from aimopt.kernels.layout import INSTRUCTION_SETS
from aimopt.kernels.memory import CheckedGroup
from aimopt.kernels.program import (
    Field,
    Program,
    ProgramKey,
    StepNumbers,
    changed_numbers,
    fuse,
    inputs_of,
    with_inputs,
)
from aimopt.messages.reason import Reason
from aimopt.parts.composition import Parts
from aimopt.parts.geometries import Euclidean


def status() -> dict[str, str]:
    """The paths that a step may take here: whether each one is on, and why or why not."""
    lib, gpu_reason, compiler = library(), gpu.why_unavailable(), find_compiler()
    if isinstance(lib, Reason):
        cpu_status = f"off: {lib}"
    else:
        threads = "torch's threads" if lib.shares_threads else "threads of its own"
        cpu_status = f"on: {list(INSTRUCTION_SETS.values())[lib.isa]}, {threads} ({torch.get_num_threads()})"
    own_parts = f"interpreted: {compiler}" if isinstance(compiler, Reason) else f"compiled when used: {compiler}"
    return {
        "fused, CPU": cpu_status,
        "fused, CPU, your own parts": own_parts,
        "fused, CUDA": f"off: {gpu_reason}" if gpu_reason else "on: Triton",
        "foreach": "on: torch's multi-tensor functions",
        "plain": "on",
    }


class FusedStep(Protocol):
    """A program with everything that it needs to run on one kind of device."""

    def run(self, located: LocatedTensors, numbers: StepNumbers) -> int | None:
        """Step the located tensors; return the index of the first one with an invalid step count, or None."""


class Backend(NamedTuple):
    """What runs programs on one kind of device."""

    device_type: str
    make_step: Callable[[Program, bool], FusedStep]


def _backend(device_type: str) -> Backend | Reason:
    """The backend of this kind of device, or the reason why there is none."""
    if device_type == gpu.DEVICE:
        return gpu.why_unavailable() or Backend(device_type, gpu.GpuStep)
    if device_type == cpu.DEVICE:
        lib = library()
        return lib if isinstance(lib, Reason) else Backend(device_type, cpu.CpuStep)
    return Reason(f"there is no kernel for tensors on {device_type!r}")


def program_of(parts: Parts, group: dict[str, Any], *, scaled: bool = False) -> Program | Reason:
    """The program of a group's step, or the reason why it has none."""
    return _fuse(ProgramKey.from_group(parts, group, scaled=scaled))


def _fuse(key: ProgramKey) -> Program | Reason:
    try:
        return fuse(key)
    except Exception as error:  # a user's part may raise anything when it gets symbols
        return Reason(str(error))


def works_on_shards(parts: Parts, group: dict[str, Any]) -> bool:
    """Whether a step can run on the local parts of distributed tensors: it is element-wise, but for a matrix geometry.

    What has a program is element-wise. A matrix geometry gathers its matrices itself (`step/owners.py`).
    """
    if parts.geometry.matrices_only:
        parts = parts._replace(geometry=Euclidean())
    return not group["differentiable"] and isinstance(program_of(parts, group), Program)


def why_not_sharded(parts: Parts, group: dict[str, Any]) -> Reason | None:
    """Why a matrix geometry cannot step a sharded matrix, or None. Autograd cannot follow matrices to their owners."""
    if not group["differentiable"] or not parts.geometry.buffers() or isinstance(program_of(parts, group), Program):
        return None
    name = type(parts.geometry).__name__
    return Reason(
        f"it is sharded, and with differentiable=True {name} would need its state as a whole; use Muon here, or DDP"
    )


def why_not_fused(parts: Parts, group: dict[str, Any]) -> Reason | None:
    """Why the step of this group cannot be fused, for `fused=True`; None if it can be."""
    if isinstance(program := program_of(parts, group), Reason):
        names = " + ".join(type(part).__name__ for part in parts)
        return Reason(f"{names} has no fused step: {program}")
    for name in ("differentiable", "foreach"):
        if group[name]:
            return Reason(f"{name}=True takes another path")
    device_types = sorted({p.device.type for p in group["params"]})
    for device_type in device_types:
        if isinstance(backend := _backend(device_type), Reason):
            return backend
    if len(device_types) > 1:
        return Reason(f"the parameters of this group are on {' and '.join(device_types)}")
    for p in group["params"]:
        if p.dtype not in STREAM_TYPES:
            return Reason(f"there is no kernel for {p.dtype}")
        if group["state_dtype"] is not None and p.dtype == torch.float64:
            return Reason(f"there is no kernel for {p.dtype} with state_dtype={group['state_dtype']!r}")
    return None


def reads_found_inf(p: Tensor) -> bool:
    """Whether the kernel for this tensor reads `found_inf` itself, and then leaves the tensor unchanged."""
    return p.device.type == gpu.DEVICE


class _StepKey(NamedTuple):
    """Everything that a fused step is made for."""

    program: ProgramKey
    stochastic_rounding: bool
    device_type: str
    state_keys: tuple[str, ...]  # the order of a parameter's state


class FusedGroup:
    """The fused step of one parameter group, reused from step to step."""

    def __init__(self) -> None:
        self.reason: Reason | None = None  # why there is no fused step
        self.unreachable: Sequence[int] = ()  # indices of the gathered parameters that the kernel does not step
        self._made_for: _StepKey | None = None
        # The hyperparameters that have changed from step to step; None if they cannot be inputs of the program.
        self._inputs: frozenset[Field] | None = frozenset()
        self._input_values: tuple[float, ...] = ()
        self._step: FusedStep | None = None
        self._step_key: _StepKey | None = None  # of `_step`; equals `_made_for`, but for the inputs
        self._locator: Locator | None = None
        self._located: LocatedTensors | None = None

    def locate(self, checked: CheckedGroup, *, scaled: bool) -> None:
        """Locate the parameters that a kernel can step; the others are `unreachable`."""
        group, parts, params = checked.gathered.group, checked.gathered.parts, checked.gathered.params
        device_type = params[0].device.type
        program_key = ProgramKey.from_group(parts, group, scaled=scaled)
        key = _StepKey(program_key, group["stochastic_rounding"], device_type, checked.gathered.keys)
        if self._made_for != key:
            self._adapt(key)
            self._made_for = key
        if self._step is None or self._locator is None:
            self.unreachable = range(len(params))
        else:
            self._located = self._locator.locate(checked)
            self.unreachable = self._located.coverage.unreachable

    def _adapt(self, key: "_StepKey") -> None:
        """Make a step for this key. Hyperparameters that a schedule changes become inputs of the program."""
        parts, general = key.program.parts, key
        if self._made_for is not None and self._inputs is not None and key.device_type == cpu.DEVICE:
            self._inputs |= changed_numbers(self._made_for.program.parts, parts)
            general = key._replace(program=key.program._replace(parts=with_inputs(parts, self._inputs)))
            if self._inputs and isinstance(_fuse(general.program), Reason):  # a part branches on one of them
                self._inputs, general = None, key
        if general != self._step_key:
            self._step, self._step_key = self._make_step(general), general
        inputs = inputs_of(general.program.parts)
        self._input_values = tuple(getattr(getattr(parts, axis), name) for axis, name in inputs)

    def _make_step(self, key: "_StepKey") -> FusedStep | None:
        self.reason = None
        program, backend = _fuse(key.program), _backend(key.device_type)
        if isinstance(program, Reason):
            self.reason = program
            return None
        if isinstance(backend, Reason):
            self.reason = backend
            return None
        locator = Locator(program, key.state_keys, backend.device_type)
        if locator != self._locator:  # a schedule of a hyperparameter changes the program, not the tensors
            self._locator = locator
        return backend.make_step(program, key.stochastic_rounding)

    def run(self, lr: float | Tensor, grad_scale: Tensor | None, found_inf: Tensor | None) -> int | None:
        """Step the located parameters; return the gathered index of one with an invalid step count, or None."""
        located = self._located
        self.release_tensors()
        if self._step is None or located is None:
            return None
        numbers = StepNumbers(lr, grad_scale, found_inf, self._input_values)
        invalid = self._step.run(located.with_ordered_gradients(), numbers)
        return None if invalid is None else located.snapshot.plain_indices[invalid]

    def release_tensors(self) -> None:
        """Drop the references to the located tensors: a gradient must not live longer than its step."""
        self._located = None
