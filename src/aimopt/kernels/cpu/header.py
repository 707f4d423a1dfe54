"""The C++ side of `kernels/layout.py`: the files that C++ includes, generated from it.

    python -c "from aimopt.kernels.cpu import header; header.write()"

writes layout.h, codes.h, element_ops.inc and uniform_ops.inc next to this file. Run it after a change of `layout.py`,
and commit the files: then building the package needs neither torch nor this module. A test compares them
(`tests/kernels/test_kernel_layout.py`). The library reports `fingerprint()`, so that a library that was built from
other contracts is not used.
"""

from hashlib import sha256
from pathlib import Path

from aimopt.kernels import layout
from aimopt.step import precision, quantization

NOTICE = "// Generated from kernels/layout.py by kernels/cpu/header.py. Do not edit.\n"


def generated_files() -> dict[str, str]:
    """The name and text of every generated file."""
    return {name: text.replace("@FINGERPRINT@", fingerprint()) for name, text in _without_fingerprint().items()}


def write() -> None:
    """Write the generated files next to this one."""
    for name, text in generated_files().items():
        Path(__file__).with_name(name).write_text(text, encoding="utf-8")


def fingerprint() -> str:
    """A digest of all generated files: the version of the contracts."""
    return sha256("".join(_without_fingerprint().values()).encode()).hexdigest()[:16]


def _without_fingerprint() -> dict[str, str]:
    return {
        "layout.h": _header(),
        "codes.h": _codes_header(),
        "element_ops.inc": _element_cases(),
        "uniform_ops.inc": _uniform_cases(),
    }


def _codes_header() -> str:
    """What a kernel that is compiled later needs as well, without the rest of the contracts."""
    lines = [
        "#pragma once",
        "",
        "#include <cstddef>",
        "#include <cstdint>",
        "",
        "namespace aimopt {",
        "",
        "// Random numbers: the elements per line.",
        f"constexpr size_t kHashBlock = {precision.HASH_BLOCK};",
        "",
        "// Numbers in 8 bits: the elements per scale, the bits of mantissa in a level, "
        "the bits of a number below those of",
        "// its level, the lowest level of a scale, and the bits of the largest number.",
        f"constexpr size_t kCodeBlock = {quantization.BLOCK};",
        f"constexpr uint32_t kMantissa = {quantization.MANTISSA}, kCodeShift = {quantization.SHIFT};",
        f"constexpr uint32_t kLowestBase = {quantization.LOWEST_BASE}, kLargestCoded = 0x{quantization.LARGEST:x}U;",
        "",
        "}  // namespace aimopt",
    ]
    return NOTICE + "\n".join(lines) + "\n"


def _row_layout() -> list[str]:
    row = layout.RowLayout
    return [
        "// One row of an address table: numel, parameter index, span, addresses of scalars, of scales, of streams.",
        f"constexpr int64_t kRowNumel = {row.NUMEL}, kRowParamIndex = {row.PARAM_INDEX};",
        f"constexpr int64_t kRowFirstScalar = {row.FIRST_SCALAR};",
        f"constexpr int64_t kRowOffset = {row.OFFSET}, kRowRun = {row.RUN}, kRowGap = {row.GAP};",
        "inline int64_t row_first_scale(int64_t scalars) { return kRowFirstScalar + scalars; }",
        "inline int64_t row_first_stream(int64_t scalars, int64_t scales) "
        "{ return row_first_scale(scalars) + scales; }",
        "inline int64_t row_width(int64_t scalars, int64_t scales, int64_t streams) {",
        "    return row_first_stream(scalars, scales) + streams;",
        "}",
    ]


def _header() -> str:
    lines = [
        "#pragma once",
        "",
        "#include <cstddef>",
        "#include <cstdint>",
        "",
        '#include "export.h"',
        "",
        '#define AIMOPT_LAYOUT "@FINGERPRINT@"',
        "",
        "namespace aimopt {",
        "",
        f"enum class Type : int32_t {{ {', '.join(kind.name for kind in layout.TYPES)} }};",
        f"constexpr size_t kTypeBytes[] = {{{', '.join(str(kind.size) for kind in layout.TYPES)}}};",
        "inline size_t bytes(Type type) { return kTypeBytes[static_cast<int32_t>(type)]; }",
        "",
        *_row_layout(),
        "",
        f"enum class Op : int32_t {{\n{_listed(layout.ELEMENT_CODES)}\n}};",
        f"enum class UniformOp : int32_t {{\n{_listed(layout.UNIFORM_CODES)}\n}};",
        f"enum class Isa : int32_t {{ {', '.join(layout.INSTRUCTION_SETS)} }};",
        f"constexpr size_t kMaxRegisters = {layout.MAX_REGISTERS};",
        "",
        "// out = op(a, b, c; s, t): a, b, c are registers, s and t are positions in the numbers of the code.",
        f"struct Instruction {{\n    int32_t {', '.join(layout.INSTRUCTION)};\n}};",
        f"struct UniformInstruction {{\n    int32_t {', '.join(layout.UNIFORM_INSTRUCTION)};\n}};",
        "",
        "// Steps the elements [begin, end) of one tensor.",
        f"using Kernel = void (*)({layout.KERNEL_ARGUMENTS});",
        "",
        "struct Program {",
        *(f"    int32_t {name};  // {meaning}" for name, meaning in layout.PROGRAM_COUNTS.items()),
        *(f"    const {kind} *{name};  // {meaning}" for name, (kind, meaning) in layout.PROGRAM_ARRAYS.items()),
        "};",
        "",
        "// The functions of torch's stable C interface. Each returns 0, and writes its result to its last argument.",
        "struct Torch {",
        "    using Handle = const int64_t *;",
        *(f"    int32_t (*{name})(Handle, {_pointer_to(kind)});" for name, kind in layout.TORCH_FUNCTIONS.items()),
        "};",
        "",
        "// The positions in the record of one tensor. Its sizes and strides follow.",
        "namespace record {",
        f"enum : int64_t {{ {', '.join(layout.TENSOR_RECORD)}, length }};",
        "}",
        "",
        "// The results of comparing tensors with their record.",
        f"enum class Comparison : int32_t {{ {', '.join(layout.COMPARISON)} }};",
        "",
        "}  // namespace aimopt",
        "",
        *(_declaration(name, function) for name, function in layout.FUNCTIONS.items()),
    ]
    return NOTICE + "\n".join(lines) + "\n"


def _pointer_to(kind: str) -> str:
    return f"{kind}*" if kind.endswith("*") else f"{kind} *"


def _declaration(name: str, function: layout.Function) -> str:
    arguments = ", ".join(_spaced(kind, argument) for kind, argument in function.arguments)
    return f"AIMOPT_API {_spaced(function.result, f'aimopt_{name}')}({arguments});"


def _spaced(kind: str, name: str) -> str:
    return f"{kind}{name}" if kind.endswith("*") else f"{kind} {name}"


def _listed(names: dict[str, int]) -> str:
    return "\n".join(f"    {name} = {code}," for name, code in names.items())


def _element_cases() -> str:
    """One case per operation of the switch in `interpreter.inc`."""
    names = {**{x: f"{x}[i]" for x in layout.OPERANDS}, **{x: x for x in layout.NUMBERS}}
    lines = [
        f"case Op::{op.name}: {'AIMOPT_EACH' if op.vectorized else 'AIMOPT_EACH_CALL'}({op.cpp.format(**names)});"
        for op in layout.ELEMENT_OPS.values()
    ]
    return NOTICE + "\n".join(lines) + "\n"


def _uniform_cases() -> str:
    """One case per operation of the switch in `step.cpp`."""
    names = {x: x for x in layout.OPERANDS}
    lines = [f"case UniformOp::{op.name}: return {op.cpp.format(**names)};" for op in layout.UNIFORM_OPS.values()]
    return NOTICE + "\n".join(lines) + "\n"
