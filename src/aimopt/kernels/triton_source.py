"""A program as Triton source.

`source(program, types, scalar_types, stochastic)` prints two kernels. For example of RADAR,

    prepare    a lane for each tensor: counts its step and evaluates, in float64, what is the same for all its elements
    step       a program for each chunk of a tensor: the instructions, on a block of elements after the other

`prepare` runs before `step` and hands over through memory, so that no chunk depends on what another one has done, and
step counts and learning rate may live on the device: nothing waits for them. What a kernel may call beside `tl` is in
`device_functions.py`.
"""

import re
from collections.abc import Iterator

from aimopt.kernels.program import LR, SCALE, STEP, Program
from aimopt.kernels.symbols import Node, Number
from aimopt.kernels.tables import math_of

ALIGNED = 16  # bytes, what a thread loads at once: where a chunk is WHOLE all addresses are multiples of it
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
    "gate": "tl.where({s} != 0, {a}, {t})",
    "lin": "tl.fma({b}, {t}, {a} * {s})",
    "muladd": "tl.fma({b} * {t}, {c}, {a} * {s})",
    "over_root": "divide({a}, root(tl.fma({b}, {s}, {t})))",
    "over_shifted_root": "divide({a}, tl.fma(root({b}), {s}, {t}))",
    "reciprocal": "divide(tl.full([BLOCK], 1.0, {math}), {a})",
    "fill": "tl.full([BLOCK], 0.0, {math}) + {s}",
    "copy": "{a}",
}


def handed_over(program: Program) -> list[Number]:
    """The numbers that `prepare` has for `step`, in the order in which they lie in a row of `uniforms`."""
    return list(dict.fromkeys(n for i in program.code for n in i.numbers))


def constants(program: Program) -> list[float]:
    """The numbers that are known; they are no part of the source, so that a schedule of one needs no new kernel."""
    numbers = [n for node in program.uniforms for n in node.args] + [n for _, n in program.scalar_results]
    return list(dict.fromkeys(n for n in (*numbers, *handed_over(program)) if not isinstance(n, Node)))


def source(program: Program, types: tuple[int, ...], scalar_types: tuple[int, ...], stochastic: bool) -> str:
    """Both kernels, for streams and scalars of these types."""
    printer = _Printer(program, types, scalar_types, stochastic)
    return "\n".join([*printer.prepare(), "", "", *printer.step()]) + "\n"


class _Printer:
    """Prints the kernels of one program, in which a value has the same name throughout."""

    def __init__(self, program: Program, types: tuple[int, ...], scalar_types: tuple[int, ...], stochastic: bool):
        self.program = program
        self.types = [TYPE_NAMES[kind] for kind in types]
        self.scalar_types = [TYPE_NAMES[kind] for kind in scalar_types]
        self.math = TYPE_NAMES[math_of(types)]
        self.streams = [f"{_identifier(name)}_{k}" for k, name in enumerate(program.streams)]
        self.scalars = {name: f"{_identifier(name)}_{k}" for k, name in enumerate(program.scalars)}
        self.over = handed_over(program)
        self.written = [k for k, name in enumerate(program.streams) if name in program.written]
        self.by_chance = [k for k in self.written if stochastic and self.types[k] != self.math]
        self.width = 2 + len(scalar_types) + len(types) - 1  # of a row: addresses of gradients are apart from it
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
        """The kernel that counts steps, and evaluates what is the same for all elements of a tensor."""
        step = self.scalars[STEP]
        yield '@triton.jit(do_not_specialize=["tensors"])'
        yield "def prepare("
        yield f"    rows, uniforms, keys, found_inf, {LR}_at, {SCALE}_at, constants, tensors, LANES: tl.constexpr,"
        yield "):"
        yield "    tensor = tl.program_id(0) * LANES + tl.arange(0, LANES)"
        yield "    here = tensor < tensors"
        yield f"    row = rows + tensor * {self.width}"
        for name in (LR, SCALE):
            yield f"    {name} = tl.full([LANES], 0.0, tl.float64) + tl.load({name}_at).to(tl.float64)"
        for k, (name, kind) in enumerate(zip(self.scalars.values(), self.scalar_types, strict=True)):
            yield f"    {name}_at = tl.load(row + {2 + k}, here, 0).to(tl.pointer_type({kind}))"
            yield f"    {name} = tl.load({name}_at, here, 0).to(tl.float64){' + 1' if name == step else ''}"
        for k, constant in enumerate(self.constants):
            yield f"    {self.number(constant)} = tl.full([LANES], 0.0, tl.float64) + tl.load(constants + {k})"
        for node in self.program.uniforms:
            operands = dict(zip("abc", map(self.number, node.args), strict=False))
            yield f"    {self.number(node)} = {UNIFORM_OPS[node.op].format(**operands, math='tl.float64')}"
        for k, number in enumerate(self.over):
            place = f"uniforms + tensor * {len(self.over)} + {k}"
            yield f"    tl.store({place}, {self.number(number)}.to({self.math}), here)"
        if self.by_chance:
            yield "    rank = tl.load(row + 1, here, 0).to(tl.uint32)"
            yield f"    tl.store(keys + tensor, scramble(scramble({step}.to(tl.int64).to(tl.uint32)) ^ rank), here)"
        yield "    going = tensor < tl.where(tl.load(found_inf) == 0, tensors, 0)"
        results = {STEP: step, **{name: self.number(value) for name, value in self.program.scalar_results}}
        for (name, at), kind in zip(self.scalars.items(), self.scalar_types, strict=True):
            yield f"    tl.store({at}_at, {results[name]}.to({kind}), going)"

    def step(self) -> Iterator[str]:
        """The kernel that passes over the elements."""
        yield "@triton.jit"
        yield "def step("
        yield "    rows, gradients, uniforms, keys, found_inf, chunks,"
        yield "    WHOLE: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,"
        yield "):"
        yield "    chunk = chunks + 2 * tl.program_id(0).to(tl.int64)"
        yield "    tensor = tl.load(chunk)"
        yield "    begin = tl.load(chunk + 1) * CHUNK"
        yield f"    row = rows + tensor * {self.width}"
        yield "    numel = tl.load(row)"
        yield "    end = tl.where(tl.load(found_inf) == 0, tl.minimum(numel, begin + CHUNK), begin)"
        places = [f"row + {self.width - len(self.types) + 1 + k}" for k in range(len(self.types) - 1)]
        for name, kind, place in zip(self.streams, self.types, [*places, "gradients + tensor"], strict=True):
            yield f"    {name}_at = tl.load({place}).to(tl.pointer_type({kind}))"
            yield f"    {name}_at = tl.multiple_of({name}_at, {ALIGNED} if WHOLE else 1)"
        for k, number in enumerate(self.over):
            yield f"    {self.number(number)} = tl.load(uniforms + tensor * {len(self.over)} + {k})"
        for k in self.by_chance:
            key = "tl.load(keys + tensor).to(tl.uint32, bitcast=True)"
            yield f"    {self.streams[k]}_key = scramble({key} ^ {k})"
        yield "    for start in range(begin, end, BLOCK):"
        yield "        element = start + tl.arange(0, BLOCK)"
        yield "        inside = element < numel"
        yield "        if WHOLE:"
        yield "            inside = tl.full([BLOCK], True, tl.int1)"
        yield from (f"        {line}" for line in self._body())

    def _body(self) -> Iterator[str]:
        for name, kind in zip(self.streams, self.types, strict=True):
            loaded = f"tl.load({name}_at + element, inside, 0)"
            yield f"{name} = {loaded if kind == self.math else f'widen({loaded}, {self.math})'}"
        for op, out, registers, numbers in self.program.code:
            operands = dict(zip("abc", map(self.register, registers), strict=False))
            operands |= dict(zip("st", map(self.number, numbers), strict=False))
            yield f"{self.register(out)} = {ELEMENT_OPS[op].format(**operands, math=self.math)}"
        for k in self.written:
            name = value = self.streams[k]
            if k in self.by_chance:
                value = f"by_chance({name}, {self.types[k]}, {name}_key, element)"
            elif self.types[k] != self.math:
                value = f"to_nearest({name}, {self.types[k]})"
            yield f"tl.store({name}_at + element, {value}, inside)"


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)
