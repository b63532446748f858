// Paged attention for mixed batches, to be called by every thread of a team.
//
// Once per step:        AttentionTiles tiles; tiles.cut(step, num_threads);      // the same for all its layers
// Once per thread:      TileWorker<E> worker;                                    // its buffers grow, and are kept
// Per layer, by all:    worker.run(layer, query, tiles, team, put);              // waits for no other thread
//
// E is what the cache holds: float, bfloat16 or int8_t. Keys and values of the step's tokens have to be in the cache before
// `run`; and all tiles have to be done before results are read or the next layer begins. `put(token, head, row)` is called once
// for each, by some thread, with the result [head_dim] in float32, which is gone afterwards; behind head_dim the row has zeros
// up to a multiple of 16. `put.fetch(tokens, heads)` is called some time before.
//
// A row keeps a running softmax (Milakov and Gimelshein 2018) over chunks of its context that begin at fixed positions.
// No sum depends on which rows are in one tile: a row's result is the same bits alone, in any batch, however its prompt was
// cut, on any number of threads.
#pragma once

#include "attention/attention_products.h"
#include "attention/attention_tiles.h"

namespace rayinfer {

// Parameters of one layer of a step.
template <class E>
struct AttentionLayer {
    Cache<E> cache;
    float scale;
    float softcap;               // 0: none
    const float* position_bias;  // [num_heads, num_distances], by how far back a token lies; null: none
    int64_t num_distances;
    const float* sinks;  // [num_heads], scores of a token without a value; null: none
};

// Queries, keys or values, in float32 or in the model's type: [num_tokens, num_heads, head_dim].
template <class X>
struct Heads {
    const X* data;
    int64_t token_stride, head_stride;

    const X* at(int64_t token, int64_t head) const { return data + token * token_stride + head * head_stride; }
};

// Puts results into rows where the heads of a token lie one after the other.
template <class Put>
struct PutHeads {
    const Put& put_rows;
    int64_t head_dim;

    void operator()(int64_t token, int64_t head, const float* row) const {
        for (int64_t d = 0; d < head_dim; d += kWidth) put_rows(token, head * head_dim + d, load(row + d), head_dim - d);
    }
    void fetch(Range tokens, Range heads) const {
        put_rows.fetch(tokens, {heads.begin * head_dim, heads.end * head_dim});
    }
};

// Tokens of a request; empty where `begin` is not below `end`.
struct TokenRange {
    int64_t begin, end;

    bool is_empty() const { return begin >= end; }
};

// Some neighboring rows of a tile whose weights are in the worker's score buffer.
struct ValueRows {
    int64_t first, count;
    int64_t first_score;  // of the buffer's rows
    float* decay;         // what each row's sums are multiplied by first; 1 afterwards
    RowStates states;

    ValueRows part(int64_t begin, int64_t num_rows) const {
        return {begin, num_rows, first_score + begin - first, decay + begin - first, states};
    }
};

template <class E>
class TileWorker {
  public:
    // Computes tiles of the team's next stage until none is left.
    template <class X, class Put>
    void run(const AttentionLayer<E>& layer, Heads<X> query, AttentionTiles& tiles, StageTeam& team, const Put& put) {
        begin(layer, tiles);
        team.begin_stage(tiles.size());
        next_tile_ = tiles.next(team);
        while (const Tile* tile = next_tile_) {
            next_tile_ = tiles.next(team);  // early, so that its keys can be fetched meanwhile
            load_queries(*tile, query);
            fetch_results(*tile, put);
            const float* results = attend(*tile);
            if (results != nullptr) put_results(*tile, results, put);
            team.finish(1);
        }
    }

  private:
    // Calls `each(row, token, head)`.
    template <class Each>
    void for_each_row(const Tile& tile, const Each& each) const {
        int64_t row = 0;
        for (int64_t token = tile.first_token; token < tile.first_token + tile.num_tokens; ++token)
            for (int64_t head = tile.kv_head * step_.group; head < (tile.kv_head + 1) * step_.group; ++head)
                each(row++, token, head);
    }

    template <class X>
    void load_queries(const Tile& tile, Heads<X> query) {
        for_each_row(tile, [&](int64_t row, int64_t token, int64_t head) {
            const X* from = query.at(token, head);
            // Up to the padding's end: what an earlier step left there could be no number, and keys' zeros would keep it.
            for (int64_t d = 0; d < step_.padded_dim; d += kWidth)
                store(&query_[row * step_.padded_dim + d], load(from + d, step_.head_dim - d));
        });
    }

    template <class Put>
    void fetch_results(const Tile& tile, const Put& put) const {
        const int64_t first_head = tile.kv_head * step_.group;
        put.fetch({tile.first_token, tile.first_token + tile.num_tokens}, {first_head, first_head + step_.group});
    }

    template <class Put>
    void put_results(const Tile& tile, const float* results, const Put& put) {
        for_each_row(tile, [&](int64_t row, int64_t token, int64_t head) { put(token, head, results + row * states_stride()); });
    }

    int64_t states_stride() const { return step_.padded_dim + RowStates::kExtra; }
    int64_t score_stride() const { return (step_.chunk + kWidth - 1) / kWidth * kWidth; }

    void begin(const AttentionLayer<E>& layer, AttentionTiles& tiles);
    // The finished rows, states_stride() apart; null while other parts of a split tile are not through.
    const float* attend(const Tile& tile);
    void attend_to_part(int64_t begin, int64_t end, RowStates states);
    void add_chunk(int64_t start, int64_t first_piece, int64_t num_tokens, RowStates states);
    void find_pieces(int64_t start, int64_t first_piece, int64_t num_pieces);
    void find_next_keys(int64_t start);
    void fetch_next_keys(int64_t first) const;
    void score_rows(int64_t row, int64_t num_rows, int64_t first_piece, int64_t num_pieces, bool fetches_values);
    void change_scores(int64_t row, int64_t start, int64_t num_vectors, float* scores) const;
    void add_sinks(RowStates states) const;
    void mask_scores(int64_t row, int64_t start, int64_t num_vectors, float* scores) const;
    template <int Rows>
    void weigh_rows(int64_t row, int64_t start, int64_t num_vectors, float* scores, RowStates states, float* decay);
    // The part of a range of tokens that the rows of the token at a position see.
    TokenRange visible_at(int64_t position, TokenRange range) const;
    bool zero_weights_hide(TokenRange chunk) const;
    bool has_finite_values(int64_t begin, int64_t end) const;
    void add_visible_values(const ValueRows& rows, TokenRange chunk);
    void add_values_of(const ValueRows& rows, TokenRange tokens, int64_t start, const E* const* ahead);

    AttentionStep step_;
    AttentionLayer<E> layer_;
    AttentionTiles* tiles_;
    Tile tile_;
    const Tile* next_tile_;  // null: there is none
    int64_t num_rows_;
    std::vector<Plain<E>> query_;
    std::vector<float> scores_, whole_, part_, key_scales_, value_scales_;
    std::vector<const E*> key_pieces_, value_pieces_;
    std::vector<const E*> next_key_pieces_;  // of the chunk that comes next
};

extern template class TileWorker<float>;
extern template class TileWorker<bfloat16>;
extern template class TileWorker<int8_t>;

}  // namespace rayinfer
