// Products with weights of float32 or bfloat16.

#include "multiply_rows.h"
#include "panel_products.h"

namespace rayinfer {
namespace {

// multiply_block for columns of bfloat16 pairs and rows of float32, where no instruction multiplies pairs.
template <int Rows, int Vectors>
__attribute__((noinline)) void multiply_widened(const float* rows, int64_t row_stride, int64_t num_words,
                                                const uint32_t* const* columns, int64_t step, float* out,
                                                int64_t out_stride) {
    Float sums[Rows][Vectors] = {};
    for (int64_t w = 0; w < num_words; ++w) {
        Float first[Vectors], second[Vectors];
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
            const Word words = load_raw<Word>(columns[v] + w * step);
            first[v] = (Float)(words << 16);
            second[v] = (Float)(words & 0xffff0000u);
        }
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const float* row = rows + r * row_stride + 2 * w;
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v) sums[r][v] += first[v] * row[0];
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v) sums[r][v] += second[v] * row[1];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) store(out + r * out_stride + v * kWidth, sums[r][v]);
}

template <int Vectors, class... Arguments>
void multiply_widened_rows(int64_t num_rows, Arguments... arguments) {
    switch (num_rows) {
        case 1: return multiply_widened<1, Vectors>(arguments...);
        case 2: return multiply_widened<2, Vectors>(arguments...);
        case 3: return multiply_widened<3, Vectors>(arguments...);
        case 4: return multiply_widened<4, Vectors>(arguments...);
        case 5: return multiply_widened<5, Vectors>(arguments...);
        default: return multiply_widened<6, Vectors>(arguments...);
    }
}

template <class T, int Vectors>
void multiply(RowTile tile, int64_t num_words, const uint32_t* const* columns, float* sums) {
    const int64_t width = Vectors * kWidth;
    if constexpr (std::is_same_v<T, Plain<T>>)
        multiply_rows<T, Vectors, kWidth>(tile.num_rows, (const uint32_t*)tile.rows, tile.row_bytes / 4, num_words,
                                          columns, kPanelWidth, sums, width);
    else
        multiply_widened_rows<Vectors>(tile.num_rows, (const float*)tile.rows, tile.row_bytes / 4, num_words, columns,
                                       kPanelWidth, sums, width);
}

}  // namespace

template <class T>
void float_products(const Weight& weight, RowTile tile, int64_t panel, int64_t num_panels, float* sums) {
    constexpr int kVectorsPerPanel = kPanelWidth / kWidth;
    const int64_t num_words = (weight.in_features + kPerWord<T> - 1) / kPerWord<T>;
    const uint32_t* columns[2 * kVectorsPerPanel];
    for (int v = 0; v < kVectorsPerPanel * num_panels; ++v)
        columns[v] = (const uint32_t*)weight.panels + (panel + v / kVectorsPerPanel) * num_words * kPanelWidth +
                     v % kVectorsPerPanel * kWidth;
    if (num_panels == 2)
        multiply<T, 2 * kVectorsPerPanel>(tile, num_words, columns, sums);
    else
        multiply<T, kVectorsPerPanel>(tile, num_words, columns, sums);
}

template void float_products<float>(const Weight&, RowTile, int64_t, int64_t, float*);
template void float_products<bfloat16>(const Weight&, RowTile, int64_t, int64_t, float*);

}  // namespace rayinfer
