// Sums along a row, and the layer norm of one.
#pragma once

#include <cmath>

#include "core/lanes.h"

namespace rayinfer {

// Calls `each(i, count)` for every vector of a row; `count` is a constant for all but the last.
template <class Each>
inline __attribute__((always_inline)) void for_each_vector(int64_t width, Each each) {
    int64_t i = 0;
    for (; i + kWidth <= width; i += kWidth) each(i, (int64_t)kWidth);
    if (i < width) each(i, width - i);
}

// Several sums, so that no addition waits for the one before.
template <class Value>
inline __attribute__((always_inline)) float sum_of_row(int64_t width, Value value) {
    constexpr int count = 4;
    Float sums[count] = {};
    int64_t i = 0;
    for (; i + count * kWidth <= width; i += count * kWidth)
#pragma GCC unroll 4
        for (int j = 0; j < count; ++j) sums[j] += value(i + j * kWidth, (int64_t)kWidth);
    for (; i < width; i += kWidth) sums[0] += value(i, width - i);
    return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Mean 0 and variance 1, then scaled and shifted; `out` may be x.
template <class In, class T, class Out>
inline void layer_norm_row(const In* x, const T* weight, const T* bias, Out* out, int64_t width, float eps) {
    const Int lanes = lane_numbers();
    const float mean = sum_of_row(width, [=](int64_t i, int64_t count) { return load(x + i, count); }) / (float)width;
    const float squares = sum_of_row(width, [=](int64_t i, int64_t count) {
        const Float distance = load(x + i, count) - mean, square = distance * distance;
        return count >= kWidth ? square : lanes < (int32_t)count ? square : splat(0.0f);
    });
    const float factor = 1.0f / std::sqrt(squares / (float)width + eps);
    for_each_vector(width, [=](int64_t i, int64_t count) {
        const Float normed = (load(x + i, count) - mean) * factor;
        store(out + i, normed * load(weight + i, count) + load(bias + i, count), count);
    });
}

}  // namespace rayinfer
