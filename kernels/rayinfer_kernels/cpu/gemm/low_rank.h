// Low-rank terms of a linear layer (LoRA, Hu et al. 2021): x A^T B^T scale, added in float32 to the sums of rows that have
// an adapter. A row's term is summed in one order, whatever the other rows are; rows without one keep their bits.
#pragma once

#include <algorithm>

#include "core/lanes.h"

namespace rayinfer {

// Passed from Python by pointer: the order and the types of the fields are those of `low_rank.py`.
struct LowRankPart {
    const void* a;             // [rank, in_features], of the model's type
    const void* b;             // [rank, end - begin], likewise
    int64_t rank, begin, end;  // the outputs that it is added to; of a gated weight, those of one half. Whole vectors
    float scale;
    int32_t is_second_half;    // of a gated weight: it is added to what the gate multiplies
};

// One adapter at one layer.
struct LowRankAdapter {
    const LowRankPart* parts;
    int64_t num_parts;  // 0: the layer is as it is without an adapter
};

// The terms of a step's rows at one layer.
template <class T>
struct LowRankRows {
    const LowRankAdapter* adapters;  // by slot; null: no row has a term
    const int32_t* slots;            // [num_rows], -1: none
    float* products;                 // [num_rows, stride]: x A^T scale of the row's parts, one behind the other
    int64_t stride;

    bool is_empty() const { return adapters == nullptr || slots == nullptr; }

    const LowRankAdapter* adapter_of(int64_t row) const {
        if (is_empty() || slots[row] < 0 || adapters[slots[row]].num_parts == 0) return nullptr;
        return &adapters[slots[row]];
    }

    // The first half of a row's term: x has `width` numbers.
    template <class X>
    void shrink(int64_t row, const X* x, int64_t width) const {
        const LowRankAdapter* adapter = adapter_of(row);
        if (adapter == nullptr) return;
        float* to = products + row * stride;
        for (int64_t i = 0; i < adapter->num_parts; ++i) {
            const LowRankPart& part = adapter->parts[i];
            for (int64_t r = 0; r < part.rank; r += kOutputsAtOnce)
                shrink_some(x, (const T*)part.a + r * width, width, std::min(kOutputsAtOnce, part.rank - r), part.scale,
                            to + r);
            to += part.rank;
        }
    }

    // The second half, for a vector of outputs: the products must be there.
    Float expand(const LowRankAdapter& adapter, int64_t row, int64_t column, bool is_second_half) const {
        const float* from = products + row * stride;
        Float sum = splat(0.0f);
        for (int64_t i = 0; i < adapter.num_parts; ++i) {
            const LowRankPart& part = adapter.parts[i];
            if (column >= part.begin && column < part.end && (part.is_second_half != 0) == is_second_half) {
                const T* b = (const T*)part.b + column - part.begin;
                for (int64_t r = 0; r < part.rank; ++r) sum += splat(from[r]) * load(b + r * (part.end - part.begin));
            }
            from += part.rank;
        }
        return sum;
    }

  private:
    static constexpr int64_t kOutputsAtOnce = 4;  // so many sums hide each other's latency

    template <class X>
    static void shrink_some(const X* x, const T* a, int64_t width, int64_t count, float scale, float* to) {
        Float sums[kOutputsAtOnce] = {};
        for (int64_t i = 0; i < width; i += kWidth) {
            const Float numbers = load(x + i, width - i);
            for (int64_t r = 0; r < count; ++r) sums[r] += numbers * load(a + r * width + i, width - i);
        }
        for (int64_t r = 0; r < count; ++r) to[r] = sum_of(sums[r]) * scale;
    }
};

}  // namespace rayinfer
