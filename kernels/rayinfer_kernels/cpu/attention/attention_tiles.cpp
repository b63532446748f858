#include "attention/attention_tiles.h"

namespace rayinfer {
namespace {

constexpr int64_t kTilesPerThread = 4;  // with fewer, threads would wait for the last one

}  // namespace

void AttentionTiles::cut(const AttentionStep& step, int num_threads) {
    step_ = step;
    tiles_.clear();
    splits_.clear();
    for (int32_t request = 0; request < step.num_requests; ++request) add_tiles(request);
    if (num_threads > 1 && (int64_t)tiles_.size() < kTilesPerThread * num_threads) split_tiles();
    // The long ones first, so that the threads end together.
    std::stable_sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) {
        return (a.end - a.begin) * (a.num_tokens + 1) > (b.end - b.begin) * (b.num_tokens + 1);
    });
    if (num_threads > 1) deal(num_threads);
}

void AttentionTiles::add_tiles(int32_t request) {
    const int32_t end = step_.cu_seqlens_q[request + 1], tokens_per_tile = (int32_t)step_.tokens_per_tile;
    const int64_t offset = (int64_t)step_.seq_lens[request] - end;
    for (int32_t token = step_.cu_seqlens_q[request]; token < end; token += tokens_per_tile) {
        const int32_t num_tokens = std::min(tokens_per_tile, end - token);
        const int64_t position = token + offset;
        for (int32_t head = 0; head < step_.num_kv_heads; ++head)
            tiles_.push_back({request, head, token, num_tokens, position, step_.first_visible(position),
                              position + num_tokens, -1, 0});
    }
}

void AttentionTiles::split_tiles() {
    const int64_t length = step_.part;
    int64_t num_states = 0;
    parts_.clear();
    for (Tile tile : tiles_) {
        const int32_t num_parts = (int32_t)((tile.end + length - 1) / length - tile.begin / length);
        if (num_parts > 1) {
            tile.split = (int32_t)splits_.size();
            splits_.push_back({num_states, num_parts, num_parts});
            num_states += num_parts * tile.num_tokens * step_.group;
        }
        const int64_t end = tile.end;
        for (tile.part = 0; tile.part < num_parts; ++tile.part) {
            tile.end = std::min(end, (tile.begin / length + 1) * length);
            parts_.push_back(tile);
            tile.begin = tile.end;
        }
    }
    tiles_.swap(parts_);
    const int64_t num_floats = num_states * (step_.padded_dim + RowStates::kExtra);
    if ((int64_t)states_.size() < num_floats) states_.resize(num_floats);
}

// Puts every thread's share, the long ones first, where its range of the units is. Where there are enough tiles, one thread has
// all heads of its tokens: the processor follows one head's keys and values into the next one's, which lie behind them.
void AttentionTiles::deal(int num_threads) {
    parts_.resize(tiles_.size());
    auto tile = tiles_.begin();
    const bool are_many = size() >= kTilesPerThread * num_threads * step_.num_kv_heads;
    const int64_t at_once = are_many ? step_.num_kv_heads : 1;
    for (int64_t place = 0; tile != tiles_.end(); place += at_once)
        for (int thread = 0; thread < num_threads; ++thread) {
            const Range range = ThreadRange{thread, num_threads}.of(size());
            for (int64_t i = place; i < std::min(place + at_once, range.size()); ++i) parts_[range.begin + i] = *tile++;
        }
    tiles_.swap(parts_);
}

bool AttentionTiles::is_last_part(int32_t split) {
    Split& all = splits_[split];
    if (__atomic_sub_fetch(&all.num_left, 1, __ATOMIC_ACQ_REL)) return false;
    all.num_left = all.num_parts;  // for the next layer
    return true;
}

RowStates AttentionTiles::part_states(const Tile& tile, int32_t part) {
    const int64_t rows = tile.num_tokens * step_.group, dim = step_.padded_dim;
    return {states_.data() + (splits_[tile.split].first_state + part * rows) * (dim + RowStates::kExtra), dim};
}

}  // namespace rayinfer
