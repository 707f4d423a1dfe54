// The threads of the step: torch's own.
//
// torch's Linux builds run on GNU OpenMP. A caller that asks the same copy of OpenMP for the same number of threads gets
// the same threads; a second pool would compete with them for the cores. On other systems our own pool is used, which
// sleeps between steps. A process that was forked after the library was
// loaded has it too: OpenMP would wait there for threads that only its parent has, as it does in torch's own steps.

#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <dlfcn.h>
#endif
#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace aimopt {

using Work = void (*)(void *data, int thread);

struct OpenMp {
    using Parallel = void (*)(void (*)(void *), void *, unsigned threads, unsigned flags);
    using ThreadNumber = int (*)();
    Parallel parallel = nullptr;
    ThreadNumber number = nullptr;
    int64_t owner = 0;  // the process that loaded it

    OpenMp() {
#if defined(__linux__)
        owner = getpid();
        parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
        number = reinterpret_cast<ThreadNumber>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"));
#endif
    }

    static const OpenMp &loaded() {
        static const OpenMp openmp;
        return openmp;
    }
};

// Threads that sleep until there is work. The caller is thread 0 of a run.
class Pool {
  public:
    explicit Pool(int threads) {
        for (int k = 1; k < threads; k++) workers_.emplace_back([this, k] { serve(k); });
    }

    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        for (auto &worker : workers_) worker.join();
    }

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    void run(Work work, void *data) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            work_ = work, data_ = data, left_ = threads() - 1, round_++;
        }
        wake_.notify_all();
        work(data, 0);
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [&] { return left_ == 0; });
    }

  private:
    void serve(int thread) {
        std::unique_lock<std::mutex> lock(mutex_);
        for (uint64_t seen = 0;;) {
            wake_.wait(lock, [&] { return stop_ || round_ != seen; });
            if (stop_) return;
            seen = round_;
            lock.unlock();
            work_(data_, thread);
            lock.lock();
            if (--left_ == 0) done_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    Work work_ = nullptr;
    void *data_ = nullptr;
    int left_ = 0;
    uint64_t round_ = 0;
    bool stop_ = false;
    std::vector<std::thread> workers_;  // the last member: they use the others
};

// Run on the pool of this process, one caller at a time.
inline void run_on_pool(Work work, void *data, int threads) {
    static std::mutex turn;
    static std::unique_ptr<Pool> *pool = new std::unique_ptr<Pool>;  // never deleted: its threads may outlive main
    std::lock_guard<std::mutex> lock(turn);
#if !defined(_WIN32)
    static int64_t owner = -1;
    if (owner != getpid()) {  // a forked child has none of its parent's threads, and must not wait for them
        pool->release();
        owner = getpid();
    }
#endif
    if (!*pool || (*pool)->threads() != threads) *pool = std::make_unique<Pool>(threads);
    (*pool)->run(work, data);
}

inline bool shares_threads() {
    const OpenMp &openmp = OpenMp::loaded();
    if (!openmp.parallel || !openmp.number) return false;
#if defined(__linux__)
    return openmp.owner == getpid();
#else
    return true;
#endif
}

inline void run_parallel(Work work, void *data, int threads) {
    if (threads <= 1) {
        work(data, 0);
        return;
    }
    if (!shares_threads()) {
        run_on_pool(work, data, threads);
        return;
    }
    struct Call {
        Work work;
        void *data;
        int threads;
        uint8_t *served;
    };
    std::vector<uint8_t> served(threads, 0);
    Call call{work, data, threads, served.data()};
    OpenMp::loaded().parallel(
        [](void *given) {
            const Call &call = *static_cast<Call *>(given);
            const int thread = OpenMp::loaded().number();
            call.work(call.data, thread);
            call.served[thread] = 1;
        },
        &call, threads, 0);
    // OpenMP may start fewer threads than requested (a limit, a nested region): the caller does their shares.
    for (int thread = 0; thread < threads; thread++)
        if (!served[thread]) work(data, thread);
}

}  // namespace aimopt
