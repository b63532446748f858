#include "attention/attention.h"

#include "core/fetch_ahead.h"

namespace rayinfer {
namespace {

constexpr int kRowsWeighedAtOnce = 3;  // so that a row's largest score is not waited for

// By what a sum is multiplied whose weights are relative to another greatest score.
inline float decay_of(float from, float to) { return from == to ? 1.0f : exp2_of_negative(splat(from - to))[0]; }

// Adds the states after the next part of the context, in place.
void fold(RowStates to, RowStates part, int64_t num_rows) {
    for (int64_t row = 0; row < num_rows; ++row) {
        const float most = std::max(to.most(row), part.most(row));
        const float decay = decay_of(to.most(row), most), factor = decay_of(part.most(row), most);
        to.most(row) = most;
        *to.total(row) = *to.total(row) * decay + *part.total(row) * factor;
        for (int64_t d = 0; d < to.padded_dim; d += kWidth)
            store(to.sums(row) + d, load(to.sums(row) + d) * decay + load(part.sums(row) + d) * factor);
    }
}

}  // namespace

template <class E>
void TileWorker<E>::begin(const AttentionLayer<E>& layer, AttentionTiles& tiles) {
    layer_ = layer;
    tiles_ = &tiles;
    step_ = tiles.step();
    const int64_t rows = step_.tokens_per_tile * step_.group, chunk = step_.chunk;
    auto grow = [](auto& of, int64_t count) { if ((int64_t)of.size() < count) of.resize(count); };
    grow(query_, rows * step_.padded_dim);
    grow(scores_, kTileRows * score_stride());
    grow(whole_, rows * states_stride());
    grow(part_, rows * states_stride());
    grow(key_pieces_, chunk / step_.piece);
    grow(value_pieces_, chunk / step_.piece);
    if (Cache<E>::kHasScales) {
        grow(key_scales_, score_stride());
        grow(value_scales_, score_stride());
    }
}

template <class E>
const float* TileWorker<E>::attend(const Tile& tile) {
    tile_ = tile;
    num_rows_ = tile.num_tokens * step_.group;
    RowStates states{whole_.data(), step_.padded_dim};
    if (tile.split >= 0) {
        attend_to_part(tile.begin, tile.end, tiles_->part_states(tile, tile.part));
        if (!tiles_->is_last_part(tile.split)) return nullptr;
        states = tiles_->part_states(tile, 0);
        for (int32_t part = 1; part < tiles_->num_parts(tile.split); ++part)
            fold(states, tiles_->part_states(tile, part), num_rows_);
    } else {
        const RowStates part{part_.data(), step_.padded_dim};
        const int64_t length = step_.part, first_end = (tile.begin / length + 1) * length;
        attend_to_part(tile.begin, std::min(first_end, tile.end), states);
        for (int64_t begin = first_end; begin < tile.end; begin += length) {
            attend_to_part(begin, std::min(begin + length, tile.end), part);
            fold(states, part, num_rows_);
        }
    }
    if (layer_.sinks != nullptr) add_sinks(states);
    for (int64_t row = 0; row < num_rows_; ++row) {
        const float factor = 1.0f / *states.total(row);
        for (int64_t d = 0; d < step_.padded_dim; d += kWidth)
            store(states.sums(row) + d, load(states.sums(row) + d) * factor);
    }
    return states.data;
}

// Adds what each head's sink takes of the weights to the totals of complete rows.
template <class E>
void TileWorker<E>::add_sinks(RowStates states) const {
    const int64_t group = step_.group;
    for (int64_t row = 0; row < num_rows_; ++row) {
        const float sink = layer_.sinks[tile_.kv_head * group + row % group] * kLog2e;
        const float before = states.most(row), most = std::max(before, sink);
        const float decay = decay_of(before, most);
        *states.total(row) = *states.total(row) * decay + decay_of(sink, most);
        for (int64_t d = 0; d < step_.padded_dim; d += kWidth)
            store(states.sums(row) + d, load(states.sums(row) + d) * decay);
    }
}

template <class E>
void TileWorker<E>::attend_to_part(int64_t begin, int64_t end, RowStates states) {
    for (int64_t row = 0; row < num_rows_; ++row) {
        std::fill_n(states.sums(row), states.stride(), 0.0f);
        states.most(row) = -kInfinity;
    }
    const int64_t chunk = step_.chunk;
    for (int64_t start = begin / chunk * chunk; start < end; start += chunk) {
        // Blocks that no row sees any more may belong to others by now.
        const int64_t first_piece = std::max<int64_t>(0, begin - start) / step_.piece;
        add_chunk(start, first_piece, std::min(end - start, chunk), states);
    }
    for (int64_t row = 0; row < num_rows_; ++row) *states.total(row) = sum_of(load(states.total(row)));
}

// The tokens [start, start + num_tokens) of the request; those before the first piece are seen by no row.
template <class E>
void TileWorker<E>::add_chunk(int64_t start, int64_t first_piece, int64_t num_tokens, RowStates states) {
    const int64_t piece = step_.piece, num_pieces = (num_tokens + piece - 1) / piece;
    const int64_t num_groups = (num_rows_ + kTileRows - 1) / kTileRows;
    find_pieces(start, first_piece, num_pieces);
    find_next_keys(start);
    // Blocks lie scattered, and each is too short for the processor to guess what comes next. While the first rows' scores
    // are computed, their values are fetched; while those are added, the next keys.
    const int64_t num_vectors = (num_tokens + kWidth - 1) / kWidth;
    const int64_t num_here = num_pieces - first_piece;
    const bool fetches_keys = (int64_t)next_key_pieces_.size() >= num_here;
    const TokenRange chunk{start, start + num_tokens}, seen = {visible_at(tile_.first_position, chunk).begin, chunk.end};
    const bool is_plain = zero_weights_hide(chunk);
    for (int64_t group = 0; group < num_groups; ++group) {
        const int64_t first = num_rows_ * group / num_groups, count = num_rows_ * (group + 1) / num_groups - first;
        float decay[kTileRows];
        score_rows(first, count, first_piece, num_pieces, group == 0);
        if (group == 0) fetch_next_keys(fetches_keys ? num_here : 0);
        for (int64_t r = 0, at_once; r < count; r += at_once) {
            float* scores = &scores_[r * score_stride()];
            at_once = r + kRowsWeighedAtOnce <= count ? kRowsWeighedAtOnce : 1;
            if (at_once > 1)
                weigh_rows<kRowsWeighedAtOnce>(first + r, start, num_vectors, scores, states, decay + r);
            else
                weigh_rows<1>(first + r, start, num_vectors, scores, states, decay + r);
        }
        const ValueRows rows{first, count, 0, decay, states};
        if (is_plain)
            add_values_of(rows, seen, start, group == 0 && fetches_keys ? next_key_pieces_.data() : nullptr);
        else
            add_visible_values(rows, chunk);
    }
}

template <class E>
TokenRange TileWorker<E>::visible_at(int64_t position, TokenRange range) const {
    return {std::max(range.begin, step_.first_visible(position)), std::min(range.end, position + 1)};
}

// Whether a weight of zero hides every value of a chunk that some of the tile's rows see and others do not: it does not
// hide NaN and infinities. Those of eight bits are integers, and a weight of zero is not multiplied by its scale.
template <class E>
bool TileWorker<E>::zero_weights_hide(TokenRange chunk) const {
    if constexpr (Cache<E>::kHasScales) return true;
    const TokenRange first = visible_at(tile_.first_position, chunk);
    const TokenRange last = visible_at(tile_.first_position + tile_.num_tokens - 1, chunk);
    return has_finite_values(first.begin - chunk.begin, std::min(last.begin, chunk.end) - chunk.begin) &&
           has_finite_values(std::max(first.end - chunk.begin, int64_t{0}), last.end - chunk.begin);
}

// Of the tokens [begin, end) of a chunk, and of those that are paired with them.
template <class E>
bool TileWorker<E>::has_finite_values(int64_t begin, int64_t end) const {
    if (begin >= end) return true;
    constexpr int64_t n = kNeighbors<E>;
    const int64_t piece = step_.piece;
    Float spoilt = splat(0.0f);
    for (int64_t token = begin / n * n, next; token < end; token = next) {
        next = std::min((end + n - 1) / n * n, (token / piece + 1) * piece);
        const E* values = value_pieces_[token / piece] + token % piece * step_.padded_dim;
        for (int64_t i = 0; i < (next - token) * step_.padded_dim; i += kWidth)
            if constexpr (!Cache<E>::kHasScales) spoilt += load(values + i) * 0.0f;
    }
    return sum_of(spoilt) == 0.0f;
}

// Adds the weighted values of a chunk to a few rows, each of which reads only those that it sees: what all see is read once
// for all, in whole pairs, the few values before and behind it for one token's rows at a time.
template <class E>
void TileWorker<E>::add_visible_values(const ValueRows& rows, TokenRange chunk) {
    constexpr int64_t n = kNeighbors<E>;
    const int64_t group = step_.group, end = rows.first + rows.count, position = tile_.first_position;
    const TokenRange first = visible_at(position + rows.first / group, chunk);
    const TokenRange last = visible_at(position + (end - 1) / group, chunk);
    TokenRange common = {(last.begin + n - 1) / n * n, first.end / n * n};
    if (common.is_empty()) common = {chunk.end, chunk.end};
    auto for_each_token = [&](auto add) {
        for (int64_t row = rows.first, next; row < end; row = next) {
            next = std::min(end, (row / group + 1) * group);
            add(rows.part(row, next - row), visible_at(position + row / group, chunk));
        }
    };
    for_each_token([&](const ValueRows& part, TokenRange sees) {
        add_values_of(part, {sees.begin, std::min(sees.end, common.begin)}, chunk.begin, nullptr);
    });
    add_values_of(rows, common, chunk.begin, nullptr);
    for_each_token([&](const ValueRows& part, TokenRange sees) {
        add_values_of(part, {std::max(sees.begin, common.end), sees.end}, chunk.begin, nullptr);
    });
}

template <class E>
void TileWorker<E>::add_values_of(const ValueRows& rows, TokenRange tokens, int64_t start, const E* const* ahead) {
    if (tokens.is_empty()) return;
    constexpr int64_t weights_per_score = sizeof(float) / sizeof(Plain<E>);
    const int64_t skipped = tokens.begin - start, piece = skipped ? skipped / step_.piece : 0;
    const int64_t first = piece * step_.piece;
    const Plain<E>* weights = (const Plain<E>*)&scores_[rows.first_score * score_stride()] + first;
    add_values<E>(rows.count, {weights, score_stride() * weights_per_score, &value_pieces_[piece], ahead, step_.piece,
                               skipped - first, tokens.end - start - first, step_.padded_dim, rows.decay,
                               rows.states.sums(rows.first), rows.states.stride()});
    std::fill_n(rows.decay, rows.count, 1.0f);
}

template <class E>
void TileWorker<E>::find_pieces(int64_t start, int64_t first_piece, int64_t num_pieces) {
    const Cache<E>& cache = layer_.cache;
    const int64_t piece = step_.piece, first = start + first_piece * piece;
    const int32_t* block = step_.block_tables + tile_.request * step_.block_table_stride + first / cache.block_size;
    for (int64_t i = first_piece, offset = first % cache.block_size; i < num_pieces; ++i) {
        key_pieces_[i] = cache.key_block(*block, tile_.kv_head) + offset * kNeighbors<E>;
        value_pieces_[i] = cache.value_block(*block, tile_.kv_head) + offset * cache.padded_dim;
        if constexpr (Cache<E>::kHasScales) {
            const int64_t slot = cache.first_slot(*block, tile_.kv_head) + offset;
            std::copy_n(cache.key_scales + slot, piece, &key_scales_[i * piece]);
            std::copy_n(cache.value_scales + slot, piece, &value_scales_[i * piece]);
        }
        if ((offset += piece) == cache.block_size) offset = 0, ++block;
    }
}

// The keys of the chunk that is computed after the one that begins at `start`, be it another tile's.
template <class E>
void TileWorker<E>::find_next_keys(int64_t start) {
    next_key_pieces_.clear();
    if (step_.piece < step_.block_size) return;  // keys of a part of a block do not lie in one piece
    int64_t begin = start + step_.chunk;
    const Tile* tile = &tile_;
    if (begin >= tile_.end) {
        if (next_tile_ == nullptr) return;
        tile = next_tile_;
        begin = tile->begin / step_.chunk * step_.chunk;
    }
    const Cache<E>& cache = layer_.cache;
    const int32_t* blocks = step_.block_tables + tile->request * step_.block_table_stride + begin / step_.block_size;
    const int64_t num_tokens = std::min(tile->end - begin, step_.chunk);
    const int64_t num_blocks = (num_tokens + step_.block_size - 1) / step_.block_size;
    for (int64_t i = 0; i < num_blocks; ++i) {
        const int64_t block = blocks[i];
        next_key_pieces_.push_back(cache.key_block(block, tile->kv_head));
        if constexpr (Cache<E>::kHasScales) {
            __builtin_prefetch(cache.key_scales + cache.first_slot(block, tile->kv_head));
            __builtin_prefetch(cache.value_scales + cache.first_slot(block, tile->kv_head));
        }
    }
}

// From one of them on.
template <class E>
void TileWorker<E>::fetch_next_keys(int64_t first) const {
    const int64_t bytes = step_.piece * step_.padded_dim * (int64_t)sizeof(E);
    for (int64_t i = first; i < (int64_t)next_key_pieces_.size(); ++i)
        for (int64_t at = 0; at < bytes; at += kLine) fetch<kLine>((const char*)next_key_pieces_[i] + at);
}

template <class E>
void TileWorker<E>::score_rows(int64_t row, int64_t num_rows, int64_t first_piece, int64_t num_pieces, bool fetches_values) {
    const int64_t piece = step_.piece, width = piece % kSimd ? 8 : kSimd, per_piece = piece / width;
    const bool is_changed = layer_.softcap != 0.0f || layer_.position_bias != nullptr;
    ScoreTask<E> task;
    task.query = &query_[row * step_.padded_dim];
    task.query_stride = task.padded_dim = step_.padded_dim;
    task.block_size = step_.block_size;
    task.factor = is_changed ? layer_.scale : layer_.scale * kLog2e;
    task.score_stride = score_stride();
    int64_t index = first_piece, offset = 0;
    for (int64_t at = first_piece * per_piece, end = num_pieces * per_piece; at < end;) {
        const int64_t count = end - at >= kTileVectors ? kTileVectors : end - at >= 2 ? 2 : 1;
        for (int64_t v = 0; v < count; ++v) {
            task.keys[v] = key_pieces_[index] + offset * kNeighbors<E>;
            task.ahead[v] = fetches_values ? value_pieces_[index] + offset * step_.padded_dim : nullptr;
            if ((offset += width) == piece) offset = 0, ++index;
        }
        task.scales = Cache<E>::kHasScales ? &key_scales_[at * width] : nullptr;
        task.scores = &scores_[at * width];
        score_tokens(num_rows, count, width, task);
        at += count;
    }
}

// The model's own changes; from here on scores are exponents of two.
template <class E>
void TileWorker<E>::change_scores(int64_t row, int64_t start, int64_t num_vectors, float* scores) const {
    const int64_t head = tile_.kv_head * step_.group + row % step_.group;
    const int64_t distance = tile_.first_position + row / step_.group - start;
    for (int64_t v = 0; v < num_vectors; ++v) {
        Float score = load(scores + v * kWidth);
        if (layer_.softcap != 0.0f) score = layer_.softcap * tanh(score / layer_.softcap);
        if (layer_.position_bias != nullptr) {
            float biases[kWidth];
            for (int64_t i = 0; i < kWidth; ++i)
                biases[i] = layer_.position_bias[head * layer_.num_distances +
                                                 std::clamp<int64_t>(distance - v * kWidth - i, 0, layer_.num_distances - 1)];
            score += load(biases);
        }
        store(scores + v * kWidth, score * kLog2e);
    }
}

// Masks the scores of tokens that a row does not see: they become -infinity. Whole vectors may end behind the chunk.
template <class E>
void TileWorker<E>::mask_scores(int64_t row, int64_t start, int64_t num_vectors, float* scores) const {
    const TokenRange seen = visible_at(tile_.first_position + row / step_.group, {start, start + step_.chunk});
    const int64_t first = seen.begin - start, end = seen.end - start;
    const Int lanes = lane_numbers();
    auto hide = [&](int64_t v) {
        const Int token = lanes + (int32_t)(v * kWidth);
        const Float score = load(scores + v * kWidth);
        store(scores + v * kWidth, (token >= (int32_t)first) & (token < (int32_t)end) ? score : splat(-kInfinity));
    };
    for (int64_t v = 0; v < std::min((first + kWidth - 1) / kWidth, num_vectors); ++v) hide(v);
    for (int64_t v = std::max<int64_t>(0, end) / kWidth; v < num_vectors; ++v) hide(v);
}

// Converts scores of neighboring rows into weights, relative to each row's greatest score so far; `decay` becomes that of what
// came before.
template <class E>
template <int Rows>
void TileWorker<E>::weigh_rows(int64_t row, int64_t start, int64_t num_vectors, float* scores, RowStates states, float* decay) {
    const int64_t stride = score_stride();
    for (int r = 0; r < Rows; ++r) {
        if (layer_.softcap != 0.0f || layer_.position_bias != nullptr)
            change_scores(row + r, start, num_vectors, scores + r * stride);
        mask_scores(row + r, start, num_vectors, scores + r * stride);
    }
    Float greatest[Rows], total[Rows];
    for (int r = 0; r < Rows; ++r) greatest[r] = load(scores + r * stride);
    for (int64_t v = 1; v < num_vectors; ++v)
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) greatest[r] = larger(load(scores + r * stride + v * kWidth), greatest[r]);
    float origin[Rows];
    for (int r = 0; r < Rows; ++r) {
        const float before = states.most(row + r), most = std::max(before, max_of(greatest[r]));
        decay[r] = decay_of(before, most);
        origin[r] = most == -kInfinity ? 0.0f : most;  // nothing to see yet: zeros
        total[r] = load(states.total(row + r)) * decay[r];
        states.most(row + r) = most;
    }
    for (int64_t v = 0; v < num_vectors; ++v)
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
            float* row_scores = scores + r * stride;
            Float weight = exp2_of_negative(load(row_scores + v * kWidth) - origin[r]);
            total[r] += weight;
            if constexpr (Cache<E>::kHasScales)
                weight = weight == 0.0f ? weight : weight * load(&value_scales_[v * kWidth]);
            store((Plain<E>*)row_scores + v * kWidth, weight);  // in the same place: none is longer than its score
        }
    for (int r = 0; r < Rows; ++r) store(states.total(row + r), total[r]);
}

template class TileWorker<float>;
template class TileWorker<bfloat16>;
template class TileWorker<int8_t>;

}  // namespace rayinfer
