// A few rows times a few vectors of columns, all sums in registers: the heart of scores and of linear layers.
#pragma once

#include "words.h"

namespace rayinfer {

constexpr int kVectorsAtOnce = 4;

// out[row, column] = the sum over w of rows[row, w] x columns[w, column], for Vectors x Width columns; columns[v] is where
// vector v begins, and the next w lies `step` words on. Every sum is taken in the order of w, whatever Rows and Vectors are.
template <class T, int Rows, int Vectors, int Width>
__attribute__((noinline)) void multiply_block(const uint32_t* rows, int64_t row_stride, int64_t num_words,
                                              const uint32_t* const* columns, int64_t step, float* out,
                                              int64_t out_stride) {
    using P = Product<T, Width>;
    typename P::Sums sums[Rows][Vectors] = {};
    for (int64_t w = 0; w < num_words; ++w) {
        typename P::Words words[Vectors];
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) words[v] = load_raw<typename P::Words>(columns[v] + w * step);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const uint32_t shared = rows[r * row_stride + w];
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v) sums[r][v] = P::add(sums[r][v], words[v], shared);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) std::memcpy(out + r * out_stride + v * Width, &sums[r][v], Width * 4);
}

template <class T, int Vectors, int Width, class... Arguments>
void multiply_rows(int64_t num_rows, Arguments... arguments) {
    switch (num_rows) {
        case 1: return multiply_block<T, 1, Vectors, Width>(arguments...);
        case 2: return multiply_block<T, 2, Vectors, Width>(arguments...);
        case 3: return multiply_block<T, 3, Vectors, Width>(arguments...);
        case 4: return multiply_block<T, 4, Vectors, Width>(arguments...);
        case 5: return multiply_block<T, 5, Vectors, Width>(arguments...);
        default: return multiply_block<T, 6, Vectors, Width>(arguments...);
    }
}

}  // namespace rayinfer
