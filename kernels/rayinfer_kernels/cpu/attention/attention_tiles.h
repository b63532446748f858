// Tiles of one step's attention, handed out to threads one after the other.
//
// A tile is some consecutive query tokens of one request with all query heads of one key-value head, so that each block
// is read once for all of them. Its context is walked through in parts that end at multiples of a fixed number of tokens;
// every part has a softmax of its own, and the parts are folded into one another in their order. So where there are fewer
// tiles than threads can use, the parts of a tile become tiles; the result is the same to the bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/stage_team.h"

namespace rayinfer {

// Parameters that the layers of one step have in common.
struct AttentionStep {
    const int32_t* block_tables;  // [num_requests, block_table_stride]
    int64_t block_table_stride;
    const int32_t* cu_seqlens_q;  // [num_requests + 1]
    const int32_t* seq_lens;      // [num_requests], the step's tokens included
    int64_t num_requests = 0, num_heads = 1, num_kv_heads = 1, head_dim = 0, block_size = 1;
    int64_t window = 0;  // none

    static constexpr int64_t kTokensPerChunk = 256, kTokensPerPart = 256, kRowsPerTile = 48;

    // What follows from these. A decode step's tiles are short: dividing for each row and block took a twentieth of them.
    int64_t group = num_heads / num_kv_heads;
    int64_t padded_dim = (head_dim + 15) / 16 * 16;
    int64_t tokens_per_tile = std::max<int64_t>(1, kRowsPerTile / group);
    // Tokens whose scores are computed together: some pieces of blocks, and all pieces are alike.
    int64_t piece = block_size % kTokensPerChunk ? block_size : kTokensPerChunk;
    int64_t chunk = std::max<int64_t>(1, kTokensPerChunk / piece) * piece;
    int64_t part = (kTokensPerPart + chunk - 1) / chunk * chunk;

    int64_t first_visible(int64_t position) const { return window ? std::max<int64_t>(0, position - window + 1) : 0; }
};

struct Tile {
    int32_t request, kv_head;
    int32_t first_token, num_tokens;  // among the step's tokens
    int64_t first_position;           // in the request
    int64_t begin, end;               // of the context that it walks through
    int32_t split;                    // of which split tile it is a part; -1: it is whole
    int32_t part;
};

// The states of a tile's rows after a part of its context: sums, then the lanes of the total, then the greatest score.
struct RowStates {
    float* data;
    int64_t padded_dim;

    static constexpr int64_t kExtra = 32;  // a whole number of cache lines
    int64_t stride() const { return padded_dim + kExtra; }
    float* sums(int64_t row) const { return data + row * stride(); }
    float* total(int64_t row) const { return sums(row) + padded_dim; }
    float& most(int64_t row) const { return sums(row)[padded_dim + kExtra / 2]; }
};

class AttentionTiles {
  public:
    // Once per step, by one thread; `num_threads` is how many will compute tiles.
    void cut(const AttentionStep& step, int num_threads);

    const AttentionStep& step() const { return step_; }

    int64_t size() const { return (int64_t)tiles_.size(); }
    // A layer's next tile; null: none is left.
    const Tile* next(StageTeam& team) const {
        const Range taken = team.take(1);
        return taken.size() > 0 ? &tiles_[taken.begin] : nullptr;
    }

    // Memory for the states of a part of a split tile.
    RowStates part_states(const Tile& tile, int32_t part);
    // Whether the other parts of the split tile are complete: then the caller folds them.
    bool is_last_part(int32_t split);
    int32_t num_parts(int32_t split) const { return splits_[split].num_parts; }

  private:
    struct Split {
        int64_t first_state;
        int32_t num_parts, num_left;
    };

    void add_tiles(int32_t request);
    void split_tiles();
    void deal(int num_threads);

    AttentionStep step_ = {};
    std::vector<Tile> tiles_, parts_;
    std::vector<Split> splits_;
    std::vector<float> states_;
};

}  // namespace rayinfer
