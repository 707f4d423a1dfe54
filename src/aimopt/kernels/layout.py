"""The contracts between Python and the kernels. This is their only statement.

    TYPES, RowLayout               the dtypes of a program's streams, and one row of an address table
    ELEMENT_OPS, UNIFORM_OPS       the operations: their operands, and how they are written in C++ and Triton
    INSTRUCTION, PROGRAM_COUNTS    the C structures that the CPU kernel reads
    FUNCTIONS                      the functions of the native library

Python imports this module. C++ includes `cpu/layout.h` and the two lists of cases `cpu/*_ops.inc`, which
`cpu/header.py` generates from this module. They are committed, and a test compares them. Nothing here needs torch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple


class Type(NamedTuple):
    """A dtype of streams and scalars. Its code is its position in `TYPES`."""

    name: str  # in torch, and in C++
    size: int  # in bytes
    triton: str


TYPES = (
    Type("float32", 4, "tl.float32"),
    Type("float64", 8, "tl.float64"),
    Type("bfloat16", 2, "tl.bfloat16"),
    Type("float16", 2, "tl.float16"),
    Type("int8", 1, "tl.int8"),
    Type("uint8", 1, "tl.uint8"),
)
FLOAT32, FLOAT64, BFLOAT16, FLOAT16, INT8, UINT8 = range(len(TYPES))
# Numbers in 8 bits (`step/quantization.py`). A stream of these has a scale per block, in a tensor of its own.
CODED = (INT8, UINT8)
COMPLEX_TYPES = {"complex64": FLOAT32, "complex128": FLOAT64}  # a complex number is a pair of these


def arithmetic_type(stream_types: tuple[int, ...]) -> int:
    """The type of the arithmetic on streams of these types: that of the parameter, but at least float32."""
    return FLOAT64 if stream_types[0] == FLOAT64 else FLOAT32


def scale_indices(stream_types: Sequence[int]) -> dict[int, int]:
    """Which of a row's scales belong to which stream, by the position of the stream."""
    return {k: j for j, k in enumerate(k for k, kind in enumerate(stream_types) if kind in CODED)}


@dataclass(frozen=True)
class RowLayout:
    """One row of an address table, in 64-bit integers.

    They are numel, parameter index, span, and the addresses of scalars, of scales, of streams.

    The first scalar is the step count. The first stream is the parameter, the last one the gradient. The parameter
    index is its place in its optimizer, for the random bits of stochastic rounding. The span is where the elements are
    in the whole tensor, of which a shard is a part: element e is at offset + e + (e // run)·gap. Streams in 8 bits have
    scales, in the order of the streams; their tensors are whole, or a run of whole blocks.
    """

    scalars: int
    streams: int
    scales: int = 0
    NUMEL: ClassVar[int] = 0
    PARAM_INDEX: ClassVar[int] = 1
    OFFSET: ClassVar[int] = 2
    RUN: ClassVar[int] = 3
    GAP: ClassVar[int] = 4
    FIRST_SCALAR: ClassVar[int] = 5

    @property
    def first_scale(self) -> int:
        """The position of the first scales' address."""
        return self.FIRST_SCALAR + self.scalars

    @property
    def first_stream(self) -> int:
        """The position of the parameter's address."""
        return self.first_scale + self.scales

    @property
    def gradient(self) -> int:
        """The position of the gradient's address."""
        return self.width - 1

    @property
    def width(self) -> int:
        """The number of integers per row."""
        return self.first_stream + self.streams


@dataclass(frozen=True)
class Operation:
    """An operation, as a format string per language: {a}, {b}, {c} are operands, {s}, {t} are uniform numbers.

    Operands are numbers or, in kernels, vectors of them. In Triton {T} is the type of the arithmetic. Products are
    fused with sums where `fused` or `fma` says so, and nowhere else, so that both kernels compute the same.
    """

    name: str
    cpp: str
    triton: str
    operands: int = 1
    numbers: int = 0
    slow: bool = False  # a root or a quotient: others can be computed while the processor works on it
    vectorized: bool = True  # False: C++ calls a library function for one element after the other
    on_numbers: Callable[..., float] | None = None  # the operation on Python numbers, if it is uniform too


# Operations on elements, and on numbers that are the same for all elements of a tensor.
_SHARED = (
    Operation("mul", "{a} * {b}", "{a} * {b}", 2, on_numbers=lambda a, b: a * b),
    Operation("div", "{a} / {b}", "divide({a}, {b})", 2, slow=True, on_numbers=lambda a, b: a / b),
    Operation("pow", "std::pow({a}, {b})", "power({a}, {b})", 2, vectorized=False, on_numbers=lambda a, b: a**b),
    Operation("maximum", "larger({a}, {b})", "larger({a}, {b})", 2, on_numbers=max),
    Operation("minimum", "smaller({a}, {b})", "smaller({a}, {b})", 2, on_numbers=min),
    Operation("lt", "is_below({a}, {b})", "({a} < {b}).to({T})", 2, on_numbers=lambda a, b: float(a < b)),
    Operation("le", "is_at_most({a}, {b})", "({a} <= {b}).to({T})", 2, on_numbers=lambda a, b: float(a <= b)),
    Operation("eq", "is_equal({a}, {b})", "({a} == {b}).to({T})", 2, on_numbers=lambda a, b: float(a == b)),
    Operation(
        "select", "choose({a}, {b}, {c})", "tl.where({a} != 0, {b}, {c})", 3, on_numbers=lambda a, b, c: b if a else c
    ),
    Operation("sqrt", "root({a})", "root({a})", slow=True, on_numbers=math.sqrt),
    Operation("abs", "magnitude({a})", "tl.abs({a})", on_numbers=abs),
    Operation(
        "sign",
        "sign_of({a})",
        "({a} > 0).to({T}) - ({a} < 0).to({T})",
        on_numbers=lambda a: float((a > 0) - (a < 0)),
    ),
    Operation("floor", "floored({a})", "tl.floor({a})", on_numbers=math.floor),
    Operation("exp", "std::exp({a})", "tl.exp({a})", vectorized=False, on_numbers=math.exp),
    Operation("log", "std::log({a})", "tl.log({a})", vectorized=False, on_numbers=math.log),
    Operation("tanh", "std::tanh({a})", "tanh({a})", vectorized=False, on_numbers=math.tanh),
)
_ELEMENT_ONLY = (
    Operation("affine", "fused({a}, {s}, {t})", "tl.fma({a}, {s}, {t})", 1, 2),
    Operation("scale", "{a} * {s}", "{a} * {s}", 1, 1),
    Operation("lin", "fused({b}, {t}, {a} * {s})", "tl.fma({b}, {t}, {a} * {s})", 2, 2),
    # t before c, as in torch's addcmul: the product of large operands may overflow.
    Operation("muladd", "fused({b} * {t}, {c}, {a} * {s})", "tl.fma({b} * {t}, {c}, {a} * {s})", 3, 2),
    Operation("gate", "choose({s}, {a}, {t})", "tl.where({s} != 0, {a}, {t})", 1, 2),
    Operation(
        "over_root", "{a} / root(fused({b}, {s}, {t}))", "divide({a}, root(tl.fma({b}, {s}, {t})))", 2, 2, slow=True
    ),
    Operation(
        "over_shifted_root",
        "{a} / fused(root({b}), {s}, {t})",
        "divide({a}, tl.fma(root({b}), {s}, {t}))",
        2,
        2,
        slow=True,
    ),
    Operation("reciprocal", "1.0f / {a}", "divide(tl.full([BLOCK], 1.0, {T}), {a})", slow=True),
    Operation("fill", "{s}", "tl.full([BLOCK], 0.0, {T}) + {s}", 0, 1),
    Operation("copy", "{a}", "{a}"),
)
_UNIFORM_ONLY = (Operation("add", "{a} + {b}", "{a} + {b}", 2, on_numbers=lambda a, b: a + b),)

ELEMENT_OPS = {operation.name: operation for operation in (*_ELEMENT_ONLY, *_SHARED)}
UNIFORM_OPS = {operation.name: operation for operation in (*_UNIFORM_ONLY, *_SHARED)}
MEMORY_OPS = ("load", "store", "store_stochastic")  # of the CPU kernel: narrow streams to scratch and back
OPERANDS, NUMBERS = "abc", "st"

# The codes that the CPU kernel knows operations by.
ELEMENT_CODES = {name: code for code, name in enumerate((*ELEMENT_OPS, *MEMORY_OPS))}
UNIFORM_CODES = {name: code for code, name in enumerate(UNIFORM_OPS)}

# Structures of the CPU kernel. Members of an instruction are 32-bit integers: out = op(a, b, c; s, t), with registers
# a, b, c and positions s, t in the numbers of the code.
INSTRUCTION = ("op", "out", *OPERANDS, *NUMBERS)
UNIFORM_INSTRUCTION = ("op", "out", *OPERANDS)
PROGRAM_COUNTS = {
    "arithmetic": "the type of the arithmetic: float32 or float64",
    "streams": "registers below this are memory, the others are scratch",
    "scales": "streams in 8 bits",
    "scratch": "scratch registers",
    "instructions": "entries of `code`",
    "numbers": "entries of `number_slots`",
    "uniforms": "entries of `constants`",
    "uniform_instructions": "entries of `uniform_code`",
    "results": "pairs in `result`",
}
PROGRAM_ARRAYS = {
    "types": ("int32_t", "the type of each stream"),
    "written": ("int32_t", "whether each stream is written"),
    "kernel": ("void", "a Kernel, which is straight-line code for `code`; null if the interpreter is to run it"),
    "code": ("Instruction", "once per block of elements"),
    "number_slots": ("int32_t", "the uniform that each number of `code` is, in the order of their use"),
    "uniform_code": ("UniformInstruction", "once per tensor"),
    "result": ("int32_t", "pairs: a scalar input, and the uniform that it becomes"),
    "constants": ("double", "the uniforms before the program runs; the scalar inputs come first"),
}
MAX_REGISTERS = 64
INSTRUCTION_SETS = {"baseline": "baseline", "avx2": "AVX2", "avx512": "AVX-512", "neon": "NEON"}

# The arguments of a kernel, which steps the elements [begin, end) of one tensor; `begin` is that of a block of 8-bit
# codes. The scales follow the streams. `numbers` have the type of the arithmetic; `key` is the tensor's, for random
# numbers.
KERNEL_ARGUMENTS = "char *const *streams, const void *numbers, uint32_t key, size_t begin, size_t end"


class Function(NamedTuple):
    """A function of the native library: aimopt_<name>."""

    result: str  # its C type
    arguments: tuple[tuple[str, str], ...] = ()  # (C type, name)


_RECORDED = (("const aimopt::Torch *", "torch"), ("const int64_t *", "tensors"))
FUNCTIONS = {
    "layout": Function("const char *"),  # the fingerprint of the contracts that it was built from
    "best_isa": Function("int32_t"),  # a position in INSTRUCTION_SETS
    "shares_torch_threads": Function("int32_t"),
    # The straight-line code of a program that was compiled into the library, or null.
    "find_kernel": Function("const void *", (("uint64_t", "digest"), ("int32_t", "isa"))),
    # Step the tensors of an address table. The result is -1, or the first row with an invalid step count.
    "step": Function(
        "int64_t",
        (
            ("const aimopt::Program *", "program"),
            ("const int64_t *", "table"),
            ("int64_t", "tensors"),
            ("const int32_t *", "scalar_types"),
            ("int32_t", "scalars"),
            ("int32_t", "isa"),
            ("int32_t", "threads"),
        ),
    ),
    # Add the gradient to all other streams of an address table without scalars, in float32.
    "stream": Function(
        "void", (("const int64_t *", "table"), ("int64_t", "tensors"), ("int32_t", "streams"), ("int32_t", "threads"))
    ),
    "memory_record": Function(
        "int64_t", (*_RECORDED, ("int64_t", "count"), ("int64_t *", "record"), ("int64_t", "room"))
    ),
    "memory_sort": Function("int32_t", (("int64_t *", "starts"), ("int64_t *", "ends"), ("int64_t", "spans"))),
    "memory_compare": Function(
        "int32_t",  # one of COMPARISON
        (
            *_RECORDED,
            ("int64_t", "written"),
            ("int64_t", "grads"),
            ("const int64_t *", "record"),
            ("const int64_t *", "extents"),
            ("const int64_t *", "starts"),
            ("const int64_t *", "ends"),
            ("int64_t", "spans"),
            ("int64_t *", "addresses"),
        ),
    ),
}
# The results of comparing tensors with their record.
COMPARISON = ("changed", "unchanged", "overlapping")
CHANGED, UNCHANGED, OVERLAPPING = range(len(COMPARISON))

# The record of one tensor in `cpu/memory.cpp`: these integers, then its sizes, then its strides.
TENSOR_RECORD = ("address", "offset", "storage_bytes", "dtype", "device_type", "device_index", "dim")
# The functions aoti_torch_get_… of torch's stable C interface, and the type of their results.
TORCH_FUNCTIONS = {
    "data_ptr": "void *",
    "storage_offset": "int64_t",
    "storage_size": "int64_t",
    "dim": "int64_t",
    "dtype": "int32_t",
    "device_type": "int32_t",
    "device_index": "int32_t",
    "sizes": "int64_t *",
    "strides": "int64_t *",
}
