// Where the paged cache keeps what; kv_cache.py says the same in Python.
#pragma once

#include "words.h"

namespace rayinfer {

// key   [num_blocks, num_kv_heads, words_per_token, block_size] words, a word holding neighbours along the head;
// value [num_blocks, num_kv_heads, block_size / kPerWord, padded_dim] words, a word holding neighbouring tokens.
// padded_dim is a multiple of 16, and what lies behind head_dim is zero.
template <class T>
struct Cache {
    T* key;
    T* value;
    int64_t num_kv_heads, block_size, padded_dim;

    int64_t words_per_token() const { return padded_dim / kPerWord<T>; }
    int64_t elements_per_head() const { return block_size * padded_dim; }

    T* key_block(int64_t block, int64_t head) const { return key + (block * num_kv_heads + head) * elements_per_head(); }
    T* value_block(int64_t block, int64_t head) const {
        return value + (block * num_kv_heads + head) * elements_per_head();
    }

    void write_key(int64_t slot, int64_t head, const T* from, int64_t head_dim) const {
        constexpr int n = kPerWord<T>;
        T* to = key_block(slot / block_size, head) + slot % block_size * n;
        for (int64_t d = 0; d < head_dim; ++d) to[d / n * block_size * n + d % n] = from[d];
    }

    void write_value(int64_t slot, int64_t head, const T* from, int64_t head_dim) const {
        constexpr int n = kPerWord<T>;
        int64_t token = slot % block_size;
        T* to = value_block(slot / block_size, head) + token / n * n * padded_dim + token % n;
        for (int64_t d = 0; d < head_dim; ++d) to[d * n] = from[d];
    }
};

}  // namespace rayinfer
