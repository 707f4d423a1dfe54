// The fused step: a program of element-wise instructions, run over all tensors of a group in one pass over memory.
//
// Every thread takes an equal share of the elements and works through it in blocks that stay in the first-level cache:
// all instructions on one block, then the next block, whose memory is already on its way. So an optimizer costs what
// its parameters, gradients and state cost to read and write, whatever its arithmetic. `program.py` writes programs.
//
// Plain C++17 and a C interface: no header of Python or torch is needed, and one build serves every version of both.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "export.h"
#include "threads.h"

namespace aimopt {

// In the order of the codes; `cpu.py` asks for the names.
#define AIMOPT_ELEMENT_OPS(X) \
    X(affine) X(scale) X(lin) X(muladd) X(mul) X(div) X(pow) X(maximum) X(minimum) X(lt) X(le) X(eq) X(select) \
    X(gate) X(over_root) X(over_shifted_root) X(sqrt) X(abs) X(sign) X(exp) X(log) X(tanh) X(reciprocal) X(fill) X(copy) \
    X(load) X(store) X(store_stochastic)
#define AIMOPT_UNIFORM_OPS(X) \
    X(add) X(mul) X(div) X(pow) X(maximum) X(minimum) X(lt) X(le) X(eq) X(select) X(sqrt) X(abs) X(sign) X(exp) \
    X(log) X(tanh)

#define AIMOPT_ENUMERATOR(name) name,
#define AIMOPT_NAME(name) #name " "
enum class Op : int32_t { AIMOPT_ELEMENT_OPS(AIMOPT_ENUMERATOR) };
enum class UniformOp : int32_t { AIMOPT_UNIFORM_OPS(AIMOPT_ENUMERATOR) };

enum class Type : int32_t { float32, float64, bfloat16, float16 };

inline size_t bytes(Type type) { return type == Type::float64 ? 8 : type == Type::float32 ? 4 : 2; }

// out = op(a, b, c) with the uniforms s and t; registers below `streams` are memory, the others a block of scratch.
struct Instruction {
    int32_t op, out, a, b, c, s, t;
};

struct UniformInstruction {
    int32_t op, out, a, b, c;
};

struct Program {
    int32_t math;  // the Type the arithmetic runs in: float32 or float64
    int32_t streams, scratch, instructions;
    int32_t uniforms, uniform_instructions, results;
    const int32_t *types, *written;             // of each stream: its Type, and whether it is written
    const Instruction *code;
    const UniformInstruction *uniform_code;
    const int32_t *result;                      // pairs: a scalar input, and the uniform that it becomes
    const double *constants;                    // the uniforms before the program runs; the first are the inputs
};

// One tensor: `rank` tells it from all others of its optimizer, for the random numbers; `at` the memory of each stream.
struct Item {
    int64_t numel, rank;
    const int64_t *at;
};

constexpr size_t kBlock = 128;    // elements; 64 to 128 measured fastest, since the next block's loads overlap this one
constexpr size_t kAhead = 4;      // blocks the prefetches run ahead
constexpr size_t kMaxRegisters = 64;

// A hash of 32 bits (Wellons' lowbias32): random numbers that depend on nothing but what they are for.
inline uint32_t scramble(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    return x ^ (x >> 16);
}

template <class To, class From>
inline To bits_of(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class T>
using BlockRunner = void (*)(const Program &, char *const *at, const T *uniform, uint32_t key, size_t begin, size_t end);

// The interpreter, once for every instruction set this compiler knows.
namespace baseline {
#include "interpreter.inc"
}

#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__GNUC__) || defined(__clang__))
#define AIMOPT_X86 1
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define AIMOPT_FMA 1
namespace avx2 {
#include "interpreter.inc"
}
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")
#endif
namespace avx512 {
#include "interpreter.inc"
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

enum class Isa : int32_t { baseline, avx2, avx512, neon };

Isa best_isa() {
#ifdef AIMOPT_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return Isa::avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
#if defined(__aarch64__) || defined(_M_ARM64)
    return Isa::neon;  // which every such processor has, so that the baseline is it
#endif
    return Isa::baseline;
}

template <class T>
BlockRunner<T> runner(Isa isa) {
#ifdef AIMOPT_X86
    if (isa == Isa::avx512) return avx512::run_blocks<T>;
    if (isa == Isa::avx2) return avx2::run_blocks<T>;
#endif
    (void)isa;
    return baseline::run_blocks<T>;
}

double evaluate(UniformOp op, double a, double b, double c) {
    switch (op) {
        case UniformOp::add: return a + b;
        case UniformOp::mul: return a * b;
        case UniformOp::div: return a / b;
        case UniformOp::pow: return std::pow(a, b);
        case UniformOp::maximum: return a > b || std::isnan(a) ? a : b;
        case UniformOp::minimum: return a < b || std::isnan(a) ? a : b;
        case UniformOp::lt: return a < b;
        case UniformOp::le: return a <= b;
        case UniformOp::eq: return a == b;
        case UniformOp::select: return a != 0 ? b : c;
        case UniformOp::sqrt: return std::sqrt(a);
        case UniformOp::abs: return std::abs(a);
        case UniformOp::sign: return (a > 0) - (a < 0);
        case UniformOp::exp: return std::exp(a);
        case UniformOp::log: return std::log(a);
        case UniformOp::tanh: return std::tanh(a);
    }
    return 0;
}

// Fill `uniform`, the inputs of which are set.
void run_uniforms(const Program &program, double *uniform) {
    for (int32_t i = 0; i < program.uniform_instructions; i++) {
        const UniformInstruction &in = program.uniform_code[i];
        uniform[in.out] = evaluate(UniformOp(in.op), uniform[in.a], uniform[in.b], uniform[in.c]);
    }
}

// What all threads share of one step: the tensors end to end, and the uniforms of each.
template <class T>
struct Job {
    const Program &program;
    const std::vector<Item> &items;
    const std::vector<int64_t> &ends;        // of each tensor, in elements from the first
    const std::vector<size_t> &uniform_of;   // where each tensor's uniforms begin
    const std::vector<T> &uniforms;
    const std::vector<uint32_t> &keys;
    BlockRunner<T> run;
    int threads;

    // The share of one thread. Its ends fall anywhere: an element's result does not depend on its block.
    static void work(void *data, int thread) {
        const Job &job = *static_cast<const Job *>(data);
        const int64_t total = job.ends.back();
        const int64_t share = (total + job.threads - 1) / job.threads;
        int64_t begin = std::min(total, share * thread);
        const int64_t end = std::min(total, begin + share);
        size_t i = std::upper_bound(job.ends.begin(), job.ends.end(), begin) - job.ends.begin();
        for (; begin < end; i++) {
            const int64_t first = job.ends[i] - job.items[i].numel;
            const int64_t stop = std::min(end, job.ends[i]);
            char *at[kMaxRegisters];
            for (int32_t k = 0; k < job.program.streams; k++) at[k] = reinterpret_cast<char *>(job.items[i].at[k]);
            job.run(job.program, at, job.uniforms.data() + job.uniform_of[i], job.keys[i], begin - first, stop - first);
            begin = stop;
        }
    }
};

double read_scalar(int64_t at, Type type) {
    if (type == Type::float64) return *reinterpret_cast<const double *>(at);
    return *reinterpret_cast<const float *>(at);
}

void write_scalar(int64_t at, Type type, double value) {
    if (type == Type::float64)
        *reinterpret_cast<double *>(at) = value;
    else
        *reinterpret_cast<float *>(at) = static_cast<float>(value);
}

// A row of `table`: numel, rank, the address of the scalar of each of the first `scalars` inputs (the step count is
// the first, and is advanced here), then the address of each stream.
//
// The result is -1, or, where nothing was done, the first row whose step count is no count.
template <class T>
int64_t step(const Program &program, const int64_t *table, int64_t tensors, const int32_t *scalar_types, int32_t scalars,
          Isa isa, int threads) {
    const int64_t width = 2 + scalars + program.streams;
    const size_t n = program.uniforms;
    std::vector<Item> items(tensors);
    std::vector<int64_t> ends(tensors);
    std::vector<size_t> uniform_of(tensors);
    std::vector<uint32_t> keys(tensors);
    std::vector<T> uniforms;
    std::vector<double> inputs(scalars), last(scalars), uniform(program.constants, program.constants + n);
    int64_t total = 0;
    for (int64_t i = 0; i < tensors; i++)
        if (!(read_scalar(table[i * width + 2], Type(scalar_types[0])) >= 0)) return i;
    for (int64_t i = 0; i < tensors; i++) {
        const int64_t *row = table + i * width;
        items[i] = {row[0], row[1], row + 2 + scalars};
        ends[i] = total += row[0];
        for (int32_t k = 0; k < scalars; k++) inputs[k] = read_scalar(row[2 + k], Type(scalar_types[k])) + (k == 0);
        if (i == 0 || inputs != last) {  // the tensors of a group mostly share their step count
            std::copy(program.constants, program.constants + n, uniform.begin());
            std::copy(inputs.begin(), inputs.end(), uniform.begin());
            run_uniforms(program, uniform.data());
            for (double u : uniform) uniforms.push_back(static_cast<T>(u));
            last = inputs;
        }
        uniform_of[i] = uniforms.size() - n;
        keys[i] = scramble(scramble(static_cast<uint32_t>(static_cast<int64_t>(inputs[0]))) ^ static_cast<uint32_t>(row[1]));
        write_scalar(row[2], Type(scalar_types[0]), inputs[0]);
        for (int32_t k = 0; k < program.results; k++) {
            const int32_t input = program.result[2 * k];
            write_scalar(row[2 + input], Type(scalar_types[input]), uniform[program.result[2 * k + 1]]);
        }
    }
    if (total == 0) return -1;
    // Either all threads of the pool or this one alone: a pool that is asked for fewer is taken apart and rebuilt.
    if (total < 16384) threads = 1;
    Job<T> job{program, items, ends, uniform_of, uniforms, keys, runner<T>(isa), threads};
    run_parallel(Job<T>::work, &job, threads);
    return -1;
}

}  // namespace aimopt

AIMOPT_API const char *aimopt_element_ops() { return AIMOPT_ELEMENT_OPS(AIMOPT_NAME) ""; }
AIMOPT_API const char *aimopt_uniform_ops() { return AIMOPT_UNIFORM_OPS(AIMOPT_NAME) ""; }
AIMOPT_API int32_t aimopt_max_registers() { return aimopt::kMaxRegisters; }
AIMOPT_API int32_t aimopt_best_isa() { return static_cast<int32_t>(aimopt::best_isa()); }
AIMOPT_API int32_t aimopt_shares_torch_threads() { return aimopt::shares_threads(); }

AIMOPT_API int64_t aimopt_step(const aimopt::Program *program, const int64_t *table, int64_t tensors,
                            const int32_t *scalar_types, int32_t scalars, int32_t isa, int32_t threads) {
    auto run = aimopt::Type(program->math) == aimopt::Type::float64 ? aimopt::step<double> : aimopt::step<float>;
    return run(*program, table, tensors, scalar_types, scalars, aimopt::Isa(isa), threads);
}
