#include "encoder/text_attention.h"

#include <algorithm>

namespace rayinfer {
namespace {

constexpr int64_t kScoresAtOnce = 16384;  // of some rows: they and their weights stay in the second level cache
constexpr int64_t kPairWidth = kPanelsAtOnce * kPanelWidth;

Weight in_panels(const float* panels, int64_t in_features, int64_t out_features) {
    Weight weight{};
    weight.panels = (const uint8_t*)panels;
    weight.in_features = in_features, weight.out_features = out_features;
    weight.format = Format::float32;
    return weight;
}

// Calls `each(panel, num_panels, sums)` for two panels at a time; `sums` follow one another.
template <class Each>
void for_each_pair(const Weight& weight, int64_t num_rows, float* sums, Each each) {
    for (int64_t panel = 0; panel < weight.num_panels(); panel += kPanelsAtOnce) {
        const int64_t count = std::min(kPanelsAtOnce, weight.num_panels() - panel);
        each(panel, count, sums + num_rows * panel * kPanelWidth);
    }
}

void multiply(const Weight& weight, RowTile rows, float* sums) {
    for_each_pair(weight, rows.num_rows, sums, [&](int64_t panel, int64_t count, float* to) {
        float_products<float>(weight, rows, panel, count, to);
    });
}

constexpr int64_t kKeysAtOnce = 4;

// Puts channels of four keys where the panel has those keys' numbers of each channel; `dim` is a multiple of four.
void pack_four_keys(const float* from, int64_t stride, int64_t dim, float* to) {
    typedef float Four __attribute__((vector_size(16)));
    typedef int32_t Places __attribute__((vector_size(16)));
    constexpr Places kLowHalves = {0, 4, 1, 5}, kHighHalves = {2, 6, 3, 7};
    constexpr Places kFirstPairs = {0, 1, 4, 5}, kLastPairs = {2, 3, 6, 7};
    for (int64_t c = 0; c < dim; c += 4) {
        Four key[kKeysAtOnce];
        for (int k = 0; k < kKeysAtOnce; ++k) key[k] = load_raw<Four>(from + k * stride + c);
        const Four low01 = __builtin_shuffle(key[0], key[1], kLowHalves), low23 = __builtin_shuffle(key[2], key[3], kLowHalves);
        const Four high01 = __builtin_shuffle(key[0], key[1], kHighHalves);
        const Four high23 = __builtin_shuffle(key[2], key[3], kHighHalves);
        const Four channels[4] = {__builtin_shuffle(low01, low23, kFirstPairs), __builtin_shuffle(low01, low23, kLastPairs),
                                  __builtin_shuffle(high01, high23, kFirstPairs),
                                  __builtin_shuffle(high01, high23, kLastPairs)};
        for (int64_t i = 0; i < 4; ++i) std::memcpy(to + (c + i) * kPanelWidth, &channels[i], sizeof(Four));
    }
}

// From [length, dim] to panels of 32 keys each, whose channels lie together; there are zeros behind the last key.
void pack_keys(const float* from, int64_t stride, int64_t length, int64_t dim, float* to) {
    for (int64_t first = 0; first < length; first += kPanelWidth, to += dim * kPanelWidth)
        for (int64_t k = 0; k < kPanelWidth;) {
            const float* key = from + (first + k) * stride;
            if (dim % 4 == 0 && first + k + kKeysAtOnce <= length) {
                pack_four_keys(key, stride, dim, to + k);
                k += kKeysAtOnce;
                continue;
            }
            const bool is_there = first + k < length;
            for (int64_t c = 0; c < dim; ++c) to[c * kPanelWidth + k] = is_there ? key[c] : 0.0f;
            ++k;
        }
}

// The same for values, in panels of 32 channels.
void pack_values(const float* from, int64_t stride, int64_t length, int64_t dim, float* to) {
    for (int64_t first = 0; first < dim; first += kPanelWidth)
        for (int64_t token = 0; token < length; ++token, to += kPanelWidth)
            for (int64_t c = 0; c < kPanelWidth; c += kWidth)
                store(to + c, load(from + token * stride + first + c, std::max<int64_t>(0, dim - first - c)));
}

}  // namespace

void TextAttention::begin(const TextAttentionShape& shape, TextHeads text, int64_t head) {
    const int64_t dim = shape.head_dim, width = shape.num_heads * dim;
    length_ = text.length, query_stride_ = text.stride, scale_ = shape.scale * kLog2e;
    first_asked_ = text.asked.begin, queries_ = text.queries + head * dim;
    weights_stride_ = rounded_up(length_, kPairWidth);
    rows_at_once_ = std::clamp(kScoresAtOnce / weights_stride_ / kRowsAtOnce * kRowsAtOnce, 2 * kRowsAtOnce, kRowsPerBlock);
    float* keys = key_panels_.rows<float>(rounded_up(length_, kPanelWidth), dim);
    float* values = value_panels_.rows<float>(length_, rounded_up(dim, kPanelWidth));
    const float* first_key = text.rows + width + head * dim;
    pack_keys(first_key, text.stride, length_, dim, keys);
    pack_values(first_key + width, text.stride, length_, dim, values);
    keys_ = in_panels(keys, dim, length_), values_ = in_panels(values, length_, dim);
    scores_.rows<float>(rows_at_once_, weights_stride_);
    weights_.rows<float>(rows_at_once_, weights_stride_);
    results_.rows<float>(rows_at_once_, rounded_up(dim, kPanelWidth));
    bias_ = nullptr;
    if (shape.position_bias == nullptr) return;
    // One line for all queries: each begins one number before the next.
    const int64_t most = shape.max_distance;
    const float* by_distance = shape.position_bias + head * (2 * most + 1) + most;
    float* line = bias_line_.rows<float>(1, 2 * length_ + kPairWidth);
    for (int64_t i = 0; i < 2 * length_ - 1; ++i) line[i] = kLog2e * by_distance[std::clamp(length_ - 1 - i, -most, most)];
    bias_ = line + length_ - 1;
}

void TextAttention::attend(int64_t first, int64_t count) {
    count_ = count;
    const int64_t query_bytes = query_stride_ * (int64_t)sizeof(float);
    const uint8_t* queries = (const uint8_t*)queries_ + (first - first_asked_) * query_bytes;
    multiply(keys_, {queries, query_bytes, count}, scores_.rows<float>(0, 0));
    for (int64_t row = 0; row < count; ++row) weigh_row(row, bias_ ? bias_ - first - row : nullptr, count);
    const int64_t weight_bytes = weights_stride_ * (int64_t)sizeof(float);
    multiply(values_, {(const uint8_t*)weights_.rows<float>(0, 0), weight_bytes, count}, results_.rows<float>(0, 0));
}

// The softmax of a row's scores, but for the division by their sum.
void TextAttention::weigh_row(int64_t row, const float* bias, int64_t count) {
    const Int lanes = lane_numbers();
    float* weights = weights_.rows<float>(0, 0) + row * weights_stride_;
    Float most = splat(-kInfinity);
    for_each_pair(keys_, count, scores_.rows<float>(0, 0), [&](int64_t panel, int64_t num_panels, const float* scores) {
        const float* from = scores + row * num_panels * kPanelWidth;
        const int64_t start = panel * kPanelWidth, end = std::min(length_, start + num_panels * kPanelWidth);
        for (int64_t key = start; key < end; key += kWidth) {
            Float score = load(from + key - start) * scale_;
            if (bias) score += load(bias + key);
            if (end - key < kWidth) score = lanes < (int32_t)(end - key) ? score : splat(-kInfinity);
            most = larger(most, score);
            store(weights + key, score);
        }
    });
    const float greatest = max_of(most);
    Float total = {};
    for (int64_t key = 0; key < length_; key += kWidth) {
        const Float weight = exp2_of_negative(load(weights + key) - greatest);
        total += weight;
        store(weights + key, weight);
    }
    factors_[row] = 1.0f / sum_of(total);
}

const float* TextAttention::result(int64_t row, int64_t column) const {
    const int64_t pair = column / kPairWidth * kPairWidth;
    const int64_t width = std::min(kPairWidth, values_.num_panels() * kPanelWidth - pair);
    return const_cast<RowBuffer&>(results_).rows<float>(0, 0) + pair * count_ + row * width + column - pair;
}

}  // namespace rayinfer
