// Threads that share the stages of a piece of work, one after the other.
//
// A stage ends when its last unit is done, not when every thread has come: a thread that lost its core between two
// units delays no other, and finds the stages that it missed done. A barrier would wait for it at each.
//
// Each thread counts the units that it has done in a cache line of its own, and takes units of its own range first: a line
// that all threads write moves from core to core, which takes up to 200 ns where they share no cache.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "core/thread_team.h"

namespace rayinfer {

// What the threads of a team share; kept from one piece of work to the next.
class StageMemory {
  public:
    // By one thread, before those of the team come.
    void begin(int num_threads) {
        units_.begin(num_threads);
        if ((int)done_.size() < num_threads) done_ = std::vector<Done>(num_threads);
        for (Done& done : done_) done.num_units.store(0, std::memory_order_relaxed);
    }

  private:
    friend class StageTeam;

    struct alignas(64) Done {
        std::atomic<int64_t> num_units{0};  // of all stages so far, by one thread
    };

    WorkStealingQueue units_;
    std::vector<Done> done_;
};

// A thread's way through the stages; all threads of a team go through the same ones with the same numbers of units.
class StageTeam {
  public:
    // A single thread, which needs no memory.
    StageTeam() = default;
    StageTeam(StageMemory& memory, ThreadRange thread) : memory_(&memory), thread_(thread) {}

    ThreadRange thread() const { return thread_; }
    int num_threads() const { return thread_.count; }

    // Units of about `size` each; a single thread takes all at once.
    int64_t num_units(int64_t total, int64_t size) const {
        return num_threads() == 1 ? 1 : std::max<int64_t>(1, (total + size - 1) / size);
    }

    // Returns when all units of the next stage are done, by this thread or by others.
    template <class Run>
    void share(int64_t num_units, const Run& run) {
        if (num_threads() == 1) {
            for (int64_t unit = 0; unit < num_units; ++unit) run(unit);
            return;
        }
        begin_stage(num_units);
        for (Range taken; (taken = take(1)).size() > 0;) {
            run(taken.begin);
            finish(1);
        }
        wait();
    }

    // The next stage, in steps: needs memory, whatever the number of threads.
    void begin_stage(int64_t num_units) {
        ++stage_;
        num_units_ = num_units;
        num_until_end_ += num_units;
    }

    // At most so many units that no thread has taken; empty when none is left.
    Range take(int64_t most) { return memory_->units_.next(stage_, thread_, num_units_, most); }

    // The results of these units are complete.
    void finish(int64_t num_units) {
        std::atomic<int64_t>& own = memory_->done_[thread_.index].num_units;
        own.store(own.load(std::memory_order_relaxed) + num_units, std::memory_order_release);
    }

    // Returns when all units of the stage are done.
    void wait() const {
        for (int64_t tries = 0; !is_done(); ++tries)
            if (tries < kSpins)
                pause();
            else
                sched_yield();
    }

  private:
    static constexpr int64_t kSpins = 2000;  // some ten microseconds, which the rest of a unit may take

    // No thread does units of a stage before those of all earlier ones are done: so many in all are those up to this stage's.
    bool is_done() const {
        int64_t num_done = 0;
        for (int i = 0; i < thread_.count; ++i) num_done += memory_->done_[i].num_units.load(std::memory_order_acquire);
        return num_done >= num_until_end_;
    }

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    StageMemory* memory_ = nullptr;
    ThreadRange thread_{0, 1};
    uint32_t stage_ = 0;
    int64_t num_units_ = 0, num_until_end_ = 0;
};

}  // namespace rayinfer
