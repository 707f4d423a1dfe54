// Generated from kernels/layout.py by kernels/cpu/header.py. Do not edit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "export.h"

#define AIMOPT_LAYOUT "9a05bb443b83d81b"

namespace aimopt {

enum class Type : int32_t { float32, float64, bfloat16, float16, int8, uint8 };
constexpr size_t kTypeBytes[] = {4, 8, 2, 2, 1, 1};
inline size_t bytes(Type type) { return kTypeBytes[static_cast<int32_t>(type)]; }

// One row of an address table: numel, parameter index, span, addresses of scalars, of scales, of streams.
constexpr int64_t kRowNumel = 0, kRowParamIndex = 1;
constexpr int64_t kRowFirstScalar = 5;
constexpr int64_t kRowOffset = 2, kRowRun = 3, kRowGap = 4;
inline int64_t row_first_scale(int64_t scalars) { return kRowFirstScalar + scalars; }
inline int64_t row_first_stream(int64_t scalars, int64_t scales) { return row_first_scale(scalars) + scales; }
inline int64_t row_width(int64_t scalars, int64_t scales, int64_t streams) {
    return row_first_stream(scalars, scales) + streams;
}

enum class Op : int32_t {
    affine = 0,
    scale = 1,
    lin = 2,
    muladd = 3,
    gate = 4,
    over_root = 5,
    over_shifted_root = 6,
    reciprocal = 7,
    fill = 8,
    copy = 9,
    mul = 10,
    div = 11,
    pow = 12,
    maximum = 13,
    minimum = 14,
    lt = 15,
    le = 16,
    eq = 17,
    select = 18,
    sqrt = 19,
    abs = 20,
    sign = 21,
    floor = 22,
    exp = 23,
    log = 24,
    tanh = 25,
    load = 26,
    store = 27,
    store_stochastic = 28,
};
enum class UniformOp : int32_t {
    add = 0,
    mul = 1,
    div = 2,
    pow = 3,
    maximum = 4,
    minimum = 5,
    lt = 6,
    le = 7,
    eq = 8,
    select = 9,
    sqrt = 10,
    abs = 11,
    sign = 12,
    floor = 13,
    exp = 14,
    log = 15,
    tanh = 16,
};
enum class Isa : int32_t { baseline, avx2, avx512, neon };
constexpr size_t kMaxRegisters = 64;

// out = op(a, b, c; s, t): a, b, c are registers, s and t are positions in the numbers of the code.
struct Instruction {
    int32_t op, out, a, b, c, s, t;
};
struct UniformInstruction {
    int32_t op, out, a, b, c;
};

// Steps the elements [begin, end) of one tensor.
using Kernel = void (*)(char *const *streams, const void *numbers, uint32_t key, size_t begin, size_t end);

struct Program {
    int32_t arithmetic;  // the type of the arithmetic: float32 or float64
    int32_t streams;  // registers below this are memory, the others are scratch
    int32_t scales;  // streams in 8 bits
    int32_t scratch;  // scratch registers
    int32_t instructions;  // entries of `code`
    int32_t numbers;  // entries of `number_slots`
    int32_t uniforms;  // entries of `constants`
    int32_t uniform_instructions;  // entries of `uniform_code`
    int32_t results;  // pairs in `result`
    const int32_t *types;  // the type of each stream
    const int32_t *written;  // whether each stream is written
    const void *kernel;  // a Kernel, which is straight-line code for `code`; null if the interpreter is to run it
    const Instruction *code;  // once per block of elements
    const int32_t *number_slots;  // the uniform that each number of `code` is, in the order of their use
    const UniformInstruction *uniform_code;  // once per tensor
    const int32_t *result;  // pairs: a scalar input, and the uniform that it becomes
    const double *constants;  // the uniforms before the program runs; the scalar inputs come first
};

// The functions of torch's stable C interface. Each returns 0, and writes its result to its last argument.
struct Torch {
    using Handle = const int64_t *;
    int32_t (*data_ptr)(Handle, void **);
    int32_t (*storage_offset)(Handle, int64_t *);
    int32_t (*storage_size)(Handle, int64_t *);
    int32_t (*dim)(Handle, int64_t *);
    int32_t (*dtype)(Handle, int32_t *);
    int32_t (*device_type)(Handle, int32_t *);
    int32_t (*device_index)(Handle, int32_t *);
    int32_t (*sizes)(Handle, int64_t **);
    int32_t (*strides)(Handle, int64_t **);
};

// The positions in the record of one tensor. Its sizes and strides follow.
namespace record {
enum : int64_t { address, offset, storage_bytes, dtype, device_type, device_index, dim, length };
}

// The results of comparing tensors with their record.
enum class Comparison : int32_t { changed, unchanged, overlapping };

}  // namespace aimopt

AIMOPT_API const char *aimopt_layout();
AIMOPT_API int32_t aimopt_best_isa();
AIMOPT_API int32_t aimopt_shares_torch_threads();
AIMOPT_API const void *aimopt_find_kernel(uint64_t digest, int32_t isa);
AIMOPT_API int64_t aimopt_step(const aimopt::Program *program, const int64_t *table, int64_t tensors, const int32_t *scalar_types, int32_t scalars, int32_t isa, int32_t threads);
AIMOPT_API void aimopt_stream(const int64_t *table, int64_t tensors, int32_t streams, int32_t threads);
AIMOPT_API int64_t aimopt_memory_record(const aimopt::Torch *torch, const int64_t *tensors, int64_t count, int64_t *record, int64_t room);
AIMOPT_API int32_t aimopt_memory_sort(int64_t *starts, int64_t *ends, int64_t spans);
AIMOPT_API int32_t aimopt_memory_compare(const aimopt::Torch *torch, const int64_t *tensors, int64_t written, int64_t grads, const int64_t *record, const int64_t *extents, const int64_t *starts, const int64_t *ends, int64_t spans, int64_t *addresses);
