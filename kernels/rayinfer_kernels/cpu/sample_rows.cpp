// One token for each row of logits: the best, or a draw by temperature and min-p; bit masks forbid tokens on the way.

#include <algorithm>
#include <vector>

#include "core/lanes.h"
#include "core/thread_team.h"

namespace rayinfer {
namespace {

constexpr int64_t kBits = 32;
constexpr int64_t kBlock = 256;  // whose weights are summed together
// Below 1 by more than float64 can lose in one block's sum, above what any weight in float32 could decide.
constexpr double kAlmostAll = 1.0 - 0x1p-40;

constexpr int64_t kHalf = kWidth / 2;
typedef double Doubles __attribute__((vector_size(kHalf * 8)));

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
Best best_of(const Row<T>& row) {
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

    Float of(Float x) const {
        const Float weight = exp_of_negative(x / temperature - best);
        return weight < min_p ? splat(0.0f) : weight;
    }
};

inline Doubles widened_sum(Float x) {
    typedef float Half __attribute__((vector_size(kHalf * 4)));
    Half halves[2];
    std::memcpy(halves, &x, sizeof(x));
    return __builtin_convertvector(halves[0], Doubles) + __builtin_convertvector(halves[1], Doubles);
}

template <class T>
double block_sum(const Row<T>& row, const Weights& weights, int64_t begin) {
    Doubles sums = {};
    row.visit(begin, std::min(begin + kBlock, row.width),
              [&](int64_t, Float x) { sums += widened_sum(weights.of(x)); });
    double sum = 0.0;
    for (int64_t lane = 0; lane < kHalf; ++lane) sum += sums[lane];
    return sum;
}

// The first column of a block whose cumulated weight exceeds `target`, or the last that has a weight.
template <class T>
int64_t column_in_block(const Row<T>& row, const Weights& weights, int64_t begin, double target) {
    float values[kBlock + kWidth] = {};
    row.visit(begin, std::min(begin + kBlock, row.width),
              [&](int64_t i, Float x) { store(values + (i - begin), weights.of(x)); });
    double total = 0.0, sum = 0.0;
    for (int64_t i = 0; i < kBlock; ++i) total += values[i];
    // Adding in another order may leave the block's own sum just short of what it was.
    target = std::min(target, total * kAlmostAll);
    for (int64_t i = 0; i < kBlock; ++i) {
        sum += values[i];
        if (sum > target) return begin + i;
    }
    return begin;
}

template <class T>
int64_t drawn_column(const Row<T>& row, const Weights& weights, double uniform) {
    thread_local std::vector<double> ends;
    ends.clear();
    double total = 0.0;
    for (int64_t begin = 0; begin < row.width; begin += kBlock) {
        total += block_sum(row, weights, begin);
        ends.push_back(total);
    }
    const double target = uniform * total;
    int64_t block = std::upper_bound(ends.begin(), ends.end(), target) - ends.begin();
    if (block == (int64_t)ends.size()) block = std::lower_bound(ends.begin(), ends.end(), total) - ends.begin();
    const double before = block > 0 ? ends[block - 1] : 0.0;
    return column_in_block(row, weights, block * kBlock, target - before);
}

}  // namespace
}  // namespace rayinfer

// mask_of[row] is the index of its mask, or -1; without any mask the pointer is null. A row is drawn if is_drawn[row].
#define RAYINFER_SAMPLE_ROWS(name, T)                                                                                  \
    extern "C" __attribute__((visibility("default"))) void name(                                                     \
        const void* rows, int64_t stride, const int64_t* mask_of, const uint32_t* masks, int64_t mask_stride,        \
        const bool* is_drawn, const double* temperature, const double* min_p, const double* uniform, float* values,  \
        int64_t* indices, int64_t num_rows, int64_t width, int num_threads) {                                        \
        using namespace rayinfer;                                                                                     \
        const int team = team_size(num_rows, 2, num_threads);                                                         \
        _Pragma("omp parallel for schedule(static) num_threads(team)") for (int64_t i = 0; i < num_rows; ++i) {      \
            const bool is_masked = mask_of && mask_of[i] >= 0;                                                        \
            const Row<T> row = {(const T*)rows + i * stride, is_masked ? masks + mask_of[i] * mask_stride : nullptr,  \
                                width};                                                                               \
            const Best best = best_of(row);                                                                           \
            values[i] = best.value;                                                                                   \
            indices[i] = best.index;                                                                                  \
            if (!is_drawn[i] || !(best.value - best.value == 0.0f)) continue;                                         \
            const Weights weights = {splat(best.value / (float)temperature[i]), splat((float)temperature[i]),            \
                                     splat((float)min_p[i])};        \
            indices[i] = drawn_column(row, weights, uniform[i]);                                                      \
        }                                                                                                             \
    }

RAYINFER_SAMPLE_ROWS(rayinfer_sample_rows_float32, float)
RAYINFER_SAMPLE_ROWS(rayinfer_sample_rows_bfloat16, rayinfer::bfloat16)
