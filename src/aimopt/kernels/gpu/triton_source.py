"""A program as Triton source.

`source(program, types, scalar_types, stochastic)` prints two kernels. For example of RADAR,

    prepare    one lane per tensor: advances its step count, and evaluates in float64 the numbers of its step
    step       one Triton program per chunk of a tensor: the instructions, on one block of elements after the other

`prepare` runs before `step` and passes the numbers on in memory. So no chunk depends on another one, and step counts
and learning rate may be on the device: nothing waits for them. The functions that a kernel calls, other than those of
`tl`, are in `device_functions.py`.
"""

import re
from collections.abc import Iterator

from aimopt.kernels.layout import (
    ELEMENT_OPS,
    NUMBERS,
    OPERANDS,
    TYPES,
    UNIFORM_OPS,
    RowLayout,
    arithmetic_type,
    scale_indices,
)
from aimopt.kernels.program import LR, SCALE, STEP, Program, draw_indices
from aimopt.kernels.symbols import Node, Number
from aimopt.step.precision import HASH_BLOCK
from aimopt.step.quantization import BLOCK, CODES, LARGEST, LOWEST_BASE, MANTISSA, SHIFT

_CODE = f"{MANTISSA}, {LOWEST_BASE}, {LARGEST}, {BLOCK}"  # of numbers in 8 bits
ALIGNMENT = 16  # bytes per load of a thread: in a WHOLE chunk all addresses are multiples of it


def passed_uniforms(program: Program) -> list[Number]:
    """The numbers that `prepare` passes to `step`, in the order of a row of `uniforms`."""
    return list(dict.fromkeys(n for i in program.code for n in i.numbers))


def constants(program: Program) -> list[float]:
    """The constants of a program. They are not part of the source, so that a schedule of one needs no new kernel."""
    numbers = [n for node in program.uniforms for n in node.args] + [n for _, n in program.scalar_results]
    return list(dict.fromkeys(n for n in (*numbers, *passed_uniforms(program)) if not isinstance(n, Node)))


def source(program: Program, types: tuple[int, ...], scalar_types: tuple[int, ...], stochastic: bool) -> str:
    """The source of both kernels, for streams and scalars of these types."""
    printer = _Printer(program, types, scalar_types, stochastic)
    return "\n".join([*printer.prepare(), "", "", *printer.step()]) + "\n"


class _Printer:
    """Prints the kernels of one program. A value has the same name in both."""

    def __init__(self, program: Program, types: tuple[int, ...], scalar_types: tuple[int, ...], stochastic: bool):
        self.program = program
        self.types = [TYPES[kind].triton for kind in types]
        self.scalar_types = [TYPES[kind].triton for kind in scalar_types]
        self.arithmetic = TYPES[arithmetic_type(types)].triton
        self.streams = [f"{_identifier(name)}_{k}" for k, name in enumerate(program.streams)]
        self.scalars = {name: f"{_identifier(name)}_{k}" for k, name in enumerate(program.scalars)}
        self.passed_uniforms = passed_uniforms(program)
        self.written = [k for k, name in enumerate(program.streams) if name in program.written]
        self.draws = {k: draw for k, draw in draw_indices(types).items() if stochastic and k in self.written}
        self.scales = scale_indices(types)
        self.row = RowLayout(len(scalar_types), len(types), len(self.scales))
        self.width = self.row.width - 1  # the addresses of gradients have their own array
        self.constants = constants(program)
        self._names: dict[Number, str] = {node: f"u{k}" for k, node in enumerate(program.uniforms)}
        self._names |= {n: f"c{k}" for k, n in enumerate(self.constants)}

    def number(self, number: Number) -> str:
        """The name of a number."""
        if isinstance(number, Node) and number.op == "number":
            (name,) = number.args
            return self.scalars.get(name, name)
        return self._names[number]

    def register(self, k: int) -> str:
        """The name of a register."""
        return self.streams[k] if k < len(self.streams) else f"x_{k}"

    def prepare(self) -> Iterator[str]:
        """The kernel that advances step counts, and evaluates the numbers that are the same for a whole tensor."""
        step = self.scalars[STEP]
        yield '@triton.jit(do_not_specialize=["tensors"])'
        yield "def prepare("
        yield f"    rows, uniforms, keys, found_inf, {LR}_pointer, {SCALE}_pointer, constants, tensors,"
        yield "    LANES: tl.constexpr,"
        yield "):"
        yield "    tensor = tl.program_id(0) * LANES + tl.arange(0, LANES)"
        yield "    valid = tensor < tensors"
        yield f"    row = rows + tensor * {self.width}"
        for name in (LR, SCALE):
            yield f"    {name} = tl.full([LANES], 0.0, tl.float64) + tl.load({name}_pointer).to(tl.float64)"
        for k, (name, kind) in enumerate(zip(self.scalars.values(), self.scalar_types, strict=True)):
            address = f"tl.load(row + {self.row.FIRST_SCALAR + k}, valid, 0)"
            yield f"    {name}_pointer = {address}.to(tl.pointer_type({kind}))"
            yield f"    {name} = tl.load({name}_pointer, valid, 0).to(tl.float64){' + 1' if name == step else ''}"
        for k, constant in enumerate(self.constants):
            yield f"    {self.number(constant)} = tl.full([LANES], 0.0, tl.float64) + tl.load(constants + {k})"
        for node in self.program.uniforms:
            operands = dict(zip(OPERANDS, map(self.number, node.args), strict=False))
            yield f"    {self.number(node)} = {UNIFORM_OPS[node.op].triton.format(**operands, T='tl.float64')}"
        for k, number in enumerate(self.passed_uniforms):
            target = f"uniforms + tensor * {len(self.passed_uniforms)} + {k}"
            yield f"    tl.store({target}, {self.number(number)}.to({self.arithmetic}), valid)"
        if self.draws:
            yield f"    param_index = tl.load(row + {self.row.PARAM_INDEX}, valid, 0).to(tl.uint32)"
            yield f"    key = scramble(scramble({step}.to(tl.int64).to(tl.uint32)) ^ param_index)"
            yield "    tl.store(keys + tensor, key, valid)"
        yield "    stepped = tensor < tl.where(tl.load(found_inf) == 0, tensors, 0)"
        results = {STEP: step, **{name: self.number(value) for name, value in self.program.scalar_results}}
        for (name, scalar), kind in zip(self.scalars.items(), self.scalar_types, strict=True):
            yield f"    tl.store({scalar}_pointer, {results[name]}.to({kind}), stepped)"

    def step(self) -> Iterator[str]:
        """The kernel that steps the elements."""
        yield "@triton.jit"
        yield "def step("
        yield "    rows, gradients, uniforms, keys, found_inf, chunks,"
        yield "    WHOLE: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,"
        yield "):"
        yield "    chunk = chunks + 2 * tl.program_id(0).to(tl.int64)"
        yield "    tensor = tl.load(chunk)"
        yield "    begin = tl.load(chunk + 1) * CHUNK"
        yield f"    row = rows + tensor * {self.width}"
        yield f"    numel = tl.load(row + {self.row.NUMEL})"
        yield "    end = tl.where(tl.load(found_inf) == 0, tl.minimum(numel, begin + CHUNK), begin)"
        addresses = [f"row + {k}" for k in range(self.row.first_stream, self.row.gradient)]
        for name, kind, address in zip(self.streams, self.types, [*addresses, "gradients + tensor"], strict=True):
            yield f"    {name}_pointer = tl.load({address}).to(tl.pointer_type({kind}))"
            yield f"    {name}_pointer = tl.multiple_of({name}_pointer, {ALIGNMENT} if WHOLE else 1)"
        for k, scale in self.scales.items():
            address = f"tl.load(row + {self.row.first_scale + scale})"
            yield f"    {self.streams[k]}_scales = {address}.to(tl.pointer_type(tl.float32))"
        for k, number in enumerate(self.passed_uniforms):
            yield f"    {self.number(number)} = tl.load(uniforms + tensor * {len(self.passed_uniforms)} + {k})"
        for half in sorted({draw // 2 for draw in self.draws.values()}):
            yield f"    key_{half} = scramble(tl.load(keys + tensor).to(tl.uint32, bitcast=True) ^ {half})"
        if self.draws:
            for name, column in (("offset", self.row.OFFSET), ("run", self.row.RUN), ("gap", self.row.GAP)):
                yield f"    {name} = tl.load(row + {column})"
        yield "    for start in range(begin, end, BLOCK):"
        yield "        element = start + tl.arange(0, BLOCK)"
        if self.draws:  # random numbers depend on the position in the whole tensor, of which this one may be a shard
            yield "        position = element + offset"
            yield "        if gap != 0:"
            yield "            position += element // run * gap"
        yield "        inside = element < numel"
        yield "        if WHOLE:"
        yield "            inside = tl.full([BLOCK], True, tl.int1)"
        yield from (f"        {line}" for line in self._body())

    def _body(self) -> Iterator[str]:
        for k, (name, kind) in enumerate(zip(self.streams, self.types, strict=True)):
            loaded = f"tl.load({name}_pointer + element, inside, 0)"
            if k in self.scales:
                scale = f"tl.load({name}_scales + element // {BLOCK}, inside, 0.0)"
                loaded = f"decode({loaded}, {scale}, {SHIFT})"
            elif kind != self.arithmetic:
                loaded = f"widen({loaded}, {self.arithmetic})"
            yield f"{name} = {loaded}"
        for op, out, registers, numbers in self.program.code:
            operands = dict(zip(OPERANDS, map(self.register, registers), strict=False))
            operands |= dict(zip(NUMBERS, map(self.number, numbers), strict=False))
            yield f"{self.register(out)} = {ELEMENT_OPS[op].triton.format(**operands, T=self.arithmetic)}"
        for k in self.written:
            name = value = self.streams[k]
            if k in self.scales:
                yield from self._encode(k)
                value = f"{name}_code.to({self.types[k]})"
            elif k in self.draws:
                value = f"round_stochastically({name}, {self.types[k]}, {self._random_bits(16, k)})"
            elif self.types[k] != self.arithmetic:
                value = f"to_nearest({name}, {self.types[k]})"
            yield f"tl.store({name}_pointer + element, {value}, inside)"

    def _random_bits(self, bits: int, k: int) -> str:
        half, low_bits = divmod(self.draws[k], 2)
        return f"random_bits({bits}, position, key_{half}, {low_bits == 1}, {HASH_BLOCK})"

    def _levels(self, k: int) -> int:
        names = {"signed": "tl.int8", "unsigned": "tl.uint8"}
        return next(code.levels for name, code in CODES.items() if names[name] == self.types[k])

    def _encode(self, k: int) -> Iterator[str]:
        """Compute the codes of a stream, and store the scales of their blocks."""
        name, to_nearest = self.streams[k], f"{1 << (SHIFT - 1)}"
        jitter = self._random_bits(SHIFT, k) if k in self.draws else to_nearest
        yield f"{name}_code, {name}_scale = encode({name}, inside, {jitter}, {self._levels(k)}, {_CODE})"
        yield f"block = start // {BLOCK} + tl.arange(0, BLOCK // {BLOCK})"
        yield f"tl.store({name}_scales + block, {name}_scale, block * {BLOCK} < numel)"


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)
