#include "attention/attention_products.h"

#include <algorithm>

#include "core/fetch_ahead.h"
#include "gemm/register_sums.h"
#include "gemm/row_tiles.h"

namespace rayinfer {
namespace {

template <class E, int Rows, int Vectors, int W>
__attribute__((noinline)) void score_block(const ScoreTask<E>& task) {
    constexpr int64_t n = kNeighbors<E>;
    using Float = typename Lanes<W>::Float;
    Sums<E, Rows, Vectors, W> sums = {};
    const E* keys[Vectors];
    for (int v = 0; v < Vectors; ++v) keys[v] = task.keys[v];
    const int64_t step = task.block_size * n, stride = task.query_stride;
    const Plain<E>* query = task.query;
    constexpr int64_t bytes = Vectors * W * n * (int64_t)sizeof(E), lines = std::max<int64_t>(1, bytes / kLine);
    const int64_t ahead_bytes = task.padded_dim * W * (int64_t)sizeof(E);
    const char *ahead = (const char*)task.ahead[0], *ahead_end = ahead + ahead_bytes;
    const bool fetches = ahead != nullptr;
    int next = 1;
    for (int64_t at = 0, d = 0; d < task.padded_dim; d += n, at += step) {
        sums.add([&](int v) RAYINFER_LAMBDA { return keys[v] + at; }, query + d, stride);
        if (!fetches) continue;
        if (ahead >= ahead_end && next < Vectors) {
            ahead = (const char*)task.ahead[next++];
            ahead_end = ahead + ahead_bytes;
        }
        fetch<lines * kLine>(ahead);
        ahead += lines * kLine;
    }
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
        Float factors = Float{} + task.factor;
        if constexpr (Cache<E>::kHasScales) factors *= load_raw<Float>(task.scales + v * W);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Float scores = sums.at[r][v] * factors;
            std::memcpy(task.scores + r * task.score_stride + v * W, &scores, sizeof(scores));
        }
    }
}

template <class E, int Rows, int Vectors>
__attribute__((noinline)) void add_value_block(const ValueTask<E>& task, int64_t channel) {
    constexpr int64_t n = kNeighbors<E>;
    using Float = typename Lanes<kSimd>::Float;
    Sums<E, Rows, Vectors, kSimd> sums;
    float* sums_at = task.sums + channel;
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v)
            sums.at[r][v] = load_raw<Float>(sums_at + r * task.sum_stride + v * kSimd) * task.decay[r];
    const int64_t step = task.padded_dim * n, stride = task.weight_stride;
    const int64_t whole_end = task.end / n * n;  // of the pairs that are multiplied whole
    const Plain<E>* weights = task.weights;
    const E* const* pieces = task.pieces;
    int64_t token = task.begin / n * n, piece_end = task.piece_size;
    const E *values = *pieces++ + channel * n + token / n * step, *ahead = nullptr;
    const E* const* ahead_pieces = task.ahead;
    auto columns = [&](int v) RAYINFER_LAMBDA { return values + v * kSimd * n; };
    auto enter_next_piece = [&]() RAYINFER_LAMBDA {
        values = *pieces++ + channel * n;
        piece_end += task.piece_size;
    };
    if (n > 1 && token < task.begin) {
        sums.add_second_half(columns, weights + token, stride);
        token += n;
        values += step;
    }
    while (token < whole_end) {
        if (token == piece_end) enter_next_piece();
        if (ahead_pieces) ahead = *ahead_pieces++ + channel * n;
        const int64_t end = std::min(whole_end, piece_end);
        for (; token < end; token += n, values += step) {
            sums.add(columns, weights + token, stride);
            if (!ahead_pieces) continue;
            fetch<Vectors * kSimd * n * sizeof(E)>(ahead);
            ahead += step;
        }
    }
    if (n > 1 && token < task.end) {
        if (token == piece_end) enter_next_piece();
        sums.add_first_half(columns, weights + token, stride);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v)
            std::memcpy(sums_at + r * task.sum_stride + v * kSimd, &sums.at[r][v], sizeof(Float));
}

template <class E, int W>
void score_tokens_of(int64_t num_rows, int64_t num_vectors, const ScoreTask<E>& task) {
    with_rows<kTileRows>(num_rows, [&](auto rows) {
        if (num_vectors == kTileVectors) return score_block<E, rows, kTileVectors, W>(task);
        if (num_vectors == 2) return score_block<E, rows, 2, W>(task);
        return score_block<E, rows, 1, W>(task);
    });
}

}  // namespace

template <class E>
void score_tokens(int64_t num_rows, int64_t num_vectors, int64_t width, const ScoreTask<E>& task) {
    if (width == kSimd) return score_tokens_of<E, kSimd>(num_rows, num_vectors, task);
    if constexpr (kSimd == 16) score_tokens_of<E, 8>(num_rows, num_vectors, task);
}

template <class E>
void add_values(int64_t num_rows, const ValueTask<E>& task) {
    constexpr int64_t wide = kTileVectors * kSimd;
    for (int64_t channel = 0; channel < task.padded_dim;) {
        const bool is_wide = task.padded_dim - channel >= wide;
        with_rows<kTileRows>(num_rows, [&](auto rows) {
            if (is_wide) return add_value_block<E, rows, kTileVectors>(task, channel);
            return add_value_block<E, rows, 1>(task, channel);
        });
        channel += is_wide ? wide : kSimd;
    }
}

#define RAYINFER_PRODUCTS(E)                                                              \
    template void score_tokens<E>(int64_t, int64_t, int64_t, const ScoreTask<E>&);        \
    template void add_values<E>(int64_t, const ValueTask<E>&);

RAYINFER_PRODUCTS(float)
RAYINFER_PRODUCTS(bfloat16)
RAYINFER_PRODUCTS(int8_t)

}  // namespace rayinfer
