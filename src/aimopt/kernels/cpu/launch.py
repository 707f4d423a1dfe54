"""The fused step on CPUs: a program encoded for the block interpreter in `step.cpp`, and its call.

EncodedProgram(program, types, …)      a program for streams of given dtypes
CpuStep(program, stochastic)           a parameter group's step: `run` takes the tensors that `addresses.py` located
"""

import ctypes
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from aimopt.kernels.addresses import AddressTable, LocatedTensors
from aimopt.kernels.cpu.library import Library, library
from aimopt.kernels.layout import (
    ELEMENT_CODES,
    NUMBERS,
    OPERANDS,
    PROGRAM_ARRAYS,
    PROGRAM_COUNTS,
    UNIFORM_CODES,
    RowLayout,
    arithmetic_type,
)
from aimopt.kernels.program import LR, SCALE, Instruction, Program, StepNumbers
from aimopt.kernels.symbols import Node, Number

DEVICE = "cpu"


class _CProgram(ctypes.Structure):
    """The structure `Program` of `layout.h`."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in PROGRAM_COUNTS),
        *((name, ctypes.c_void_p) for name in PROGRAM_ARRAYS),
    ]


class EncodedProgram:
    """A program for the interpreter, and the arrays that it points to."""

    def __init__(self, program: Program, types: tuple[int, ...], stochastic: bool):
        arithmetic = arithmetic_type(types)
        numbers = {name: i for i, name in enumerate((*program.scalars, LR, SCALE))}
        values = [0.0] * len(numbers)
        slot_of: dict[Number, int] = {}

        def slot(number: Number) -> int:
            if isinstance(number, Node) and number.op == "number":
                return numbers[number.args[0]]
            if number not in slot_of:
                slot_of[number] = len(values)
                values.append(0.0 if isinstance(number, Node) else number)
            return slot_of[number]

        uniform_code = [
            (UNIFORM_CODES[n.op], slot(n), *_padded(map(slot, n.args), len(OPERANDS))) for n in program.uniforms
        ]
        results = [i for name, number in program.scalar_results for i in (numbers[name], slot(number))]
        code = [
            (
                ELEMENT_CODES[i.op],
                i.out,
                *_padded(i.registers, len(OPERANDS)),
                *_padded(map(slot, i.numbers), len(NUMBERS)),
            )
            for i in _with_conversions(program, types, arithmetic, stochastic)
        ]
        self.lr, self.scale = numbers[LR], numbers[SCALE]
        self.constants = (ctypes.c_double * len(values))(*values)
        self._arrays = {
            "types": _ints(types),
            "written": _ints(name in program.written for name in program.streams),
            "code": _ints(x for instruction in code for x in instruction),
            "uniform_code": _ints(x for instruction in uniform_code for x in instruction),
            "result": _ints(results),
            "constants": self.constants,
        }
        counts = {
            "arithmetic": arithmetic,
            "streams": len(types),
            "scratch": program.scratch + len(types),
            "instructions": len(code),
            "uniforms": len(values),
            "uniform_instructions": len(uniform_code),
            "results": len(results) // 2,
        }
        self.program = _CProgram(**counts, **{name: ctypes.addressof(x) for name, x in self._arrays.items()})


def _padded(values: Iterable[int], length: int) -> list[int]:
    listed = list(values)
    return listed + [0] * (length - len(listed))


def _ints(values: Iterable[int]) -> Any:
    listed = list(values)
    return (ctypes.c_int32 * len(listed))(*listed)


def _with_conversions(
    program: Program, types: tuple[int, ...], arithmetic: int, stochastic: bool
) -> Iterator[Instruction]:
    """The code of a program, with 16-bit streams converted into scratch first and rounded back at the end."""
    first = len(program.streams) + program.scratch
    converted = {k: first + k for k, kind in enumerate(types) if kind != arithmetic}
    for k, scratch in converted.items():
        yield Instruction("load", scratch, (k,), ())
    for op, out, registers, numbers in program.code:
        yield Instruction(op, converted.get(out, out), tuple(converted.get(r, r) for r in registers), numbers)
    for k, scratch in converted.items():
        if program.streams[k] in program.written:
            yield Instruction("store_stochastic" if stochastic else "store", k, (scratch,), ())


class CpuStep:
    """The fused step of one parameter group."""

    def __init__(self, program: Program, stochastic: bool):
        lib = library()
        assert isinstance(lib, Library)
        self.lib, self.program, self.stochastic = lib, program, stochastic
        row = RowLayout(len(program.scalars), len(program.streams))
        self._gradient_column, self._row_width = row.gradient, row.width
        self._encoded: dict[tuple[int, ...], EncodedProgram] = {}

    def run(self, located: LocatedTensors, numbers: StepNumbers) -> int | None:
        """Step the located tensors; return the index of the first one with an invalid step count, or None."""
        lr = _float(numbers.lr)
        scale = 1.0 if numbers.scale is None else _float(numbers.scale)
        for table in located.coverage.tables:
            table.rows[self._gradient_column :: self._row_width] = array("q", table.select(located.grad_addresses))
            invalid = self._call(table, lr, scale)
            if invalid >= 0:
                return table.members[invalid]
            torch.autograd.graph.increment_version(table.select(located.params))
        return None

    def _call(self, table: AddressTable, lr: float, scale: float) -> int:
        encoded = self._encoded.get(table.types)
        if encoded is None:
            encoded = self._encoded[table.types] = EncodedProgram(self.program, table.types, self.stochastic)
        encoded.constants[encoded.lr], encoded.constants[encoded.scale] = lr, scale
        return int(
            self.lib.step(
                ctypes.byref(encoded.program),
                table.rows.buffer_info()[0],
                len(table.members),
                _ints(table.scalar_types),
                len(self.program.scalars),
                self.lib.isa,
                torch.get_num_threads(),
            )
        )


def _float(number: float | Tensor) -> float:
    return number.item() if isinstance(number, Tensor) else number
