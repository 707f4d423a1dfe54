// The fused step: a program of element-wise instructions, run over all tensors of a group in one pass over memory.
//
// Every thread takes an equal share of the elements. Straight-line code keeps all values of an element in registers; the
// interpreter runs all instructions on one block while it is in the first-level cache. So the cost of a step is that of
// reading and writing its parameters, gradients and state, for any arithmetic. `program.py` makes programs.
//
// Plain C++17 and a C interface: no header of Python or torch is needed, and one build works with every version of
// both. The structures that Python fills in are in `layout.h`.

#include <vector>

#include "elements.h"
#include "layout.h"
#include "threads.h"

#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__GNUC__) || defined(__clang__))
#define AIMOPT_X86 1
#else
#define AIMOPT_X86 0
#endif

namespace aimopt {

// One tensor, and the addresses of its scales and streams. It may be a part of a whole tensor: the position of element e
// in the whole is offset + e + (e / run) * gap. Random numbers depend on that position. A tensor with scales is whole, or
// a run of whole blocks.
struct Item {
    int64_t numel;
    int64_t offset, run, gap;
    const int64_t *scales, *streams;
};

template <class T>
using Interpreter = void (*)(const Program &, char *const *streams, const T *numbers, uint32_t key, size_t begin,
                             size_t end);

// A kernel that was compiled into the library, and the digest of the program that it is for.
struct CompiledKernel {
    uint64_t digest;
    Kernel kernel;
};

// The interpreter and the kernels, compiled once per instruction set. Old processors get the interpreter alone.
namespace baseline {
#include "elements.inc"
#include "vectors.inc"
#include "codes.inc"
#include "interpreter.inc"
#if !AIMOPT_X86 && (defined(__GNUC__) || defined(__clang__))
#include "kernels.inc"
#else
constexpr CompiledKernel kKernels[] = {{0, nullptr}};
#endif
}

#if AIMOPT_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define AIMOPT_FMA 1
#define AIMOPT_LANES 8
namespace avx2 {
#include "elements.inc"
#include "vectors.inc"
#include "codes.inc"
#include "interpreter.inc"
#include "kernels.inc"
}
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")
#endif
#undef AIMOPT_LANES
#define AIMOPT_LANES 16
namespace avx512 {
#include "elements.inc"
#include "vectors.inc"
#include "codes.inc"
#include "interpreter.inc"
#include "kernels.inc"
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

Isa best_isa() {
#if AIMOPT_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return Isa::avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
#if defined(__aarch64__) || defined(_M_ARM64)
    return Isa::neon;  // every such processor has it: the baseline is compiled for it
#endif
    return Isa::baseline;
}

template <class T>
Interpreter<T> interpreter(Isa isa) {
#if AIMOPT_X86
    if (isa == Isa::avx512) return avx512::run_blocks<T>;
    if (isa == Isa::avx2) return avx2::run_blocks<T>;
#endif
    (void)isa;
    return baseline::run_blocks<T>;
}

template <size_t N>
Kernel find(const CompiledKernel (&kernels)[N], uint64_t digest) {
    for (const CompiledKernel &compiled : kernels)
        if (compiled.digest == digest) return compiled.kernel;
    return nullptr;
}

Kernel find_kernel(uint64_t digest, Isa isa) {
#if AIMOPT_X86
    if (isa == Isa::avx512) return find(avx512::kKernels, digest);
    if (isa == Isa::avx2) return find(avx2::kKernels, digest);
#endif
    (void)isa;
    return find(baseline::kKernels, digest);
}

double evaluate(UniformOp op, double a, double b, double c) {
    using namespace baseline;  // the functions of the cases
    switch (op) {
#include "uniform_ops.inc"
    }
    return 0;
}

// Compute the uniforms from the inputs, which are set.
void run_uniforms(const Program &program, double *uniform) {
    for (int32_t i = 0; i < program.uniform_instructions; i++) {
        const UniformInstruction &in = program.uniform_code[i];
        uniform[in.out] = evaluate(UniformOp(in.op), uniform[in.a], uniform[in.b], uniform[in.c]);
    }
}

// The data that all threads of one step share: the tensors end to end, and the numbers of each.
template <class T>
struct Job {
    const Program &program;
    const std::vector<Item> &items;
    const std::vector<int64_t> &ends;        // of each tensor, in elements from the first
    const std::vector<size_t> &numbers_of;   // where each tensor's numbers begin
    const std::vector<T> &numbers;
    const std::vector<uint32_t> &keys;
    Interpreter<T> interpret;
    int threads;

    size_t tensor_at(int64_t element) const { return std::upper_bound(ends.begin(), ends.end(), element) - ends.begin(); }

    // Where the share of a thread begins: at a block of 8-bit codes, which one thread must encode as a whole.
    int64_t begin_of(int thread) const {
        const int64_t total = ends.back(), share = (total + threads - 1) / threads;
        const int64_t begin = std::min(total, share * thread);
        if (begin == total) return total;
        const size_t i = tensor_at(begin);
        const int64_t first = ends[i] - items[i].numel;
        return begin - (begin - first) % static_cast<int64_t>(kCodeBlock);
    }

    static void work(void *data, int thread) {
        const Job &job = *static_cast<const Job *>(data);
        int64_t begin = job.begin_of(thread);
        const int64_t end = job.begin_of(thread + 1);
        size_t i = job.tensor_at(begin);
        for (; begin < end; i++) {
            const Item &item = job.items[i];
            const int64_t first = job.ends[i] - item.numel;
            const int64_t stop = std::min(end, job.ends[i]);
            while (begin < stop) {
                const int64_t run = item.gap ? (begin - first) / item.run : 0;
                const int64_t run_stop = item.gap ? std::min(stop, first + (run + 1) * item.run) : stop;
                job.step_run(i, begin - first, run_stop - first, item.offset + run * item.gap);
                begin = run_stop;
            }
        }
    }

    // Step the elements [begin, end) of one tensor. A kernel counts elements by their positions in the whole tensor,
    // which are `shift` higher: so the streams begin as much earlier, and the addresses are the same.
    void step_run(size_t i, int64_t begin, int64_t end, int64_t shift) const {
        char *streams[kMaxRegisters];  // the scales follow the streams
        for (int32_t k = 0; k < program.streams; k++)
            streams[k] = reinterpret_cast<char *>(items[i].streams[k] -
                                                  shift * static_cast<int64_t>(bytes(Type(program.types[k]))));
        for (int32_t k = 0; k < program.scales; k++)
            streams[program.streams + k] = reinterpret_cast<char *>(items[i].scales[k]);
        const T *first_number = numbers.data() + numbers_of[i];
        const auto kernel = reinterpret_cast<Kernel>(const_cast<void *>(program.kernel));
        if (kernel) kernel(streams, first_number, keys[i], begin + shift, end + shift);
        else interpret(program, streams, first_number, keys[i], begin + shift, end + shift);
    }
};

double read_scalar(int64_t address, Type type) {
    if (type == Type::float64) return *reinterpret_cast<const double *>(address);
    return *reinterpret_cast<const float *>(address);
}

void write_scalar(int64_t address, Type type, double value) {
    if (type == Type::float64)
        *reinterpret_cast<double *>(address) = value;
    else
        *reinterpret_cast<float *>(address) = static_cast<float>(value);
}

// Step the tensors of an address table. The scalars are the first inputs of the program; the first one is the step
// count, which is advanced here. The result is -1, or the first row with a negative or NaN count: then nothing was done.
template <class T>
int64_t step(const Program &program, const int64_t *table, int64_t tensors, const int32_t *scalar_types, int32_t scalars,
          Isa isa, int threads) {
    const int64_t width = row_width(scalars, program.scales, program.streams);
    const size_t n = program.uniforms;
    std::vector<Item> items(tensors);
    std::vector<int64_t> ends(tensors);
    std::vector<size_t> numbers_of(tensors);
    std::vector<uint32_t> keys(tensors);
    std::vector<T> numbers;
    std::vector<double> inputs(scalars), last(scalars), uniform(program.constants, program.constants + n);
    int64_t total = 0;
    for (int64_t i = 0; i < tensors; i++)
        if (!(read_scalar(table[i * width + kRowFirstScalar], Type(scalar_types[0])) >= 0)) return i;
    for (int64_t i = 0; i < tensors; i++) {
        const int64_t *row = table + i * width;
        const int64_t *scalar = row + kRowFirstScalar;
        items[i] = {row[kRowNumel], row[kRowOffset], row[kRowRun], row[kRowGap], row + row_first_scale(scalars),
                    row + row_first_stream(scalars, program.scales)};
        ends[i] = total += row[kRowNumel];
        for (int32_t k = 0; k < scalars; k++) inputs[k] = read_scalar(scalar[k], Type(scalar_types[k])) + (k == 0);
        if (i == 0 || inputs != last) {  // most tensors of a group have the same step count
            std::copy(program.constants, program.constants + n, uniform.begin());
            std::copy(inputs.begin(), inputs.end(), uniform.begin());
            run_uniforms(program, uniform.data());
            for (int32_t k = 0; k < program.numbers; k++)
                numbers.push_back(static_cast<T>(uniform[program.number_slots[k]]));
            last = inputs;
        }
        numbers_of[i] = numbers.size() - program.numbers;
        const uint32_t count = static_cast<uint32_t>(static_cast<int64_t>(inputs[0]));
        keys[i] = baseline::scramble(baseline::scramble(count) ^ static_cast<uint32_t>(row[kRowParamIndex]));
        write_scalar(scalar[0], Type(scalar_types[0]), inputs[0]);
        for (int32_t k = 0; k < program.results; k++) {
            const int32_t input = program.result[2 * k];
            write_scalar(scalar[input], Type(scalar_types[input]), uniform[program.result[2 * k + 1]]);
        }
    }
    if (total == 0) return -1;
    // Either all threads of the pool or this thread alone: a pool would be rebuilt for another number of threads.
    if (total < 16384) threads = 1;
    Job<T> job{program, items, ends, numbers_of, numbers, keys, interpreter<T>(isa), threads};
    run_parallel(Job<T>::work, &job, threads);
    return -1;
}

}  // namespace aimopt

const char *aimopt_layout() { return AIMOPT_LAYOUT; }
int32_t aimopt_best_isa() { return static_cast<int32_t>(aimopt::best_isa()); }
const void *aimopt_find_kernel(uint64_t digest, int32_t isa) {
    return reinterpret_cast<const void *>(aimopt::find_kernel(digest, aimopt::Isa(isa)));
}
int32_t aimopt_shares_torch_threads() { return aimopt::shares_threads(); }

int64_t aimopt_step(const aimopt::Program *program, const int64_t *table, int64_t tensors, const int32_t *scalar_types,
                    int32_t scalars, int32_t isa, int32_t threads) {
    auto run = aimopt::Type(program->arithmetic) == aimopt::Type::float64 ? aimopt::step<double> : aimopt::step<float>;
    return run(*program, table, tensors, scalar_types, scalars, aimopt::Isa(isa), threads);
}
