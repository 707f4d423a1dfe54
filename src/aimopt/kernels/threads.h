// The threads of the step: torch's own.
//
// torch's Linux builds run on GNU OpenMP, and whoever asks the same copy of it for the same number of threads is
// served by the same threads; a second pool beside it would fight it for the cores. Elsewhere a pool of our own sleeps
// between steps.

#pragma once

#include <condition_variable>
#include <cstdint>
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

    OpenMp() {
#if defined(__linux__)
        parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
        number = reinterpret_cast<ThreadNumber>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"));
#endif
    }

    static const OpenMp &found() {
        static const OpenMp openmp;
        return openmp;
    }
};

class Pool {
  public:
    void run(Work work, void *data, int threads) {
        std::lock_guard<std::mutex> one_at_a_time(turn_);
        if (process_ != this_process() || static_cast<int>(workers_.size()) != threads - 1) restart(threads - 1);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            work_ = work, data_ = data, left_ = threads - 1, round_++;
        }
        wake_.notify_all();
        work(data, 0);
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [&] { return left_ == 0; });
    }

    static Pool &instance() {
        static Pool *pool = new Pool;  // never destroyed: its threads may outlive the end of main
        return *pool;
    }

  private:
    static int64_t this_process() {
#if defined(_WIN32)
        return 0;
#else
        return getpid();
#endif
    }

    void restart(int workers) {
        if (process_ == this_process()) {
            {
                std::lock_guard<std::mutex> lock(mutex_);
                stop_ = true;
            }
            wake_.notify_all();
            for (auto &worker : workers_) worker->join();
        }  // a forked child has inherited handles of threads it does not have: they are left alone
        workers_.clear();
        stop_ = false, process_ = this_process();
        for (int k = 0; k < workers; k++) workers_.push_back(new std::thread([this, k, round = round_] { serve(k + 1, round); }));
    }

    void serve(int thread, uint64_t seen) {
        for (;;) {
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return stop_ || round_ != seen; });
            if (stop_) return;
            seen = round_;
            lock.unlock();
            work_(data_, thread);
            lock.lock();
            if (--left_ == 0) done_.notify_one();
        }
    }

    std::vector<std::thread *> workers_;
    std::mutex turn_, mutex_;
    std::condition_variable wake_, done_;
    Work work_ = nullptr;
    void *data_ = nullptr;
    int left_ = 0;
    uint64_t round_ = 0;
    bool stop_ = false;
    int64_t process_ = -1;
};

inline bool shares_threads() { return OpenMp::found().parallel && OpenMp::found().number; }

inline void run_parallel(Work work, void *data, int threads) {
    if (threads <= 1) {
        work(data, 0);
        return;
    }
    if (!shares_threads()) {
        Pool::instance().run(work, data, threads);
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
    OpenMp::found().parallel(
        [](void *given) {
            const Call &call = *static_cast<Call *>(given);
            const int thread = OpenMp::found().number();
            call.work(call.data, thread);
            call.served[thread] = 1;
        },
        &call, threads, 0);
    // OpenMP may give fewer threads than asked for (a limit, a nested region): their shares are done here.
    for (int thread = 0; thread < threads; thread++)
        if (!served[thread]) work(data, thread);
}

}  // namespace aimopt
