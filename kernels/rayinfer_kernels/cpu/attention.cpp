// Paged attention for mixed batches.
//
// A work item is a tile: some consecutive query tokens of one request with all query heads of one key-value head, so that
// each block is read once for all of them. A tile walks through its context in chunks of blocks that begin at fixed
// positions and keeps a running softmax per row (Milakov and Gimelshein 2018). No sum depends on which rows share a tile:
// a row's result is the same bits alone, in any batch, however its prompt was cut, on any number of threads.

#include <algorithm>
#include <vector>

#include "cache.h"
#include "multiply_rows.h"

namespace rayinfer {
namespace {

constexpr int64_t kRowsPerTile = 48;
constexpr int64_t kTokensPerChunk = 64;

template <class T>
struct Batch {
    const T* query;
    int64_t query_token_stride, query_head_stride;
    T* out;
    Cache<T> cache;
    const int32_t* block_tables;
    int64_t block_table_stride;
    const int32_t* query_starts;
    const int32_t* context_lengths;
    int64_t num_requests, num_heads, head_dim;
    float scale;
    int64_t window;  // 0: none
    float softcap;   // 0: none
    const float* position_bias;  // [num_heads, num_distances]; null: none
    int64_t num_distances;

    int64_t group() const { return num_heads / cache.num_kv_heads; }
    int64_t first_visible(int64_t position) const { return window ? std::max<int64_t>(0, position - window + 1) : 0; }
};

struct Tile {
    int32_t request;
    int32_t kv_head;
    int32_t first_token, num_tokens;  // among the step's tokens
    int64_t first_position;           // in the request
    int64_t cost;
};

// sums[row, d] = decay[row] x sums[row, d] + weights[row] . values[d] for Vectors x 16 channels and `num_tokens` tokens.
template <class T, int Rows, int Vectors>
__attribute__((noinline)) void add_values(const uint32_t* weights, int64_t weight_stride, const uint32_t* const* blocks,
                                          int64_t block_size, int64_t num_tokens, int64_t padded_dim,
                                          const float* decay, float* sums_at) {
    using P = Product<T, kWidth>;
    Float sums[Rows][Vectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) sums[r][v] = load(sums_at + r * padded_dim + v * kWidth) * decay[r];
    auto add_word = [&](const uint32_t* values, int64_t at, bool is_half) __attribute__((always_inline)) {
        Word columns[Vectors];
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
            columns[v] = load_raw<Word>(values + v * kWidth);
            if (is_half) columns[v] = P::first_of_pair(columns[v]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            uint32_t shared = weights[r * weight_stride + at];
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v) sums[r][v] = P::add(sums[r][v], columns[v], shared);
        }
    };
    const int64_t words_per_block = block_size / kPerWord<T>;
    const int64_t num_words = num_tokens / kPerWord<T>;
    int64_t at = 0;
    for (int64_t block = 0; at < num_words; ++block) {
        const uint32_t* values = blocks[block];
        const int64_t end = std::min(num_words, at + words_per_block);
        for (; at < end; ++at, values += padded_dim) add_word(values, at, false);
    }
    // Behind the last token may lie what another request left, NaN perhaps: not even a weight of zero may touch it.
    if (num_tokens % kPerWord<T>)
        add_word(blocks[at / words_per_block] + at % words_per_block * padded_dim, at, true);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) store(sums_at + r * padded_dim + v * kWidth, sums[r][v]);
}

template <class T, int Vectors, class... Arguments>
void add_rows(int64_t rows, Arguments... arguments) {
    switch (rows) {
        case 1: return add_values<T, 1, Vectors>(arguments...);
        case 2: return add_values<T, 2, Vectors>(arguments...);
        case 3: return add_values<T, 3, Vectors>(arguments...);
        case 4: return add_values<T, 4, Vectors>(arguments...);
        case 5: return add_values<T, 5, Vectors>(arguments...);
        default: return add_values<T, 6, Vectors>(arguments...);
    }
}

// One thread's room for the tile at hand.
template <class T>
class TileWorker {
  public:
    explicit TileWorker(const Batch<T>& batch) : batch_(batch), cache_(batch.cache) {
        blocks_per_chunk_ = std::max<int64_t>(1, kTokensPerChunk / cache_.block_size);
        chunk_ = blocks_per_chunk_ * cache_.block_size;
        score_stride_ = (chunk_ + kWidth - 1) / kWidth * kWidth;
        const int64_t rows = std::max(kRowsPerTile, batch.group());
        query_.resize(rows * cache_.words_per_token());
        scores_.resize(rows * score_stride_);
        weights_.resize(rows * score_stride_);
        sums_.resize(rows * cache_.padded_dim);
        most_.resize(rows);
        total_.resize(rows);
        decay_.resize(rows);
        key_blocks_.resize(blocks_per_chunk_);
        value_blocks_.resize(blocks_per_chunk_);
    }

    void run(const Tile& tile) {
        tile_ = tile;
        num_rows_ = tile.num_tokens * batch_.group();
        take_queries();
        std::fill_n(sums_.begin(), num_rows_ * cache_.padded_dim, 0.0f);
        std::fill_n(most_.begin(), num_rows_, -kInfinity);
        std::fill_n(total_.begin(), num_rows_, 0.0f);
        const int64_t end = tile.first_position + tile.num_tokens;
        const int64_t first = batch_.first_visible(tile.first_position);
        for (int64_t start = first / chunk_ * chunk_; start < end; start += chunk_) {
            // Blocks that no row sees any more may belong to others by now.
            const int64_t skipped = std::max<int64_t>(0, first - start) / cache_.block_size;
            add_chunk(start + skipped * cache_.block_size, start, std::min(end - start, chunk_));
        }
        put_results();
    }

  private:
    int64_t token_of(int64_t row) const { return row / batch_.group(); }
    int64_t head_of(int64_t row) const { return tile_.kv_head * batch_.group() + row % batch_.group(); }

    void take_queries() {
        const int64_t words = cache_.words_per_token();
        std::fill_n(query_.begin(), num_rows_ * words, 0u);
        for (int64_t row = 0; row < num_rows_; ++row) {
            const T* from = batch_.query + (tile_.first_token + token_of(row)) * batch_.query_token_stride +
                            head_of(row) * batch_.query_head_stride;
            std::memcpy(&query_[row * words], from, batch_.head_dim * sizeof(T));
        }
    }

    // The tokens [start, start + num_tokens) of the request; those before `begin` are seen by no row.
    void add_chunk(int64_t begin, int64_t start, int64_t num_tokens) {
        const int64_t size = cache_.block_size;
        const int32_t* table = batch_.block_tables + tile_.request * batch_.block_table_stride;
        const int64_t first_block = (begin - start) / size, num_blocks = (num_tokens + size - 1) / size;
        for (int64_t i = first_block; i < num_blocks; ++i) {
            key_blocks_[i] = (const uint32_t*)cache_.key_block(table[start / size + i], tile_.kv_head);
            value_blocks_[i] = (const uint32_t*)cache_.value_block(table[start / size + i], tile_.kv_head);
        }
        if (size % kWidth == 0)
            score_chunk<kWidth>(first_block, num_blocks);
        else
            score_chunk<kWidth / 2>(first_block, num_blocks);
        const int64_t num_vectors = (num_tokens + kWidth - 1) / kWidth;
        for (int64_t row = 0; row < num_rows_; ++row) weigh_row(row, start, num_vectors);
        add_weighted_values(first_block, num_tokens);
    }

    template <int Width>
    void score_chunk(int64_t first_block, int64_t num_blocks) {
        const int64_t size = cache_.block_size, per_block = size / Width;
        const int64_t end = num_blocks * per_block;
        const uint32_t* keys[kVectorsAtOnce];
        for (int64_t at = first_block * per_block; at < end;) {
            const int64_t count = end - at >= kVectorsAtOnce ? kVectorsAtOnce : 1;
            for (int64_t v = 0; v < count; ++v)
                keys[v] = key_blocks_[(at + v) / per_block] + (at + v) % per_block * Width;
            for (int64_t row = 0; row < num_rows_; row += kRowsAtOnce) {
                const int64_t rows = std::min<int64_t>(kRowsAtOnce, num_rows_ - row), words = cache_.words_per_token();
                const uint32_t* query = &query_[row * words];
                float* scores = &scores_[row * score_stride_ + at * Width];
                if (count == kVectorsAtOnce)
                    multiply_rows<T, kVectorsAtOnce, Width>(rows, query, words, words, keys, size, scores, score_stride_);
                else
                    multiply_rows<T, 1, Width>(rows, query, words, words, keys, size, scores, score_stride_);
            }
            at += count;
        }
    }

    // Turn a row's scores into weights, relative to the greatest score so far.
    void weigh_row(int64_t row, int64_t start, int64_t num_vectors) {
        const int64_t position = tile_.first_position + token_of(row);
        const Int first = Int{} + (int32_t)(batch_.first_visible(position) - start);
        const Int last = Int{} + (int32_t)std::min(position - start, chunk_ - 1);  // whole vectors may end later
        const Int lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        float* scores = &scores_[row * score_stride_];
        Float greatest = splat(-kInfinity);
        for (int64_t v = 0; v < num_vectors; ++v) {
            Float score = load(scores + v * kWidth) * batch_.scale;
            if (batch_.softcap != 0.0f) score = batch_.softcap * tanh(score / batch_.softcap);
            if (batch_.position_bias != nullptr) score += biases(head_of(row), position - start - v * kWidth);
            const Int token = lanes + (int32_t)(v * kWidth);
            score = (token >= first) & (token <= last) ? score : splat(-kInfinity);
            store(scores + v * kWidth, score);
            greatest = score > greatest ? score : greatest;
        }
        const float before = most_[row], most = std::max(before, max_of(greatest));
        most_[row] = most;
        decay_[row] = most == before ? 1.0f : exp(splat(before - most))[0];
        const float origin = most == -kInfinity ? 0.0f : most;  // nothing to see yet: all weights are zero
        Float total = splat(0.0f);
        T* weights = (T*)&weights_[row * score_stride_];
        for (int64_t v = 0; v < num_vectors; ++v) {
            Float weight = exp(load(scores + v * kWidth) - origin);
            store(weights + v * kWidth, weight);
            total += weight;
        }
        total_[row] = total_[row] * decay_[row] + sum_of(total);
    }

    // Of sixteen tokens, the first of which lies `distance` before the query.
    Float biases(int64_t head, int64_t distance) const {
        const float* bias = batch_.position_bias + head * batch_.num_distances;
        float lanes[kWidth];
        for (int64_t i = 0; i < kWidth; ++i)
            lanes[i] = bias[std::clamp<int64_t>(distance - i, 0, batch_.num_distances - 1)];
        return load(lanes);
    }

    void add_weighted_values(int64_t first_block, int64_t num_tokens) {
        const int64_t size = cache_.block_size, dim = cache_.padded_dim;
        const int64_t skipped_words = first_block * size / kPerWord<T>;
        const int64_t count = num_tokens - first_block * size;
        const uint32_t* blocks[kTokensPerChunk / 8];
        for (int64_t d = 0; d < dim;) {
            const bool is_wide = dim - d >= kVectorsAtOnce * kWidth;
            for (int64_t i = 0; i < blocks_per_chunk_ - first_block; ++i) blocks[i] = value_blocks_[first_block + i] + d;
            for (int64_t row = 0; row < num_rows_; row += kRowsAtOnce) {
                const int64_t rows = std::min<int64_t>(kRowsAtOnce, num_rows_ - row);
                const uint32_t* weights = &weights_[row * score_stride_] + skipped_words;
                float* sums = &sums_[row * dim + d];
                const float* decay = &decay_[row];
                if (is_wide)
                    add_rows<T, kVectorsAtOnce>(rows, weights, score_stride_, blocks, size, count, dim, decay, sums);
                else
                    add_rows<T, 1>(rows, weights, score_stride_, blocks, size, count, dim, decay, sums);
            }
            d += is_wide ? kVectorsAtOnce * kWidth : kWidth;
        }
    }

    void put_results() {
        for (int64_t row = 0; row < num_rows_; ++row) {
            T* to = batch_.out + ((tile_.first_token + token_of(row)) * batch_.num_heads + head_of(row)) * batch_.head_dim;
            const float* sums = &sums_[row * cache_.padded_dim];
            for (int64_t d = 0; d < batch_.head_dim; d += kWidth)
                store(to + d, load(sums + d) / total_[row], batch_.head_dim - d);
        }
    }

    const Batch<T>& batch_;
    const Cache<T>& cache_;
    Tile tile_;
    int64_t num_rows_, blocks_per_chunk_, chunk_, score_stride_;
    std::vector<uint32_t> query_, weights_;
    std::vector<float> scores_, sums_, most_, total_, decay_;
    std::vector<const uint32_t*> key_blocks_, value_blocks_;
};

template <class T>
std::vector<Tile> cut_into_tiles(const Batch<T>& batch) {
    const int32_t tokens_per_tile = (int32_t)std::max<int64_t>(1, kRowsPerTile / batch.group());
    std::vector<Tile> tiles;
    for (int32_t request = 0; request < batch.num_requests; ++request) {
        const int32_t end = batch.query_starts[request + 1];
        const int64_t offset = (int64_t)batch.context_lengths[request] - end;
        for (int32_t token = batch.query_starts[request]; token < end; token += tokens_per_tile) {
            const int32_t num_tokens = std::min(tokens_per_tile, end - token);
            const int64_t position = token + offset;
            const int64_t seen = position + num_tokens - batch.first_visible(position);
            for (int32_t head = 0; head < batch.cache.num_kv_heads; ++head)
                tiles.push_back({request, head, token, num_tokens, position, seen * (num_tokens + 1)});
        }
    }
    // The long ones first, so that the threads end together.
    std::stable_sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) { return a.cost > b.cost; });
    return tiles;
}

template <class T>
void attend(const Batch<T>& batch, int num_threads) {
    const std::vector<Tile> tiles = cut_into_tiles(batch);
    const int64_t count = (int64_t)tiles.size();
#pragma omp parallel num_threads(num_threads)
    {
        TileWorker<T> worker(batch);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < count; ++i) worker.run(tiles[i]);
    }
}

}  // namespace
}  // namespace rayinfer

#define RAYINFER_PAGED_ATTENTION(name, T)                                                                              \
    extern "C" __attribute__((visibility("default"))) void name(const void* query, int64_t query_token_stride, int64_t query_head_stride, void* out,          \
                         void* key, void* value, int64_t num_kv_heads, int64_t block_size, int64_t padded_dim,         \
                         const int32_t* block_tables, int64_t block_table_stride, const int32_t* query_starts,         \
                         const int32_t* context_lengths, int64_t num_requests, int64_t num_heads, int64_t head_dim,    \
                         float scale, int64_t window, float softcap, const float* position_bias,                       \
                         int64_t num_distances, int num_threads) {                                                     \
        using namespace rayinfer;                                                                                      \
        const Cache<T> cache{(T*)key, (T*)value, num_kv_heads, block_size, padded_dim};                                \
        attend(Batch<T>{(const T*)query, query_token_stride, query_head_stride, (T*)out, cache, block_tables,          \
                        block_table_stride, query_starts, context_lengths, num_requests, num_heads, head_dim, scale,   \
                        window, softcap, position_bias, num_distances},                                                \
               num_threads);                                                                                           \
    }

RAYINFER_PAGED_ATTENTION(rayinfer_paged_attention_float32, float)
RAYINFER_PAGED_ATTENTION(rayinfer_paged_attention_bfloat16, rayinfer::bfloat16)
