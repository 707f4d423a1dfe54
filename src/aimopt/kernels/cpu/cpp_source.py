"""A program as straight-line C++: one loop, with all values of an element in registers.

    function(structure)         a template for the code of a structure, to be included after elements.inc
    instance(structure)         the kernel: that template for the dtypes of the streams, run over all chunks of a tensor

The interpreter reads and writes a block in the cache for each instruction; this code does so once per stream. It has
the same expressions, from `kernels/layout.py`, and therefore the same bits.
"""

from collections.abc import Iterator
from hashlib import sha256

from aimopt.kernels.cpu.encode import Structure
from aimopt.kernels.layout import CODED, ELEMENT_OPS, NUMBERS, OPERANDS, TYPES, arithmetic_type, scale_indices

_STREAM_TYPES = {
    "float32": "float",
    "float64": "double",
    "bfloat16": "BFloat16",
    "float16": "Float16",
    "int8": "Int8",
    "uint8": "UInt8",
}


def is_vectorizable(structure: Structure) -> bool:
    """Whether a compiler can vectorize the loop: a function call per element, such as exp, would prevent it."""
    return all(ELEMENT_OPS[operation.op].vectorized for operation in structure.code)


def function(structure: Structure) -> str:
    """The function that steps one chunk. It depends only on the code and on which streams are written."""
    streams = range(len(structure.types))
    pointers = [f"{'' if structure.written[k] else 'const '}S{k} *__restrict s{k}" for k in streams]
    numbers, all_types = range(_count_numbers(structure)), ", ".join(f"S{k}" for k in streams)
    lines = [
        f"template <bool Stochastic, class T, {', '.join(f'class S{k}' for k in streams)}>",
        f"AIMOPT_INLINE void {_name(structure)}(const T *__restrict u, uint32_t key, size_t first, int n,",
        f"    {', '.join(pointers)}) {{",
        *(f"    const T u{k} = u[{k}];" for k in numbers),
        f"    const Lines<Stochastic ? draw_of<{len(streams) - 1}, {all_types}>() : 0> lines(key, first);",
        "    const uint32_t place = first % kHashBlock;",
        "    AIMOPT_INDEPENDENT",
        "    for (int i = 0; i < n; i++) {",
        *(f"        {line}" for line in _body(structure)),
        "    }",
        "    (void)u, (void)lines, (void)place;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def instance(structure: Structure) -> str:
    """The kernel for streams of the structure's types."""
    stochastic, arithmetic = str(structure.stochastic).lower(), arithmetic_type(structure.types)
    # The chunks of 8-bit streams are decoded into scratch, and encoded again if the stream is written.
    stepped = ", ".join(_type(arithmetic if kind in CODED else kind) for kind in (arithmetic, *structure.types))
    chunk = f"{_name(structure)}<{stochastic}, {stepped}>"
    if not scale_indices(structure.types):
        return f"run_chunks<{chunk}, {_count_numbers(structure)}, {stepped}>"
    stored = [f"{'' if w else 'const '}{_type(k)}" for k, w in zip(structure.types, structure.written, strict=True)]
    return f"run_coded_chunks<{stochastic}, {chunk}, {_count_numbers(structure)}, {', '.join(stored)}>"


def _count_numbers(structure: Structure) -> int:
    return sum(operation.numbers for operation in structure.code)


def _type(kind: int) -> str:
    return _STREAM_TYPES[TYPES[kind].name]


def _name(structure: Structure) -> str:
    code = repr((structure.written, tuple(map(tuple, structure.code))))
    return f"step_{sha256(code.encode()).hexdigest()[:12]}"


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
            yield f"assign<Stochastic, draw_of<{k}, {streams}>()>(s{k}[i], r{k}, lines, place + i);"
