"""A program as Triton source.

`source(program, types, scalar_types, stochastic)` prints two kernels. For example of RADAR,

    prepare    a lane for each tensor: counts its step and evaluates, in float64, what is the same for all its elements
    step       a program for each chunk of a tensor: the instructions, on a block of elements after the other

`prepare` runs before `step` and hands over through memory, so that no chunk depends on what another one has done, and
step counts and learning rate may live on the device: nothing waits for them. What a kernel may call beside `tl` is in
`device_functions.py`.
"""

import math
import re
from collections.abc import Iterator

from aimopt.kernels.program import LR, SCALE, STEP, Program
from aimopt.kernels.symbols import Node, Number
from aimopt.kernels.tables import math_of

TYPE_NAMES = ("tl.float32", "tl.float64", "tl.bfloat16", "tl.float16")  # in the order of the types of `tables.py`

_OPS = {
    "mul": "{a} * {b}",
    "div": "divide({a}, {b})",
    "pow": "power({a}, {b})",
    "maximum": "larger({a}, {b})",
    "minimum": "smaller({a}, {b})",
    "lt": "({a} < {b}).to({math})",
    "le": "({a} <= {b}).to({math})",
    "eq": "({a} == {b}).to({math})",
    "select": "tl.where({a} != 0, {b}, {c})",
    "sqrt": "root({a})",
    "abs": "tl.abs({a})",
    "sign": "({a} > 0).to({math}) - ({a} < 0).to({math})",
    "exp": "tl.exp({a})",
    "log": "tl.log({a})",
    "tanh": "tanh({a})",
}
UNIFORM_OPS = {"add": "{a} + {b}", **_OPS}
# a, b and c are blocks, s and t numbers. Products are fused with the sums they go into as in `interpreter.inc`.
ELEMENT_OPS = {
    **_OPS,
    "affine": "tl.fma({a}, {s}, {t})",
    "scale": "{a} * {s}",
    "lin": "tl.fma({b}, {t}, {a} * {s})",
    "muladd": "tl.fma({b} * {t}, {c}, {a} * {s})",
    "reciprocal": "divide(tl.full([BLOCK], 1.0, {math}), {a})",
    "fill": "tl.full([BLOCK], 0.0, {math}) + {s}",
    "copy": "{a}",
}


class _Names:
    """The names of the numbers of a program, and of its registers, in both kernels."""

    def __init__(self, program: Program):
        known = [n for node in program.uniforms for n in node.args] + [n for _, n in program.scalar_results]
        known += [n for i in program.code for n in i.numbers]
        self.constants = {n: f"c{k}" for k, n in enumerate(dict.fromkeys(n for n in known if not isinstance(n, Node)))}
        self._computed = {node: f"u{k}" for k, node in enumerate(program.uniforms)}
        self.scalars = {name: f"{_identifier(name)}_{k}" for k, name in enumerate(program.scalars)}
        self.streams = [f"{_identifier(name)}_{k}" for k, name in enumerate(program.streams)]

    def number(self, number: Number) -> str:
        if not isinstance(number, Node):
            return self.constants[number]
        if number.op == "number":
            return self.scalars.get(number.args[0], number.args[0])
        return self._computed[number]

    def register(self, k: int) -> str:
        return self.streams[k] if k < len(self.streams) else f"x_{k}"


def handed_over(program: Program) -> list[Node]:
    """The numbers that `prepare` computes for `step`, in the order in which they lie in a row of `uniforms`."""
    return list(dict.fromkeys(n for i in program.code for n in i.numbers if isinstance(n, Node)))


def source(program: Program, types: tuple[int, ...], scalar_types: tuple[int, ...], stochastic: bool) -> str:
    """Both kernels, for streams and scalars of these types."""
    names = _Names(program)
    lines = [*_prepare(program, names, types, scalar_types), "", "", *_step(program, names, types, stochastic)]
    return "\n".join(lines) + "\n"


def _prepare(program: Program, names: _Names, types: tuple[int, ...], scalar_types: tuple[int, ...]) -> Iterator[str]:
    width = 1 + len(program.scalars) + len(program.streams)
    yield '@triton.jit(do_not_specialize=["tensors"])'
    yield f"def prepare(rows, uniforms, keys, found_inf, {LR}_at, {SCALE}_at, tensors, LANES: tl.constexpr):"
    yield "    tensor = tl.program_id(0) * LANES + tl.arange(0, LANES)"
    yield "    here = tensor < tensors"
    yield f"    row = rows + tensor * {width}"
    for name in (LR, SCALE):
        yield f"    {name} = tl.full([LANES], 0.0, tl.float64) + tl.load({name}_at).to(tl.float64)"
    for k, (name, kind) in enumerate(zip(names.scalars.values(), scalar_types, strict=True)):
        yield f"    {name}_at = tl.load(row + {2 + k}, here, 0).to(tl.pointer_type({TYPE_NAMES[kind]}))"
        yield f"    {name} = tl.load({name}_at, here, 0).to(tl.float64){' + 1' if k == 0 else ''}"
    for constant, name in names.constants.items():
        yield f"    {name} = tl.full([LANES], {_literal(constant)}, tl.float64)"
    for node in program.uniforms:
        operands = dict(zip("abc", map(names.number, node.args), strict=False))
        yield f"    {names.number(node)} = {UNIFORM_OPS[node.op].format(**operands, math='tl.float64')}"
    over = handed_over(program)
    for k, node in enumerate(over):
        converted = f"{names.number(node)}.to({TYPE_NAMES[math_of(types)]})"
        yield f"    tl.store(uniforms + tensor * {len(over)} + {k}, {converted}, here)"
    step = names.scalars[STEP]
    yield "    rank = tl.load(row + 1, here, 0).to(tl.uint32)"
    yield f"    tl.store(keys + tensor, scramble(scramble({step}.to(tl.int64).to(tl.uint32)) ^ rank), here)"
    yield "    going = tensor < tl.where(tl.load(found_inf) == 0, tensors, 0)"
    results = [(step, step), *((names.scalars[name], names.number(value)) for name, value in program.scalar_results)]
    for (name, value), k in zip(results, (0, *map(program.scalars.index, dict(program.scalar_results))), strict=True):
        yield f"    tl.store({name}_at, {value}.to({TYPE_NAMES[scalar_types[k]]}), going)"


def _step(program: Program, names: _Names, types: tuple[int, ...], stochastic: bool) -> Iterator[str]:
    scalars, math_name = len(program.scalars), TYPE_NAMES[math_of(types)]
    over = handed_over(program)
    yield "@triton.jit"
    yield "def step("
    yield "    rows, gradients, uniforms, keys, found_inf, chunks,"
    yield "    WHOLE: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,"
    yield "):"
    yield "    chunk = chunks + 2 * tl.program_id(0).to(tl.int64)"
    yield "    tensor = tl.load(chunk)"
    yield "    begin = tl.load(chunk + 1) * CHUNK"
    yield f"    row = rows + tensor * {1 + scalars + len(types)}"
    yield "    numel = tl.load(row)"
    yield "    end = tl.where(tl.load(found_inf) == 0, tl.minimum(numel, begin + CHUNK), begin)"
    for k, (name, kind) in enumerate(zip(names.streams, types, strict=True)):
        address = "gradients + tensor" if k == len(types) - 1 else f"row + {2 + scalars + k}"
        yield f"    {name}_at = tl.load({address}).to(tl.pointer_type({TYPE_NAMES[kind]}))"
        yield f"    {name}_at = tl.multiple_of({name}_at, 16 if WHOLE else 1)"
    for value in dict.fromkeys(n for i in program.code for n in i.numbers if not isinstance(n, Node)):
        yield f"    {names.number(value)} = tl.full([], {_literal(value)}, {math_name})"
    for k, node in enumerate(over):
        yield f"    {names.number(node)} = tl.load(uniforms + tensor * {len(over)} + {k})"
    narrow = [k for k, kind in enumerate(types) if kind != math_of(types) and program.streams[k] in program.written]
    if stochastic and narrow:
        yield "    key = tl.load(keys + tensor).to(tl.uint32, bitcast=True)"
        for k in narrow:
            yield f"    {names.streams[k]}_key = scramble(key ^ {k})"
    yield "    for start in range(begin, end, BLOCK):"
    yield "        element = start + tl.arange(0, BLOCK)"
    yield "        inside = element < numel"
    yield "        if WHOLE:"
    yield "            inside = tl.full([BLOCK], True, tl.int1)"
    yield from (f"        {line}" for line in _body(program, names, types, stochastic))


def _body(program: Program, names: _Names, types: tuple[int, ...], stochastic: bool) -> Iterator[str]:
    math_name = TYPE_NAMES[math_of(types)]
    for name in names.streams:
        yield f"{name} = tl.load({name}_at + element, inside, 0).to({math_name})"
    for op, out, registers, numbers in program.code:
        operands = dict(zip("abc", map(names.register, registers), strict=False))
        operands |= dict(zip("st", map(names.number, numbers), strict=False))
        yield f"{names.register(out)} = {ELEMENT_OPS[op].format(**operands, math=math_name)}"
    for k, (name, kind) in enumerate(zip(names.streams, types, strict=True)):
        if program.streams[k] in program.written:
            value = f"{name}.to({TYPE_NAMES[kind]})"
            if stochastic and kind != math_of(types):
                value = f"round_stochastically({name}, {TYPE_NAMES[kind]}, {name}_key, element)"
            yield f"tl.store({name}_at + element, {value}, inside)"


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _literal(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else f'float("{value}")'
