#include "threads.h"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <system_error>

namespace firstlight {

namespace {

constexpr int kSpins = 1000;  // some tens of µs: about what waking a sleeper costs
constexpr int kRangesPerThread = 4;

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void wait_while(const std::atomic<std::uint32_t>& number, std::uint32_t value, int spins) {
    for (; spins > 0; --spins) {
        if (number.load(std::memory_order_acquire) != value) return;
        pause();
    }
    while (number.load(std::memory_order_acquire) == value) number.wait(value);
}

}  // namespace

Team::Team(int threads) : size_(threads), process_(getpid()) {
    if (threads < 1) throw std::invalid_argument(std::to_string(threads) + " threads, expected 1 or more");
    try {
        for (int thread = 1; thread < size_; ++thread)
            workers_.emplace_back([this, thread] { work(thread); });
    } catch (const std::system_error& error) {
        std::size_t started = workers_.size() + 1;
        end();
        throw std::invalid_argument(std::to_string(threads) + " threads cannot be started, only " +
                                    std::to_string(started) + ": " + error.what());
    }
}

Team::~Team() { end(); }

void Team::end() {
    stopping_ = true;
    jobs_.fetch_add(1, std::memory_order_release);
    jobs_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void Team::run(const std::function<void(int)>& job) {
    if (size_ > 1 && getpid() != process_)
        throw std::runtime_error("these threads belong to process " + std::to_string(process_) +
                                 ", of which this one is a fork: it has to load the model itself");
    job_ = &job;
    jobs_.fetch_add(1, std::memory_order_release);
    if (size_ > 1) jobs_.notify_all();
    job(0);
    meet();
}

void Team::work(int thread) {
    for (std::uint32_t done = 0;;) {
        wait_while(jobs_, done, 0);
        done = jobs_.load(std::memory_order_acquire);
        if (stopping_) return;
        (*job_)(thread);
        meet();
    }
}

void Team::meet() {
    std::uint32_t meeting = meetings_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) {
        wait_while(meetings_, meeting, kSpins);
        return;
    }
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    meetings_.fetch_add(1, std::memory_order_release);
    if (size_ > 1) meetings_.notify_all();
}

int Team::grain(int count, int multiple) const {
    int ranges = size_ == 1 ? 1 : size_ * kRangesPerThread;
    int even = (count + ranges - 1) / ranges;
    return std::max(1, (even + multiple - 1) / multiple) * multiple;
}

}  // namespace firstlight
