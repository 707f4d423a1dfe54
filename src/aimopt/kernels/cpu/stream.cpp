// The lower bound for the time of a fused step: a loop that reads a gradient and adds it to every tensor that a step
// writes, and does nothing else. `aimopt bench step` times it next to the optimizers, over the same memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "layout.h"
#include "threads.h"

namespace {

constexpr int kMost = 5;  // the parameter and four buffers

struct Job {
    const int64_t *table;  // rows without scalars
    int64_t tensors;
    int32_t written, threads;
};

template <int Written>
void add(const int64_t *streams, int64_t begin, int64_t end) {
    const float *g = reinterpret_cast<const float *>(streams[Written]);  // the gradient is the last stream
    float *x[kMost] = {};
    for (int k = 0; k < Written; k++) x[k] = reinterpret_cast<float *>(streams[k]);
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
        const int64_t *row = job.table + t * aimopt::row_width(0, 0, job.written + 1);
        const int64_t numel = row[aimopt::kRowNumel];
        const int64_t share = (numel + job.threads - 1) / job.threads;
        const int64_t begin = std::min(numel, share * thread);
        kAdd[job.written - 1](row + aimopt::row_first_stream(0, 0), begin, std::min(numel, begin + share));
    }
}

}  // namespace

void aimopt_stream(const int64_t *table, int64_t tensors, int32_t streams, int32_t threads) {
    if (streams < 2 || streams > kMost + 1) return;
    Job job{table, tensors, streams - 1, threads};
    aimopt::run_parallel(work, &job, threads);
}
