// A row of logits under a bit mask, its best token, and its tokens' weights.
#pragma once

#include <algorithm>

#include "core/lanes.h"

namespace rayinfer {

constexpr int64_t kBits = 32;

// A row's logits, and the bits of what is allowed in it; no bits: everything.
template <class T>
struct Row {
    const T* logits;
    const uint32_t* words;
    int64_t width;

    // Calls visit(column, logits of a register, -inf for those that are forbidden or beyond the row).
    template <class Visit>
    void visit(int64_t begin, int64_t end, Visit visit) const {
        const Int lanes = lane_numbers();
        for (int64_t first = begin; first < end; first += kBits) {
            uint32_t word = words ? words[first / kBits] : 0xffffffffu;
            if (width - first < kBits) word &= (1u << (width - first)) - 1;
            if (word == 0) continue;
            for (int64_t i = first; i < std::min(first + kBits, width); i += kWidth) {
                Float x = load(logits + i, width - i);
                if (word != 0xffffffffu) {
                    const Int bits = (Int)((Word{} + (word >> (i - first))) >> (Word)lanes) & 1;
                    x = bits != 0 ? x : splat(-kInfinity);
                }
                visit(i, x);
            }
        }
    }
};

struct Best {
    float value;
    int64_t index;
};

// The first of the greatest; if some number is NaN, so is the value, and the index is any.
template <class T>
inline Best best_of(const Row<T>& row) {
    Float most = splat(-kInfinity);
    Int where = {}, spoilt = {};
    const Int lanes = lane_numbers();
    row.visit(0, row.width, [&](int64_t i, Float x) {
        const Int is_more = x > most;
        most = is_more ? x : most;
        where = is_more ? lanes + (int32_t)i : where;
        spoilt |= x != x;
    });
    Best best = {-kInfinity, 0};
    bool is_spoilt = false;
    for (int lane = 0; lane < kWidth; ++lane) {
        is_spoilt |= spoilt[lane] != 0;
        if (most[lane] > best.value || (most[lane] == best.value && where[lane] < best.index)) {
            best = {most[lane], where[lane]};
        }
    }
    if (is_spoilt) best.value = std::numeric_limits<float>::quiet_NaN();
    return best;
}

// Probabilities over that of the best, which is over the temperature already.
struct Weights {
    Float best, temperature, min_p;

    Float scaled(Float x) const { return x / temperature; }
    Float of_scaled(Float x) const {
        const Float weight = exp_of_negative(x - best);
        return weight < min_p ? splat(0.0f) : weight;
    }
    Float of(Float x) const { return of_scaled(scaled(x)); }
};

constexpr int64_t kHalf = kWidth / 2;
typedef double Doubles __attribute__((vector_size(kHalf * 8)));

inline Doubles widened_sum(Float x) {
    typedef float Half __attribute__((vector_size(kHalf * 4)));
    Half halves[2];
    std::memcpy(halves, &x, sizeof(x));
    return __builtin_convertvector(halves[0], Doubles) + __builtin_convertvector(halves[1], Doubles);
}

}  // namespace rayinfer
