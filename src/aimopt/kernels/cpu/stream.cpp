// The lower bound for the time of a fused step: a loop that reads a gradient and adds it to every tensor that a step
// writes, and does nothing else. `aimopt bench step` times it next to the optimizers, over the same memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "export.h"
#include "threads.h"

namespace {

constexpr int kMost = 5;  // the parameter and four buffers

struct Job {
    const int64_t *table;  // one row per tensor: numel, the address of its gradient, the addresses that are written
    int64_t tensors;
    int32_t written, threads;
};

template <int Written>
void add(const int64_t *row, int64_t begin, int64_t end) {
    const float *g = reinterpret_cast<const float *>(row[1]);
    float *x[kMost] = {};
    for (int k = 0; k < Written; k++) x[k] = reinterpret_cast<float *>(row[2 + k]);
    float *a = x[0], *b = x[1], *c = x[2], *d = x[3], *e = x[4];
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
    for (int64_t i = begin; i < end; i++) {
        a[i] += g[i];
        if constexpr (Written > 1) b[i] += g[i];
        if constexpr (Written > 2) c[i] += g[i];
        if constexpr (Written > 3) d[i] += g[i];
        if constexpr (Written > 4) e[i] += g[i];
    }
    (void)b, (void)c, (void)d, (void)e;
}

constexpr void (*kAdd[kMost])(const int64_t *, int64_t, int64_t) = {add<1>, add<2>, add<3>, add<4>, add<5>};

void work(void *data, int thread) {
    const Job &job = *static_cast<const Job *>(data);
    for (int64_t t = 0; t < job.tensors; t++) {
        const int64_t *row = job.table + t * (2 + job.written);
        const int64_t share = (row[0] + job.threads - 1) / job.threads;
        const int64_t begin = std::min(row[0], share * thread);
        kAdd[job.written - 1](row, begin, std::min(row[0], begin + share));
    }
}

}  // namespace

AIMOPT_API void aimopt_stream(const int64_t *table, int64_t tensors, int32_t written, int32_t threads) {
    Job job{table, tensors, written, threads};
    aimopt::run_parallel(work, &job, threads);
}
