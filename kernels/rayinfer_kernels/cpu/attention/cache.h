// Layout of the paged cache; vnni_cache.py has the same in Python.
#pragma once

#include <algorithm>
#include <type_traits>

#include "core/fetch_ahead.h"
#include "core/lanes.h"

namespace rayinfer {

// Numbers that stand together: channels of a key, tokens of a value. Pairs of bfloat16 are multiplied by one instruction.
template <class E>
constexpr int64_t kNeighbors = std::is_same_v<E, bfloat16> ? 2 : 1;

// The numbers of eight bits that are nearest to x, ties to even; |x| must not be above 127.5.
inline void store(int8_t* to, Float x) {
    typedef int8_t Bytes __attribute__((vector_size(kWidth)));
    const Bytes bytes = __builtin_convertvector((Int)(x + 12582912.0f), Bytes);  // 1.5 x 2^23 rounds to an integer
    std::memcpy(to, &bytes, sizeof(bytes));
}

// key   [num_blocks, num_kv_heads, padded_dim / kNeighbors, block_size, kNeighbors],
// value [num_blocks, num_kv_heads, block_size / kNeighbors, padded_dim, kNeighbors].
// padded_dim is a multiple of 16, and what lies behind head_dim is zero. Keys and values of eight bits are multiplied by
// their token's scale: [num_blocks, num_kv_heads, block_size] for each.
template <class E>
struct Cache {
    E* key;
    E* value;
    float* key_scales;  // null where E needs none
    float* value_scales;
    int64_t num_kv_heads, block_size, padded_dim;

    static constexpr bool kHasScales = std::is_same_v<E, int8_t>;

    int64_t first_slot(int64_t block, int64_t head) const { return (block * num_kv_heads + head) * block_size; }
    E* key_block(int64_t block, int64_t head) const { return key + first_slot(block, head) * padded_dim; }
    E* value_block(int64_t block, int64_t head) const { return value + first_slot(block, head) * padded_dim; }

    // Keep the key and the value [head_dim] of one token and head; of any type that can be loaded.
    template <class X>
    void write(int64_t slot, int64_t head, const X* key_row, const X* value_row, int64_t head_dim) const {
        constexpr int64_t n = kNeighbors<E>;
        const int64_t block = slot / block_size, token = slot % block_size;
        E* key_at = key_block(block, head) + token * n;
        write_row(key_row, head_dim, key_scales, first_slot(block, head) + token, [&](int64_t d, const E* numbers) {
            for (int64_t i = 0; i < kWidth; i += n)
                std::memcpy(key_at + (d + i) * block_size, numbers + i, n * sizeof(E));
        });
        E* value_at = value_block(block, head) + token / n * n * padded_dim + token % n;
        write_row(value_row, head_dim, value_scales, first_slot(block, head) + token, [&](int64_t d, const E* numbers) {
            for (int64_t i = 0; i < kWidth; ++i) value_at[(d + i) * n] = numbers[i];
        });
    }

    // Fetches the lines that `write` will store to, of which each store alone would wait for memory.
    void fetch(int64_t slot, int64_t head) const {
        constexpr int64_t n = kNeighbors<E>;
        const int64_t block = slot / block_size, token = slot % block_size;
        const int64_t channels_per_line = std::max(n, kLine / (block_size * (int64_t)sizeof(E)));
        const E* key_at = key_block(block, head) + token * n;
        for (int64_t d = 0; d < padded_dim; d += channels_per_line) __builtin_prefetch(key_at + d * block_size, 1, 3);
        const E* value_at = value_block(block, head) + token / n * n * padded_dim;
        for (int64_t i = 0; i < n * padded_dim; i += kLine / sizeof(E)) __builtin_prefetch(value_at + i, 1, 3);
    }

  private:
    template <class X, class Put>
    static void write_row(const X* row, int64_t head_dim, float* scales, int64_t slot, Put put) {
        float divisor = 1.0f;
        if constexpr (kHasScales) {
            const float scale = scale_of(row, head_dim);
            scales[slot] = scale;
            if (scale > 0.0f) divisor = scale;
        }
        for (int64_t d = 0; d < head_dim; d += kWidth) {
            E numbers[kWidth];
            const Float x = load(row + d, head_dim - d);
            if constexpr (kHasScales)
                store(numbers, x / divisor);
            else
                store(numbers, x);
            put(d, numbers);
        }
    }

    // What makes the greatest number 127; NaN when one is none, so that it shows in the results.
    template <class X>
    static float scale_of(const X* row, int64_t head_dim) {
        Float most = splat(0.0f), spoilt = splat(0.0f);
        for (int64_t d = 0; d < head_dim; d += kWidth) {
            const Float x = load(row + d, head_dim - d), size = x < 0.0f ? -x : x;
            most = size > most ? size : most;
            spoilt += x - x;
        }
        return max_of(most) / 127.0f + sum_of(spoilt);
    }
};

}  // namespace rayinfer
