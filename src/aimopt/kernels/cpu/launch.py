"""The fused step on CPUs: the call of the native library.

    CpuStep(program, stochastic)           a parameter group's step: `run` takes the tensors that `addresses.py` located

A program is run by straight-line code: from the library if it is that of a named optimizer, else compiled in the
background once the program has stepped `HOT` elements. Until then, and without a compiler, it is interpreted.
"""

import ctypes
from array import array

import torch
from torch import Tensor

from aimopt.kernels.addresses import AddressTable, LocatedTensors
from aimopt.kernels.cpu.compiled import compiled_kernels
from aimopt.kernels.cpu.encode import EncodedProgram
from aimopt.kernels.cpu.library import Library, library
from aimopt.kernels.layout import INSTRUCTION_SETS
from aimopt.kernels.program import Program, StepNumbers

DEVICE = "cpu"
HOT = 1 << 26  # elements: about a second of stepping; the compiler takes about a second too


class CpuStep:
    """The fused step of one parameter group."""

    def __init__(self, program: Program, stochastic: bool):
        lib = library()
        assert isinstance(lib, Library)
        self.lib, self.program, self.stochastic = lib, program, stochastic
        self._encoded: dict[tuple[int, ...], EncodedProgram] = {}

    def run(self, located: LocatedTensors, numbers: StepNumbers) -> int | None:
        """Step the located tensors; return the index of the first one with an invalid step count, or None."""
        scale = 1.0 if numbers.scale is None else _float(numbers.scale)
        inputs = (_float(numbers.lr), scale, *numbers.inputs)
        for table in located.coverage.tables:
            row = table.layout
            table.rows[row.gradient :: row.width] = array("q", table.select(located.grad_addresses))
            invalid = self._call(table, inputs)
            if invalid >= 0:
                return table.members[invalid]
            torch.autograd.graph.increment_version(table.select(located.params))
        return None

    def _call(self, table: AddressTable, inputs: tuple[float, ...]) -> int:
        encoded = self._encoded.get(table.types)
        if encoded is None:
            encoded = self._encoded[table.types] = EncodedProgram(self.program, table.types, self.stochastic)
            encoded.program.kernel = self.lib.find_kernel(encoded.structure.digest, self.lib.isa)
        if not encoded.program.kernel:
            self._find_kernel(encoded, table)
        for slot, value in enumerate(inputs, start=encoded.first_input):
            encoded.constants[slot] = value
        return int(
            self.lib.step(
                ctypes.byref(encoded.program),
                table.rows.buffer_info()[0],
                len(table.members),
                (ctypes.c_int32 * len(table.scalar_types))(*table.scalar_types),
                len(self.program.scalars),
                self.lib.isa,
                torch.get_num_threads(),
            )
        )

    def _find_kernel(self, encoded: EncodedProgram, table: AddressTable) -> None:
        """Use a kernel that was compiled for this program, or have one compiled once it is worth it."""
        kernels = compiled_kernels([*INSTRUCTION_SETS][self.lib.isa])
        encoded.program.kernel = kernels.find(encoded.structure)
        if encoded.elements < HOT:
            encoded.elements += sum(table.rows[table.layout.NUMEL :: table.layout.width])
            if encoded.elements >= HOT:
                kernels.request(encoded.structure)


def _float(number: float | Tensor) -> float:
    return number.item() if isinstance(number, Tensor) else number
