// Division of work among a team of OpenMP threads.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace rayinfer {

// Elements beyond which other threads are worth waking.
constexpr int64_t kElementsPerThread = 4096;

// All of them, or the caller alone: a team of another size would cost its threads' end and new ones' start.
inline int team_size(int64_t work, int64_t worthwhile, int num_threads) { return work < worthwhile ? 1 : num_threads; }

struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};

// The index-th of `count` equal ranges: what one thread of a team computes.
struct ThreadRange {
    int index, count;
    Range of(int64_t total) const { return {total * index / count, total * (index + 1) / count}; }
};

inline ThreadRange this_thread() { return {omp_get_thread_num(), omp_get_num_threads()}; }

// Work-stealing queue of the units of one stage after the other. Each thread begins with a range of its own; idle threads
// steal from the tails of others, so a thread that lost its core delays the team little.
class WorkStealingQueue {
  public:
    // By one thread, before the first round of a team.
    void begin(int num_threads) {
        if ((int)left_.size() < num_threads) left_ = std::vector<Left>(num_threads);
        for (Left& left : left_) left.packed.store(kNoRound, std::memory_order_relaxed);
    }

    // The next units of a round < 2^16 - 1, at most `most` of `total` < 2^24; empty when none is left. Rounds have rising
    // numbers since `begin`; the first call of one starts it, when all units of those before are done. A thread that
    // comes late finds nothing in them.
    Range next(uint32_t round, ThreadRange thread, int64_t total, int64_t most) {
        for (int i = 0; i < thread.count; ++i) {
            const int owner = (thread.index + i) % thread.count;
            std::atomic<uint64_t>& left = left_[owner].packed;
            uint64_t seen = left.load(std::memory_order_relaxed);
            for (;;) {
                Range range = unpack(seen, round, ThreadRange{owner, thread.count}.of(total));
                if (range.size() <= 0) break;
                Range taken = {range.begin, range.begin + (most < range.size() ? most : range.size())};
                if (i > 0) taken = {range.end - 1, range.end};
                (i > 0 ? range.end : range.begin) = i > 0 ? taken.begin : taken.end;
                if (left.compare_exchange_weak(seen, pack(range, round), std::memory_order_relaxed)) return taken;
            }
        }
        return {0, 0};
    }

  private:
    static constexpr int kBits = 24;
    static constexpr uint64_t kMask = (1 << kBits) - 1;
    static constexpr uint64_t kNoRound = ~0ull;

    struct alignas(64) Left {
        std::atomic<uint64_t> packed{kNoRound};
    };

    static uint64_t pack(Range range, uint32_t round) {
        return (uint64_t)round << 2 * kBits | (uint64_t)range.begin << kBits | (uint64_t)range.end;
    }
    // `all`, if no unit of this round has been handed out; none, if a later one has begun.
    static Range unpack(uint64_t packed, uint32_t round, Range all) {
        const uint64_t latest = packed >> 2 * kBits;
        if (packed == kNoRound || latest < round) return all;
        if (latest > round) return {0, 0};
        return {(int64_t)(packed >> kBits & kMask), (int64_t)(packed & kMask)};
    }

    std::vector<Left> left_;
};

}  // namespace rayinfer
