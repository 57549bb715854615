// The threads of one engine: they sleep between steps, and inside a step wait for each other only
// briefly before they sleep, so that engines that share cores do not take time from each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace firstlight {

class Team {
public:
    // Throws std::invalid_argument if there are fewer than one, or they cannot all be started.
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return size_; }

    // Calls job(thread) once on every thread, the caller's being 0, and returns when all are done.
    // Throws std::runtime_error in a fork of the process that made it: a fork has none of its threads.
    void run(const std::function<void(int)>& job);

    // Inside a job, called by all: body(begin, end) for ranges that cover 0…count, each taken by
    // whichever thread is free. Returns when all ranges are done.
    template <class Body>
    void each(int count, int grain, const Body& body) {
        for (int begin; (begin = next_.fetch_add(grain, std::memory_order_relaxed)) < count;)
            body(begin, begin + grain < count ? begin + grain : count);
        meet();
    }

    // A grain that gives every thread a few ranges, in multiples of `multiple`.
    int grain(int count, int multiple = 1) const;

private:
    void meet();
    void work(int thread);
    void end();

    const int size_, process_;
    std::vector<std::thread> workers_;
    const std::function<void(int)>* job_ = nullptr;
    alignas(64) std::atomic<std::uint32_t> jobs_{0};
    alignas(64) std::atomic<std::uint32_t> meetings_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> next_{0};
    bool stopping_ = false;
};

}  // namespace firstlight
