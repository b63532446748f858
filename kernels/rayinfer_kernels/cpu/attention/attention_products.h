// A few rows times a piece of the cache, all sums in registers: scores of queries and keys, sums of weighted values.
//
// Rows lie in the form that multiplies fastest: bfloat16 where pairs of them are multiplied, float32 elsewhere. Every sum
// is taken in the order of the cache, whatever rows are computed together.
#pragma once

#include "attention/cache.h"
#include "gemm/encoded_rows.h"

namespace rayinfer {

// scores[row, token] = factor x scales[token] x query[row] . key[token], for vectors of neighboring tokens.
template <class E>
struct ScoreTask {
    const Plain<E>* query;
    int64_t query_stride, padded_dim;
    const E* keys[kTileVectors];   // where the tokens of each vector begin
    // What to fetch meanwhile, for each vector as much as it reads, one after the other; null: nothing.
    const E* ahead[kTileVectors];
    int64_t block_size;
    const float* scales;  // of the first vector's tokens; null where E has none
    float factor;
    float* scores;
    int64_t score_stride;
};

// `width` is how many tokens a vector has: kSimd, or 8 where blocks end in the middle of sixteen tokens.
template <class E>
void score_tokens(int64_t num_rows, int64_t num_vectors, int64_t width, const ScoreTask<E>& task);

// sums[row, channel] = decay[row] x sums[row, channel] + weights[row] . values[channel] for all channels of a head, over the
// tokens [begin, end) from the first piece's first token on. No other value is multiplied: a weight of zero would not keep
// NaN out of a sum.
template <class E>
struct ValueTask {
    const Plain<E>* weights;  // of the same tokens as the pieces
    int64_t weight_stride;
    const E* const* pieces;  // of `piece_size` tokens each
    const E* const* ahead;   // what to fetch meanwhile, a piece for each of those; null: nothing
    int64_t piece_size, begin, end, padded_dim;  // `begin` is in the first piece
    const float* decay;
    float* sums;
    int64_t sum_stride;
};

template <class E>
void add_values(int64_t num_rows, const ValueTask<E>& task);

}  // namespace rayinfer
