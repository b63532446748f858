// Threads that share the stages of a piece of work, one after the other.
//
// A stage ends when its last unit is done, not when every thread has come: a thread that lost its core between two
// units delays no other, and finds the stages that it missed done. A barrier would wait for it at each.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "core/thread_team.h"

namespace rayinfer {

struct alignas(64) StageCount {
    std::atomic<int64_t> taken{0}, done{0};

    // The next unit that no thread has taken; those behind the last do not exist.
    int64_t take() { return taken.fetch_add(1, std::memory_order_relaxed); }
    // The results of these units are complete.
    void finish(int64_t num_units) { done.fetch_add(num_units, std::memory_order_release); }
};

// A thread's way through the stages; all threads of a team go through the same ones with the same numbers of units.
class StageTeam {
  public:
    // A single thread, which needs no counts.
    StageTeam() = default;
    StageTeam(std::vector<StageCount>& stages, int num_threads) : stages_(stages.data()), num_threads_(num_threads) {}

    int64_t num_threads() const { return num_threads_; }

    // Units of about `size` each; a single thread takes all at once.
    int64_t num_units(int64_t total, int64_t size) const {
        return num_threads_ == 1 ? 1 : std::max<int64_t>(1, (total + size - 1) / size);
    }

    // Returns when all units of the next stage are done, by this thread or by others.
    template <class Run>
    void share(int64_t num_units, const Run& run) {
        if (num_threads_ == 1) {
            for (int64_t unit = 0; unit < num_units; ++unit) run(unit);
            return;
        }
        StageCount& stage = next();
        for (int64_t unit; (unit = stage.take()) < num_units;) {
            run(unit);
            stage.finish(1);
        }
        wait(stage, num_units);
    }

    // The next stage, for units that something else hands out: a team that has stages, of one thread or more.
    StageCount& next() { return *stages_++; }

    // Returns when so many units of the stage are done.
    static void wait(const StageCount& stage, int64_t num_units) {
        for (int64_t tries = 0; stage.done.load(std::memory_order_acquire) < num_units; ++tries)
            if (tries < kSpins)
                pause();
            else
                sched_yield();
    }

  private:
    static constexpr int64_t kSpins = 2000;  // some ten microseconds, which the rest of a unit may take

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    StageCount* stages_ = nullptr;
    int num_threads_ = 1;
};

}  // namespace rayinfer
