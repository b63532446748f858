// Products of weights of eight bits with rows as the model has them.
//
// Small integers lose nothing as float32 or bfloat16, and they are multiplied as those would be: each tile of rows widens them
// in registers, which costs less than panels that are widened once and read again.

#include "core/fetch_ahead.h"
#include "gemm/panel_products.h"
#include "gemm/register_sums.h"
#include "gemm/row_tiles.h"

namespace rayinfer {
namespace {

constexpr int64_t kMostWideRows = kTileVectors < 4 ? 2 : kTileRows;
constexpr int kVectorsPerPanel = kPanelWidth / kSimd;
constexpr int64_t kQuadBytes = kPanelWidth * 4;
constexpr int64_t kAheadOfPair = 3072;  // of two panels that are read at once

// Quads of four neighboring inputs become four columns of float32, or two of pairs of bfloat16.
template <class E, int W>
struct QuadParts;

template <int W>
struct QuadParts<float, W> {
    using Words = typename Lanes<W>::Word;
    typedef int32_t Integers __attribute__((vector_size(W * 4)));
    static constexpr int kCount = 4;
    template <int Part>
    static RAYINFER_INLINE typename Lanes<W>::Float columns(Words quads) {
        return __builtin_convertvector((Integers)(quads << (24 - 8 * Part)) >> 24, typename Lanes<W>::Float);
    }
};

template <int W>
struct QuadParts<bfloat16, W> {
    using Words = typename Lanes<W>::Word;
    static constexpr int kCount = 2;
    template <int Part>
    static RAYINFER_INLINE Words columns(Words quads) {
        using Numbers = QuadParts<float, W>;
        return (Words)Numbers::template columns<2 * Part>(quads) >> 16 |
               (Words)Numbers::template columns<2 * Part + 1>(quads);
    }
};

template <class E>
struct TileTask {
    const E* rows;
    int64_t row_stride, num_quads;
    const int8_t* columns[2];  // where those of each panel begin
    const float* scales;
    float* sums;
    int64_t sum_stride;
    int64_t distance;          // of prefetches of the columns
};

template <class E, int Rows, int Vectors>
__attribute__((noinline)) void multiply_tile(const TileTask<E>& task) {
    using Words = typename Lanes<kSimd>::Word;
    using Floats = typename Lanes<kSimd>::Float;
    using Parts = QuadParts<E, kSimd>;
    Sums<E, Rows, Vectors, kSimd> sums = {};
    const E* rows = task.rows;
    const int64_t row_stride = task.row_stride;
    const int8_t *first = task.columns[0], *second = task.columns[1];
    const int64_t distance = task.distance;
    for (const E* end = rows + task.num_quads * 4; rows < end; rows += 4) {
        auto add = [&](auto part) RAYINFER_LAMBDA {
            constexpr int index = decltype(part)::value;
            sums.template add_part<0>(
                [&](int v) RAYINFER_LAMBDA {
                    return Parts::template columns<index>(load_raw<Words>(
                        (v < kVectorsPerPanel ? first : second) + v % kVectorsPerPanel * kSimd * 4));
                },
                rows + index * (4 / Parts::kCount), row_stride);
        };
        add(std::integral_constant<int, 0>{});
        add(std::integral_constant<int, 1>{});
        if constexpr (Parts::kCount == 4) {
            add(std::integral_constant<int, 2>{});
            add(std::integral_constant<int, 3>{});
        }
        fetch<kQuadBytes>(first + distance);
        if constexpr (Vectors > kVectorsPerPanel) fetch<kQuadBytes>(second + distance);
        first += kQuadBytes;
        second += kQuadBytes;
    }
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
        const Floats scales = load_raw<Floats>(task.scales + v * kSimd);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
            const Floats result = sums.at[r][v] * scales;
            std::memcpy(task.sums + r * task.sum_stride + v * kSimd, &result, sizeof(result));
        }
    }
}

}  // namespace

template <class T>
void int8_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums) {
    using E = Plain<T>;
    const int64_t width = num_panels * kPanelWidth, num_quads = padded_width(weight.format, weight.in_features) / 4;
    const int64_t stride = num_quads * kQuadBytes;
    const int8_t* panels = (const int8_t*)weight.panels + panel * stride;
    const float* scales = weight.scales + panel * kPanelWidth;
    const bool is_wide = kSimd == 16 ? width > kPanelWidth && rows.num_rows <= kTileRows : kHas32Registers || rows.num_rows <= 2;
    const int64_t distance = weight.prefetch_distance(rows.num_rows, kAheadOfPair, kStreamAheadOfMoreRows);
    const int64_t step = (is_wide ? 4 : 2) * kSimd;
    const RowTiles tiles(rows.num_rows, is_wide ? kTileRows : kNarrowTileRows);
    for (int64_t column = 0; column < width; column += step)
        for (int64_t row = 0, end; row < rows.num_rows; row = end) {
            end = tiles.end_of(row);
            const int8_t* columns = panels + column / kPanelWidth * stride + column % kPanelWidth * 4;
            const TileTask<E> task = {(const E*)(rows.rows + row * rows.row_bytes),
                                      rows.row_bytes / (int64_t)sizeof(E),
                                      num_quads,
                                      {columns, columns + stride},
                                      scales + column,
                                      sums + row * width + column,
                                      width,
                                      distance};
            if (is_wide)
                with_rows<kMostWideRows>(end - row, [&](auto count) { multiply_tile<E, count, 4>(task); });
            else
                with_rows<kNarrowTileRows>(end - row, [&](auto count) { multiply_tile<E, count, 2>(task); });
        }
}

template void int8_products<float>(const Weight&, RowTile, int64_t, int64_t, float*);
template void int8_products<bfloat16>(const Weight&, RowTile, int64_t, int64_t, float*);

}  // namespace rayinfer
