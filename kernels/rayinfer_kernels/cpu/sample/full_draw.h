// A token drawn among all of a row's, in proportion to their weights.
#pragma once

#include <vector>

#include "sample/row.h"

namespace rayinfer {

constexpr int64_t kBlock = 256;  // whose weights are summed together
// Below 1 by more than float64 can lose in one block's sum, above what any weight in float32 could decide.
constexpr double kAlmostAll = 1.0 - 0x1p-40;

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
int64_t drawn_from_all(const Row<T>& row, const Weights& weights, double uniform) {
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

}  // namespace rayinfer
