// Low-rank terms of a linear layer (LoRA, Hu et al. 2021): x A^T B^T scale, added in float32 to the sums of rows that have
// an adapter. A row's term is summed in one order, whatever the other rows are; rows without one keep their bits.
//
// A and B are packed in the order in which a row reads them, so that the terms of many adapters come from memory as
// streams. Bfloat16 numbers stand in pairs: of each 32, the first with the 17th and so on, a word for each pair.
#pragma once

#include <algorithm>

#include "core/fetch_ahead.h"
#include "core/lanes.h"

namespace rayinfer {

constexpr int64_t kNumbersPerGroup = 32;  // of A along its inputs; of B a panel's outputs
constexpr int64_t kRanksPerBlock = 8;     // so many sums hide each other's latency

// Passed from Python by pointer: the order and the types of the fields are those of `low_rank.py`.
struct LowRankPart {
    const void* a;             // for each 8 ranks, or those left: [in_features / 32][ranks][32], padded with zeros
    const void* b;             // [(end - begin) / 32][rank][32]
    int64_t rank, begin, end;  // the outputs that it is added to; of a gated weight, those of one half. Whole panels
    float scale;
    int32_t is_second_half;  // of a gated weight: it is added to what the gate multiplies

    bool has(int64_t column, bool second_half) const {
        return column >= begin && column < end && (is_second_half != 0) == second_half;
    }
};

// One adapter at one layer.
struct LowRankAdapter {
    const LowRankPart* parts;
    int64_t num_parts;  // 0: the layer is as it is without an adapter
};

// Vector `v` of a group's first half, and of its second.
struct GroupVectors {
    Float first, second;
    GroupVectors(const float* group, int64_t v)
        : first(load(group + v * kWidth)), second(load(group + kNumbersPerGroup / 2 + v * kWidth)) {}
    GroupVectors(const bfloat16* group, int64_t v) {
        const Word pairs = load_raw<Word>(group + 2 * v * kWidth);
        first = (Float)(pairs << 16);
        second = (Float)(pairs & 0xffff0000u);
    }
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
        const int64_t whole = width / kNumbersPerGroup * kNumbersPerGroup;
        float rest[kNumbersPerGroup] = {};
        for (int64_t i = whole; i < width; i += kWidth) store(rest + i - whole, load(x + i, width - i));
        const Input<X> input{x, rest, whole, width > whole};
        float* to = products + row * stride;
        for (int64_t i = 0; i < adapter->num_parts; ++i) {
            const LowRankPart& part = adapter->parts[i];
            const T* a = (const T*)part.a;
            for (int64_t r = 0; r < part.rank; r += kRanksPerBlock)
                a = input.multiply(a, std::min(kRanksPerBlock, part.rank - r), part.scale, to + r);
            to += part.rank;
        }
    }

    // The second half, for the sums of one panel: the products must be there.
    void expand(const LowRankAdapter& adapter, int64_t row, int64_t column, bool is_second_half, float* sums) const {
        constexpr int64_t kVectors = kNumbersPerGroup / 2 / kWidth;
        const float* from = products + row * stride;
        for (int64_t i = 0; i < adapter.num_parts; ++i) {
            const LowRankPart& part = adapter.parts[i];
            if (part.has(column, is_second_half)) {
                const T* b = panel_of(part, column);
                Float terms[2 * kVectors] = {};
                for (int64_t r = 0; r < part.rank; ++r, b += kNumbersPerGroup) {
                    const Float product = splat(from[r]);
#pragma GCC unroll 4
                    for (int64_t v = 0; v < kVectors; ++v) {
                        const GroupVectors numbers(b, v);
                        terms[v] += product * numbers.first;
                        terms[kVectors + v] += product * numbers.second;
                    }
                }
                for (int64_t v = 0; v < 2 * kVectors; ++v) store(sums + v * kWidth, load(sums + v * kWidth) + terms[v]);
            }
            from += part.rank;
        }
    }

    // Prefetches what `expand` reads of B for a row; not where the row before has read the same.
    void fetch_panel(int64_t row, int64_t column, bool is_second_half) const {
        const LowRankAdapter* adapter = adapter_of(row);
        if (adapter == nullptr || slots[row] == slots[row - 1]) return;
        for (int64_t i = 0; i < adapter->num_parts; ++i) {
            const LowRankPart& part = adapter->parts[i];
            if (!part.has(column, is_second_half)) continue;
            const char* b = (const char*)panel_of(part, column);
            const int64_t num_bytes = part.rank * kNumbersPerGroup * (int64_t)sizeof(T);
            for (int64_t at = 0; at < num_bytes; at += kLine) __builtin_prefetch(b + at, 0, 3);
        }
    }

  private:
    static const T* panel_of(const LowRankPart& part, int64_t column) {
        return (const T*)part.b + (column - part.begin) * part.rank;
    }

    template <class X>
    struct Input {
        const X* x;
        const float* rest;  // a group, if the last is not whole
        int64_t whole;      // numbers before it
        bool has_rest;

        // Multiplies by a block of A, and returns the next one.
        const T* multiply(const T* a, int64_t num_ranks, float scale, float* to) const {
            switch (num_ranks) {
                case 8: return multiply<8>(a, scale, to);
                case 7: return multiply<7>(a, scale, to);
                case 6: return multiply<6>(a, scale, to);
                case 5: return multiply<5>(a, scale, to);
                case 4: return multiply<4>(a, scale, to);
                case 3: return multiply<3>(a, scale, to);
                case 2: return multiply<2>(a, scale, to);
                default: return multiply<1>(a, scale, to);
            }
        }

        template <int Ranks>
        const T* multiply(const T* a, float scale, float* to) const {
            Float sums[Ranks] = {};
            for (int64_t i = 0; i < whole; i += kNumbersPerGroup) a = add_group<Ranks>(x + i, a, sums);
            if (has_rest) a = add_group<Ranks>(rest, a, sums);
            for (int r = 0; r < Ranks; ++r) to[r] = sum_of(sums[r]) * scale;
            return a;
        }

        template <int Ranks, class Number>
        static inline __attribute__((always_inline)) const T* add_group(const Number* from, const T* a, Float* sums) {
            constexpr int64_t kBytes = Ranks * kNumbersPerGroup * sizeof(T), kVectors = kNumbersPerGroup / 2 / kWidth;
            fetch<kBytes>((const char*)a + kStreamAhead);
#pragma GCC unroll 4
            for (int64_t v = 0; v < kVectors; ++v) {
                const Float first = load(from + v * kWidth), second = load(from + kNumbersPerGroup / 2 + v * kWidth);
#pragma GCC unroll 8
                for (int r = 0; r < Ranks; ++r) {
                    const GroupVectors numbers(a + r * kNumbersPerGroup, v);
                    sums[r] += first * numbers.first;
                    sums[r] += second * numbers.second;
                }
            }
            return a + Ranks * kNumbersPerGroup;
        }
    };
};

}  // namespace rayinfer
