// How many threads share a piece of work.
#pragma once

#include <cstdint>

namespace rayinfer {

// Elements beyond which other threads are worth waking.
constexpr int64_t kElementsPerThread = 4096;

// All of them, or the caller alone: a team of another size would cost its threads' end and new ones' start.
inline int team_for(int64_t work, int64_t worthwhile, int num_threads) { return work < worthwhile ? 1 : num_threads; }

}  // namespace rayinfer
