"""A program as straight-line C++: one loop, with all values of an element in registers.

    function(structure)         a template for the code of a structure, to be included after elements.inc
    instance(structure)         the instance of that template for the dtypes of its streams

The interpreter reads and writes a block in the cache for each instruction; this code does so once per stream. It has
the same expressions, from `kernels/layout.py`, and therefore the same bits.
"""

from collections.abc import Iterator
from hashlib import sha256

from aimopt.kernels.cpu.encode import Structure
from aimopt.kernels.layout import ELEMENT_OPS, KERNEL_ARGUMENTS, NUMBERS, OPERANDS, TYPES, arithmetic_type

_STREAM_TYPES = {"float32": "float", "float64": "double", "bfloat16": "BFloat16", "float16": "Float16"}


def is_vectorizable(structure: Structure) -> bool:
    """Whether a compiler can vectorize the loop: a function call per element, such as exp, would prevent it."""
    return all(ELEMENT_OPS[operation.op].vectorized for operation in structure.code)


def function(structure: Structure) -> str:
    """The function that steps a range of elements. It depends only on the code and on which streams are written."""
    return "\n".join(_lines(structure)) + "\n"


def instance(structure: Structure) -> str:
    """The name of the function for streams of the structure's types."""
    types = [_STREAM_TYPES[TYPES[kind].name] for kind in (arithmetic_type(structure.types), *structure.types)]
    return f"{_name(structure)}<{', '.join(types)}, {str(structure.stochastic).lower()}>"


def _name(structure: Structure) -> str:
    code = repr((structure.written, tuple(map(tuple, structure.code))))
    return f"step_{sha256(code.encode()).hexdigest()[:12]}"


def _lines(structure: Structure) -> Iterator[str]:
    streams, written = range(len(structure.types)), structure.written
    yield f"template <class T, {', '.join(f'class S{k}' for k in streams)}, bool Stochastic>"
    yield f"void {_name(structure)}({KERNEL_ARGUMENTS}) {{"
    for k in streams:
        kind = f"S{k}" if written[k] else f"const S{k}"
        yield f"    {kind} *__restrict s{k} = reinterpret_cast<{kind} *>(streams[{k}]) + begin;"
    yield "    const T *u = static_cast<const T *>(numbers);"
    count = sum(operation.numbers for operation in structure.code)
    yield from (f"    const T u{k} = u[{k}];" for k in range(count))
    yield "    for (size_t x = begin; x < end; x += kBlock) {"
    yield "        const int n = static_cast<int>(std::min(kBlock, end - x));"
    yield "        const uint32_t first = static_cast<uint32_t>(x);"
    yield "        if (x + kAhead * kBlock < end) {"
    yield from (
        f"            fetch(s{k} + kAhead * kBlock, kBlock * sizeof *s{k}, {str(written[k]).lower()});" for k in streams
    )
    yield "        }"
    yield "        AIMOPT_INDEPENDENT"
    yield "        for (int i = 0; i < n; i++) {"
    yield from (f"            {line}" for line in _body(structure))
    yield "        }"
    yield f"        {', '.join(f's{k} += kBlock' for k in streams)};"
    yield "    }"
    yield "    (void)u, (void)key;"
    yield "}"


def _body(structure: Structure) -> Iterator[str]:
    declared = len(structure.types)
    yield from (f"T r{k} = value_of(s{k}[i]);" for k in range(declared))
    position = 0
    for op, out, registers, count in structure.code:
        operands = dict(zip(OPERANDS, (f"r{k}" for k in registers), strict=False))
        operands |= dict(zip(NUMBERS, (f"u{position + k}" for k in range(count)), strict=False))
        position += count
        yield f"{'T ' if out >= declared else ''}r{out} = {ELEMENT_OPS[op].cpp.format(**operands)};"
        declared = max(declared, out + 1)
    for k, written in enumerate(structure.written):
        if written:
            streams = ", ".join(f"S{j}" for j in range(k + 1))
            yield f"assign<Stochastic, draw_of<{k}, {streams}>()>(s{k}[i], r{k}, key, first + i);"
