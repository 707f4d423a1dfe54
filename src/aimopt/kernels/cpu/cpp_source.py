"""A program as straight-line C++, with all values of an element, or of a vector of elements, in registers.

    step(structure)             the arithmetic of a structure, to be included after elements.inc
    kernel(structure)           the kernel: that arithmetic on streams of the structure's dtypes, over all of a tensor

The interpreter reads and writes a block in the cache for each instruction; this code does so once per stream. It has
the same expressions, from `kernels/layout.py`, and therefore the same bits.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import NamedTuple

from aimopt.kernels.cpu.encode import Structure
from aimopt.kernels.layout import ELEMENT_OPS, NUMBERS, OPERANDS, TYPES, arithmetic_type, scale_indices

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


class _Line(NamedTuple):
    """One result. Values have names: streams are r[0], r[1] and so on, results x0, x1 and so on."""

    result: str
    op: str
    operands: tuple[str, ...]
    numbers: tuple[str, ...]

    def text(self, renamed: dict[str, str]) -> str:
        """As C++, where some values have other names."""
        names = dict(zip(OPERANDS, (renamed.get(x, x) for x in self.operands), strict=False))
        names |= dict(zip(NUMBERS, self.numbers, strict=False))
        return f"const T {self.result} = {ELEMENT_OPS[self.op].cpp.format(**names)};"


class _Half:
    """A half of a step: `early` is what needs no root or quotient, `late` is the rest.

    A processor computes roots and quotients so slowly that it has to find other work meanwhile. A kernel that computes
    the late half of some elements between the early halves of others gives it that work.
    """

    def __init__(self) -> None:
        self.lines: list[_Line] = []
        self.written: dict[int, str] = {}  # the streams that it writes, and their values

    @property
    def reads(self) -> set[str]:
        """The values that it needs and does not compute."""
        needed = {x for line in self.lines for x in line.operands} | set(self.written.values())
        return needed - {line.result for line in self.lines}


def step(structure: Structure) -> str:
    """The arithmetic of one element. It depends only on the code and on which streams are written."""
    early, late = _halves(structure)
    streams = [f"r[{k}]" for k in range(len(structure.types))]
    # Late, a stream can still be read from memory if the early half has nothing to do with it.
    untouched = {name for k, name in enumerate(streams) if name not in early.reads and k not in early.written}
    carried = {name: f"c[{j}]" for j, name in enumerate(sorted(late.reads - untouched))}
    early_reads, late_reads = early.reads | set(carried), late.reads & untouched
    lines = [
        f"struct {_name(structure)} {{",
        f"    static constexpr int numbers = {_count_numbers(structure)}, carried = {len(carried)};",
        f"    static constexpr uint64_t early_reads = {_mask(k for k, x in enumerate(streams) if x in early_reads)};",
        f"    static constexpr uint64_t late_reads = {_mask(k for k, x in enumerate(streams) if x in late_reads)};",
        f"    static constexpr uint64_t early_writes = {_mask(early.written)}, late_writes = {_mask(late.written)};",
        *_function("early", "T *c", early, {}, carried),
        *_function("late", "const T *c", late, carried, {}),
        "};",
    ]
    return "\n".join(lines) + "\n"


def kernel(structure: Structure) -> str:
    """The kernel for streams of the structure's types."""
    stochastic = str(structure.stochastic).lower()
    types = [f"{'' if w else 'const '}{_type(k)}" for k, w in zip(structure.types, structure.written, strict=True)]
    if scale_indices(structure.types):
        return f"run_coded_chunks<{_name(structure)}, {stochastic}, {', '.join(types)}>"
    return (
        f"run_chunks<{_name(structure)}, {stochastic}, {_type(arithmetic_type(structure.types))}, {', '.join(types)}>"
    )


def _count_numbers(structure: Structure) -> int:
    return sum(operation.numbers for operation in structure.code)


def _type(kind: int) -> str:
    return _STREAM_TYPES[TYPES[kind].name]


def _name(structure: Structure) -> str:
    code = repr((structure.written, tuple(map(tuple, structure.code))))
    return f"step_{sha256(code.encode()).hexdigest()[:12]}"


def _halves(structure: Structure) -> tuple[_Half, _Half]:
    """The code in two halves. Each result has a name of its own, so lines can move past each other."""
    early, late = _Half(), _Half()
    value_of = {k: f"r[{k}]" for k in range(len(structure.types))}  # of each register
    is_late: set[str] = set()
    position = 0
    for op, out, registers, count in structure.code:
        operands = tuple(value_of[k] for k in registers)
        numbers = tuple(f"u[{position + k}]" for k in range(count))
        position += count
        line = _Line(f"x{len(early.lines) + len(late.lines)}", op, operands, numbers)
        if ELEMENT_OPS[op].slow or not is_late.isdisjoint(operands):
            late.lines.append(line)
            is_late.add(line.result)
        else:
            early.lines.append(line)
        value_of[out] = line.result
    for k, written in enumerate(structure.written):
        if written:
            (late if value_of[k] in is_late else early).written[k] = value_of[k]
    return early, late


def _function(name: str, argument: str, half: _Half, renamed: dict[str, str], carried: dict[str, str]) -> Iterator[str]:
    """A half as a function of the numbers u, the streams r, and what is carried from one half to the other."""
    yield "    template <class T>"
    yield f"    static AIMOPT_INLINE void {name}(const T *u, T *r, {argument}) {{"
    yield from (f"        {line.text(renamed)}" for line in half.lines)
    yield from (f"        {place} = {value};" for value, place in carried.items())
    yield from (f"        r[{k}] = {value};" for k, value in half.written.items() if value != f"r[{k}]")
    yield "        (void)u, (void)r, (void)c;"
    yield "    }"


def _mask(streams: Iterable[int]) -> str:
    return hex(sum(1 << k for k in streams))
