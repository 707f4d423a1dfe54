"""A program as the CPU kernel reads it: arrays of numbers, and the structure that decides which code can run it.

EncodedProgram(program, types, stochastic)      the arrays, for streams of these dtypes
structure_of(program, types, stochastic)        equal structures are run by the same straight-line code

The numbers of a program (learning rate, betas, …) are not part of its structure: they are values that the code reads,
in the order of their use.
"""

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

from aimopt.kernels.layout import (
    ELEMENT_CODES,
    NUMBERS,
    OPERANDS,
    PROGRAM_ARRAYS,
    PROGRAM_COUNTS,
    UNIFORM_CODES,
    arithmetic_type,
    scale_indices,
)
from aimopt.kernels.program import LR, SCALE, Instruction, Program, draw_indices
from aimopt.kernels.symbols import Node, Number


class Operation(NamedTuple):
    """An instruction without its numbers."""

    op: str
    out: int
    registers: tuple[int, ...]
    numbers: int  # how many numbers it reads


@dataclass(frozen=True)
class Structure:
    """What the machine code of a program depends on."""

    types: tuple[int, ...]  # of the streams
    written: tuple[bool, ...]  # which streams are written
    code: tuple[Operation, ...]
    stochastic: bool  # whether narrow streams are rounded stochastically

    @cached_property
    def digest(self) -> int:
        """A number of 64 bits that identifies this structure."""
        parts = (self.types, self.written, self.code, self.stochastic)
        return int.from_bytes(sha256(repr(parts).encode()).digest()[:8], "little")


def structure_of(program: Program, types: tuple[int, ...], stochastic: bool) -> Structure:
    """The structure of a program for streams of these types."""
    written = tuple(name in program.written for name in program.streams)
    arithmetic = arithmetic_type(types)
    rounded = any(is_written and kind != arithmetic for is_written, kind in zip(written, types, strict=True))
    code = tuple(Operation(i.op, i.out, i.registers, len(i.numbers)) for i in program.code)
    return Structure(types, written, code, stochastic and rounded)


class _CProgram(ctypes.Structure):
    """The structure `Program` of `layout.h`."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in PROGRAM_COUNTS),
        *((name, ctypes.c_void_p) for name in PROGRAM_ARRAYS),
    ]


class EncodedProgram:
    """A program for the CPU kernel, and the arrays that it points to."""

    def __init__(self, program: Program, types: tuple[int, ...], stochastic: bool):
        arithmetic = arithmetic_type(types)
        self.structure = structure_of(program, types, stochastic)
        self.elements = 0  # how many it has stepped, as far as that is counted
        inputs = {name: i for i, name in enumerate((*program.scalars, LR, SCALE, *program.inputs))}
        values = [0.0] * len(inputs)
        slot_of: dict[Number, int] = {}

        def slot(number: Number) -> int:
            if isinstance(number, Node) and number.op == "number":
                return inputs[number.args[0]]
            if number not in slot_of:
                slot_of[number] = len(values)
                values.append(0.0 if isinstance(number, Node) else number)
            return slot_of[number]

        uniform_code = [
            (UNIFORM_CODES[n.op], slot(n), *_padded(map(slot, n.args), len(OPERANDS))) for n in program.uniforms
        ]
        results = [i for name, number in program.scalar_results for i in (inputs[name], slot(number))]
        number_slots = [slot(number) for instruction in program.code for number in instruction.numbers] or [0]
        code = list(_with_positions(_with_conversions(program, types, arithmetic, stochastic)))
        self.first_input = inputs[LR]  # then the scale, then the inputs of the program
        self.constants = (ctypes.c_double * len(values))(*values)
        self._arrays = {
            "types": _ints(types),
            "written": _ints(self.structure.written),
            "code": _ints(x for instruction in code for x in instruction),
            "number_slots": _ints(number_slots),
            "uniform_code": _ints(x for instruction in uniform_code for x in instruction),
            "result": _ints(results),
            "constants": self.constants,
        }
        counts = {
            "arithmetic": arithmetic,
            "streams": len(types),
            "scales": len(scale_indices(types)),
            "scratch": program.scratch + len(types),
            "instructions": len(code),
            "numbers": len(number_slots),
            "uniforms": len(values),
            "uniform_instructions": len(uniform_code),
            "results": len(results) // 2,
        }
        self.program = _CProgram(**counts, **{name: ctypes.addressof(x) for name, x in self._arrays.items()})


def _with_conversions(
    program: Program, types: tuple[int, ...], arithmetic: int, stochastic: bool
) -> Iterator[Instruction]:
    """The code of a program, with narrow streams converted into scratch first and rounded back at the end."""
    first = len(program.streams) + program.scratch
    converted = {k: first + k for k, kind in enumerate(types) if kind != arithmetic}
    draw_of, scale_of = draw_indices(types), scale_indices(types)
    for k, scratch in converted.items():
        yield Instruction("load", scratch, (k, scale_of.get(k, 0)), ())
    for op, out, registers, numbers in program.code:
        yield Instruction(op, converted.get(out, out), tuple(converted.get(r, r) for r in registers), numbers)
    for k, scratch in converted.items():
        if program.streams[k] in program.written:  # the draw and the scales are further operands
            operands = (scratch, draw_of[k], scale_of.get(k, 0))
            yield Instruction("store_stochastic" if stochastic else "store", k, operands, ())


def _with_positions(code: Iterable[Instruction]) -> Iterator[tuple[int, ...]]:
    """Each instruction as integers; its numbers are those after the numbers of the instruction before."""
    position = 0
    for op, out, registers, numbers in code:
        positions = range(position, position + len(numbers))
        position += len(numbers)
        yield ELEMENT_CODES[op], out, *_padded(registers, len(OPERANDS)), *_padded(positions, len(NUMBERS))


def _padded(values: Iterable[int], length: int) -> list[int]:
    listed = list(values)
    return listed + [0] * (length - len(listed))


def _ints(values: Iterable[int]) -> Any:
    listed = list(values)
    return (ctypes.c_int32 * len(listed))(*listed)
