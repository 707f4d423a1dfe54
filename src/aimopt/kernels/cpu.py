"""The fused step on CPUs: a program compiled for the block interpreter in `step.cpp`, and the tensors it runs on.

library()                      the interpreter, built when the package was installed, or why there is none
Compiled(program, types, …)    a program for streams of given dtypes
Plan(program, stochastic)      a parameter group's step: `run` takes the parameters that a kernel can reach
"""

import ctypes
import sysconfig
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from aimopt.kernels.program import LR, SCALE, Instruction, Program
from aimopt.kernels.symbols import Node, Number

ISAS = ("baseline", "AVX2", "AVX-512")
# `Type` of the interpreter and how many of them an element is: complex numbers are pairs of reals.
_FLOAT32, _FLOAT64 = 0, 1
TYPES = {
    torch.float32: (_FLOAT32, 1),
    torch.float64: (_FLOAT64, 1),
    torch.bfloat16: (2, 1),
    torch.float16: (3, 1),
    torch.complex64: (_FLOAT32, 2),
    torch.complex128: (_FLOAT64, 2),
}


# The members of `Program` in `step.cpp`.
_COUNTS = ("math", "streams", "scratch", "instructions", "uniforms", "uniform_instructions", "results")


class _CProgram(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in _COUNTS),
        *((name, ctypes.c_void_p) for name in ("types", "written", "code", "uniform_code", "result", "constants")),
    ]


class Library(NamedTuple):
    """The interpreter as loaded."""

    step: Any
    stream: Any
    element_ops: dict[str, int]
    uniform_ops: dict[str, int]
    isa: int
    shares_threads: bool


@lru_cache(maxsize=1)
def library() -> Library | str:
    """The interpreter, or why there is none."""
    path = Path(__file__).with_name(f"libstep{sysconfig.get_config_var('SHLIB_SUFFIX') or '.so'}")
    if not path.exists():
        return "no C++ compiler was found when aimopt was installed; install one, then reinstall aimopt"
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        return f"{path.name} could not be loaded ({error}); reinstall aimopt"
    names = []
    for function in (loaded.aimopt_element_ops, loaded.aimopt_uniform_ops):
        function.restype = ctypes.c_char_p
        names.append({name: code for code, name in enumerate(function().decode().split())})
    return Library(
        loaded.aimopt_step,
        loaded.aimopt_stream,
        *names,
        loaded.aimopt_best_isa(),
        bool(loaded.aimopt_shares_torch_threads()),
    )


class Compiled:
    """A program for the interpreter, and what it points to."""

    def __init__(self, program: Program, types: tuple[int, ...], stochastic: bool, lib: Library):
        math = _FLOAT64 if types[0] == _FLOAT64 else _FLOAT32
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


class Table(NamedTuple):
    """Parameters whose streams are of the same types: a row each, as `step.cpp` reads it."""

    types: tuple[int, ...]  # of the streams
    scalar_types: tuple[int, ...]
    members: list[int]
    rows: "array[int]"  # numbers in memory, rank, addresses of the scalars, of the streams; the gradient's is the last


class Survey(NamedTuple):
    """What was found out about the tensors of a group; it holds as long as they are where they were."""

    own: list[Tensor]  # parameters and state: kept, so that their memory stays theirs
    at: list[int]
    numels: list[int]
    dtypes: list[torch.dtype]  # of the gradients
    contiguous: list[bool]
    strided: list[int]  # the parameters that are dense, but not contiguous
    tables: list[Table]
    rest: list[int]  # what the interpreter cannot reach

    def holds(self, own: list[Tensor], params: list[Tensor], grads: list[Tensor]) -> bool:
        """Whether nothing has changed that matters."""
        return (
            not self.rest
            and list(map(Tensor.data_ptr, own)) == self.at
            and list(map(Tensor.numel, params)) == self.numels
            and list(map(_dtype, grads)) == self.dtypes
        )


class Plan:
    """The step of one parameter group."""

    def __init__(self, program: Program, names: Sequence[str], stochastic: bool):
        """`names` is the order in which `run` gets the state of a parameter, its step count first."""
        lib = library()
        assert isinstance(lib, Library)
        self.lib, self.program, self.stochastic = lib, program, stochastic
        self._scalars = [names.index(name) for name in program.scalars]
        self._buffers = [names.index(name) for name in program.streams[1:-1]]
        self._survey: Survey | None = None
        self._compiled: dict[tuple[int, ...], Compiled] = {}

    def run(
        self, params: list[Tensor], ranks: list[int], states: list[tuple[Tensor, ...]], lr: float, scale: float
    ) -> list[int]:
        """Step what the interpreter can reach; return the indices of the rest."""
        grads = [cast(Tensor, p.grad) for p in params]
        if not all(map(_has_storage, {*map(type, params), *map(type, grads)})):
            params, grads, states = _localize(params, grads, states)
        own = [*params, *chain.from_iterable(states)]
        survey = self._survey
        if survey is None or not survey.holds(own, params, grads):
            survey = self._survey = self._look(own, params, grads, ranks, states)
        grads = _laid_out_like(params, grads, survey)
        for table in survey.tables:
            width = 3 + len(self._scalars) + len(self._buffers)
            of_table = [grads[i] for i in table.members]
            table.rows[width :: width + 1] = array("q", map(Tensor.data_ptr, of_table))
            self._call(table, lr, scale)
            torch.autograd.graph.increment_version([params[i] for i in table.members])
        return survey.rest

    def _call(self, table: Table, lr: float, scale: float) -> None:
        compiled = self._compiled.get(table.types)
        if compiled is None:
            compiled = self._compiled[table.types] = Compiled(self.program, table.types, self.stochastic, self.lib)
        compiled.constants[compiled.lr], compiled.constants[compiled.scale] = lr, scale
        self.lib.step(
            ctypes.byref(compiled.program),
            ctypes.c_void_p(table.rows.buffer_info()[0]),
            ctypes.c_int64(len(table.members)),
            _ints(table.scalar_types),
            len(self._scalars),
            self.lib.isa,
            torch.get_num_threads(),
        )

    def _look(
        self,
        own: list[Tensor],
        params: list[Tensor],
        grads: list[Tensor],
        ranks: list[int],
        states: list[tuple[Tensor, ...]],
    ) -> Survey:
        tables: dict[Any, Table] = {}
        rest = []
        for i, (p, g, rank, state) in enumerate(zip(params, grads, ranks, states, strict=True)):
            scalars, buffers = [state[k] for k in self._scalars], [state[k] for k in self._buffers]
            if not (_are_scalars(scalars) and _are_alike(p, g, buffers)):
                rest.append(i)
                continue
            types = tuple(TYPES[x.dtype][0] for x in (p, *buffers, g))
            scalar_types = tuple(TYPES[x.dtype][0] for x in scalars)
            table = tables.setdefault((types, scalar_types), Table(types, scalar_types, [], array("q")))
            table.members.append(i)
            addresses = [x.data_ptr() for x in (*scalars, p, *buffers)]
            table.rows.extend([p.numel() * TYPES[p.dtype][1], rank, *addresses, 0])
        contiguous = [p.is_contiguous() for p in params]
        return Survey(
            own,
            [] if rest else [x.data_ptr() for x in own],
            [p.numel() for p in params],
            [g.dtype for g in grads],
            contiguous,
            [i for i, so in enumerate(contiguous) if not so],
            list(tables.values()),
            rest,
        )


_dtype = attrgetter("dtype")


def _are_scalars(tensors: Sequence[Tensor]) -> bool:
    return all(x.is_cpu and x.numel() == 1 and x.dtype in (torch.float32, torch.float64) for x in tensors)


def _are_alike(p: Tensor, g: Tensor, buffers: Sequence[Tensor]) -> bool:
    """Whether the streams of a parameter can be walked through side by side."""
    streams = (p, *buffers, g)
    if not all(_has_storage(type(x)) for x in streams):
        return False
    if not all(x.is_cpu and x.layout == torch.strided and x.dtype in TYPES and x.numel() == p.numel() for x in streams):
        return False
    if any(x.is_conj() or x.is_neg() or (x.data_ptr() == 0 and x.numel() > 0) for x in streams):
        return False
    types = {TYPES[x.dtype] for x in streams}
    if len({lanes for _, lanes in types}) > 1 or ((_FLOAT64 in dict(types)) and len(types) > 1):
        return False
    if p.is_contiguous():
        return all(x.is_contiguous() for x in buffers)
    return _is_dense(p) and all(x.stride() == p.stride() for x in buffers)


def _laid_out_like(params: list[Tensor], grads: list[Tensor], survey: Survey) -> list[Tensor]:
    """The gradients, copied where their elements lie in another order than the parameter's."""
    contiguous = list(map(Tensor.is_contiguous, grads))
    if contiguous == survey.contiguous and not survey.strided:
        return grads
    other = [i for i, (p, g) in enumerate(zip(survey.contiguous, contiguous, strict=True)) if p and not g]
    other += [i for i in survey.strided if grads[i].stride() != params[i].stride()]
    grads = list(grads)
    for i in {*other} - {*survey.rest}:
        grads[i] = torch.empty_like(params[i], dtype=grads[i].dtype).copy_(grads[i])
    return grads


def _is_dense(x: Tensor) -> bool:
    """Whether a tensor fills its memory without gaps or overlaps, in some order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


@lru_cache(maxsize=256)
def _has_storage(kind: type) -> bool:
    """Whether tensors of this type are what their memory says: those that redefine torch's operations may not be."""
    return kind.__torch_dispatch__ is Tensor.__torch_dispatch__  # type: ignore[attr-defined]


def _localize(
    params: list[Tensor], grads: list[Tensor], states: list[tuple[Tensor, ...]]
) -> tuple[list[Tensor], list[Tensor], list[tuple[Tensor, ...]]]:
    """This process's part of tensors that are spread over several; what is no such tensor stays as it is."""
    rows = [_local((p, g, *state)) for p, g, state in zip(params, grads, states, strict=True)]
    return [row[0] for row in rows], [row[1] for row in rows], [row[2:] for row in rows]


def _local(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    spread = [x for x in tensors if hasattr(x, "to_local") and hasattr(x, "placements")]
    alike = len({(x.device_mesh, x.placements) for x in spread}) == 1
    if not alike or any(placement.is_partial() for placement in spread[0].placements):
        return tensors
    return tuple(x.to_local() if hasattr(x, "to_local") else x for x in tensors)
