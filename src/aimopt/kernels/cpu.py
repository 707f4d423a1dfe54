"""The fused step on CPUs: a program compiled for the block interpreter in `step.cpp`, and the tensors it runs on.

Compiled(program, types, …)    a program for streams of given dtypes
Plan(program, stochastic)      a parameter group's step: `run` takes the tensors that `tables.py` located
"""

import ctypes
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from aimopt.kernels.library import Library, library
from aimopt.kernels.program import LR, SCALE, Instruction, Numbers, Program
from aimopt.kernels.symbols import Node, Number
from aimopt.kernels.tables import Located, Table, math_of

ISAS = ("baseline", "AVX2", "AVX-512", "NEON")
DEVICE = "cpu"

# The members of `Program` in `step.cpp`.
_COUNTS = ("math", "streams", "scratch", "instructions", "uniforms", "uniform_instructions", "results")


class _CProgram(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in _COUNTS),
        *((name, ctypes.c_void_p) for name in ("types", "written", "code", "uniform_code", "result", "constants")),
    ]


class Compiled:
    """A program for the interpreter, and what it points to."""

    def __init__(self, program: Program, types: tuple[int, ...], stochastic: bool, lib: Library):
        math = math_of(types)
        numbers = {name: i for i, name in enumerate((*program.scalars, LR, SCALE))}
        values = [0.0] * len(numbers)
        known: dict[Number, int] = {}

        def slot(number: Number) -> int:
            if isinstance(number, Node) and number.op == "number":
                return numbers[number.args[0]]
            if number not in known:
                known[number] = len(values)
                values.append(0.0 if isinstance(number, Node) else number)
            return known[number]

        def slots(of: Iterable[Number], width: int) -> list[int]:
            found = [slot(number) for number in of]
            return found + [0] * (width - len(found))

        uniform_code = [(lib.uniform_ops[n.op], slot(n), *slots(n.args, 3)) for n in program.uniforms]
        results = [i for name, number in program.scalar_results for i in (numbers[name], slot(number))]
        code = [
            (lib.element_ops[i.op], i.out, *i.registers, *[0] * (3 - len(i.registers)), *slots(i.numbers, 2))
            for i in _with_conversions(program, types, math, stochastic)
        ]
        self.lr, self.scale = numbers[LR], numbers[SCALE]
        self.constants = (ctypes.c_double * len(values))(*values)
        self._pointed_to = (
            _ints(types),
            _ints(name in program.written for name in program.streams),
            _ints(x for instruction in code for x in instruction),
            _ints(x for instruction in uniform_code for x in instruction),
            _ints(results),
            self.constants,
        )
        scratch = program.scratch + len(types)
        counts = math, len(types), scratch, len(code), len(values), len(uniform_code), len(results) // 2
        self.program = _CProgram(*counts, *map(ctypes.addressof, self._pointed_to))


def _ints(values: Iterable[int]) -> Any:
    listed = list(values)
    return (ctypes.c_int32 * len(listed))(*listed)


def _with_conversions(program: Program, types: tuple[int, ...], math: int, stochastic: bool) -> Iterator[Instruction]:
    """The code of a program, with 16-bit streams read into scratch first and rounded back at the end."""
    first = len(program.streams) + program.scratch
    narrow = {k: first + k for k, kind in enumerate(types) if kind != math}
    for k, scratch in narrow.items():
        yield Instruction("load", scratch, (k,), ())
    for op, out, registers, numbers in program.code:
        yield Instruction(op, narrow.get(out, out), tuple(narrow.get(r, r) for r in registers), numbers)
    for k, scratch in narrow.items():
        if program.streams[k] in program.written:
            yield Instruction("store_stochastic" if stochastic else "store", k, (scratch,), ())


class Plan:
    """The step of one parameter group."""

    def __init__(self, program: Program, stochastic: bool):
        lib = library()
        assert isinstance(lib, Library)
        self.lib, self.program, self.stochastic = lib, program, stochastic
        self._compiled: dict[tuple[int, ...], Compiled] = {}

    def run(self, located: Located, numbers: Numbers) -> int | None:
        """Step what was located; where a step count is no count, return whose."""
        lr = _float(numbers.lr)
        scale = 1.0 if numbers.scale is None else _float(numbers.scale)
        width = 2 + len(self.program.scalars) + len(self.program.streams)
        for table in located.reach.tables:
            table.rows[width - 1 :: width] = array("q", table.of(located.grad_addresses))
            uncounted = self._call(table, lr, scale)
            if uncounted >= 0:
                return table.members[uncounted]
            torch.autograd.graph.increment_version(table.of(located.params))
        return None

    def _call(self, table: Table, lr: float, scale: float) -> int:
        compiled = self._compiled.get(table.types)
        if compiled is None:
            compiled = self._compiled[table.types] = Compiled(self.program, table.types, self.stochastic, self.lib)
        compiled.constants[compiled.lr], compiled.constants[compiled.scale] = lr, scale
        return int(
            self.lib.step(
                ctypes.byref(compiled.program),
                ctypes.c_void_p(table.rows.buffer_info()[0]),
                ctypes.c_int64(len(table.members)),
                _ints(table.scalar_types),
                len(self.program.scalars),
                self.lib.isa,
                torch.get_num_threads(),
            )
        )


def _float(number: float | Tensor) -> float:
    return number.item() if isinstance(number, Tensor) else number
