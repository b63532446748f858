// Prefetches of what is read next.
//
// Into the first level cache: on Zen 5 they come from memory by up to a fifth faster than those into the second level.
#pragma once

#include <cstdint>

namespace rayinfer {

constexpr int64_t kLine = 64;  // bytes of a cache line

// Panels that one tile alone reads come from memory at their reader's speed. The processor follows them by itself only to
// the end of a page, so every line is prefetched, so many bytes before, unless other distances were measured for the weight.
#if defined(__AVX512F__)
constexpr int64_t kStreamAhead = 6144, kStreamAheadOfMoreRows = 9216;
#else
constexpr int64_t kStreamAhead = 3072, kStreamAheadOfMoreRows = 3072;
#endif

template <int64_t Bytes>
inline __attribute__((always_inline)) void fetch(const void* from) {
#pragma GCC unroll 16
    for (int64_t i = 0; i < Bytes; i += kLine) __builtin_prefetch((const char*)from + i, 0, 3);
}

}  // namespace rayinfer
