// Products of weights of eight bits with rows of eight bits.
//
// A row's numbers were moved up by 128 to have no sign, as the instruction of x86-64 wants it: each output's sum of
// weights, times 128, is taken away again. All of that is exact; then come one rounding to float32 and the two scales.
//
// Some inputs of the panels are multiplied by all rows before the next are read, so that they stay in the second cache;
// meanwhile the panels that come next are prefetched.

#include <algorithm>

#include "gemm/byte_sums.h"
#include "gemm/lookahead.h"
#include "gemm/panel_products.h"
#include "gemm/row_tiles.h"

namespace rayinfer {
namespace {

constexpr int64_t kMostTileRows = kHasWideNumbers ? 6 : kByteTileRows;
// So many rows are one tile where its sums fit into registers: their panels come from memory once, in order, and are not read
// again.
constexpr int64_t kMostRowsAlone = kByteLanes == 16 ? 2 * kByteTileRows : kMostTileRows;
constexpr int64_t kMostWideRows = kHas32Registers ? kByteTileRows : 2;
constexpr int64_t kSignedTileRows = 3;
constexpr int64_t kFewRows = 9;  // from here on widened weights are faster
constexpr int64_t kAheadOfFew = 3072;
constexpr int kVectorsPerPanel = kPanelWidth / kByteLanes;
constexpr int kVectorsPerLine = kLine / (4 * kByteLanes);
constexpr int64_t kQuadBytes = kPanelWidth * 4;
constexpr bool kFollowsOneStream = kByteLanes == 16;  // as float_products.cpp
// Of two panels, 128 kB: the next ones and rows fit beside them into a cache of 1 MB. Of widened weights so many that a tile's
// columns, a quarter of a panel's, stay in the first level cache.
constexpr int64_t kBlockQuads = kHasWideNumbers ? 144 : 512;

struct TileTask {
    const uint8_t* rows;
    int64_t row_bytes, padded_width;
    int64_t quad, num_quads;   // which inputs
    const int8_t* columns[2];  // where those of each panel begin
    bool is_first, is_last;    // whether `sums` hold nothing yet; whether they become results
    const int32_t* column_sums;
    const float* scales;
    float* sums;
    int64_t sum_stride;
    bool is_alone;      // no other tile reads the same columns
    int64_t distance;   // of prefetches of the columns, if it is and `ahead` does not follow them
    Ahead ahead;        // what is prefetched meanwhile
};

template <int Rows, int Vectors>
__attribute__((noinline)) void multiply_tile(const TileTask& task) {
    constexpr Sign sign = Sign::columns;
    ByteSums sums[Rows][Vectors] = {};
    if (!task.is_first)
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v)
                sums[r][v] = load_raw<ByteSums>(task.sums + r * task.sum_stride + v * kByteLanes);
    const uint8_t* rows = quantized_numbers(task.rows) + task.quad * 4;
    const int8_t *columns = task.columns[0], *others = task.columns[1];
    Ahead ahead = task.ahead;
    const int64_t row_bytes = task.row_bytes;
    const bool is_alone = task.is_alone;
    const int64_t distance = task.distance;
    auto vector = [&](int v) __attribute__((always_inline)) {
        return (v < kVectorsPerPanel ? columns : others) + v % kVectorsPerPanel * kByteLanes * 4;
    };
    for (const uint8_t* end = rows + task.num_quads * 4; rows < end; rows += 4) {
        decltype(prepared_columns<sign>(Quads{})) prepared[Vectors];
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v)
            prepared[v] = prepared_columns<sign>(load_raw<Quads>(vector(v)));
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
            const auto row = prepared_row<sign>(load_raw<uint32_t>(rows + r * row_bytes));
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v) add_products<sign>(sums[r][v], prepared[v], row);
        }
        if (!kFollowsOneStream && is_alone) {
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; v += kVectorsPerLine) fetch<kLine>(vector(v) + distance);
        } else {
            ahead.fetch_round();
        }
        columns += kQuadBytes;
        others += kQuadBytes;
    }
    if (!task.is_last) {
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v)
                std::memcpy(task.sums + r * task.sum_stride + v * kByteLanes, &sums[r][v], sizeof(ByteSums));
        return;
    }
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
        const ByteSums moved = load_raw<ByteSums>(task.column_sums + v * kByteLanes) * (kMultipliesSigned ? 0 : 128);
        const SumFloats scales = load_raw<SumFloats>(task.scales + v * kByteLanes);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
            const float row_scale = ((const QuantizedRow*)(task.rows + r * row_bytes))->scale;
            const SumFloats result = __builtin_convertvector(sums[r][v] - moved, SumFloats) * scales * row_scale;
            std::memcpy(task.sums + r * task.sum_stride + v * kByteLanes, &result, sizeof(result));
        }
    }
}

#if defined(__AVX2__)
// Without an instruction for four products: weights are widened to sixteen bits. A register has the four inputs of four
// outputs, and sums of two products each, which are added in the end.
template <int Rows, int Vectors>
__attribute__((noinline)) void multiply_wide_tile(const TileTask& task) {
    constexpr int kHalves = 2 * Vectors;
    __m256i sums[Rows][kHalves] = {};
    const int64_t row_bytes = task.row_bytes;
    const char* rows = (const char*)(wide_numbers(task.rows, task.padded_width) + task.quad * 4);
    const int8_t* columns = task.columns[0];
    Ahead ahead = task.ahead;
    const bool is_alone = task.is_alone;
    const int64_t distance = task.distance;
    for (const char* end = rows + task.num_quads * 8; rows < end; rows += 8) {
        __m256i row[Rows];
        if constexpr (Vectors > 1)
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) row[r] = _mm256_set1_epi64x(load_raw<int64_t>(rows + r * row_bytes));
        __m256i widened[kHalves];
#pragma GCC unroll 8
        for (int h = 0; h < kHalves; ++h) {
            widened[h] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(columns + h * 16)));
            if constexpr (Vectors > 1)
#pragma GCC unroll 8
                for (int r = 0; r < Rows; ++r)
                    sums[r][h] = _mm256_add_epi32(sums[r][h], _mm256_madd_epi16(widened[h], row[r]));
        }
        if constexpr (Vectors == 1)
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                row[r] = _mm256_set1_epi64x(load_raw<int64_t>(rows + r * row_bytes));
                sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(widened[0], row[r]));
                sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(widened[1], row[r]));
            }
        if (is_alone) {
            fetch<(Vectors * kByteLanes * 4 + kLine - 1) / kLine * kLine>(columns + distance);
        } else {
            ahead.fetch_round();
        }
        columns += kQuadBytes;
    }
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
        const float row_scale = ((const QuantizedRow*)(task.rows + r * row_bytes))->scale;
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
            float* to = task.sums + r * task.sum_stride + v * kByteLanes;
            const __m256i halves = _mm256_hadd_epi32(sums[r][2 * v], sums[r][2 * v + 1]);
            ByteSums whole = (ByteSums)_mm256_permute4x64_epi64(halves, 0b11011000);
            if (!task.is_first) whole += load_raw<ByteSums>(to);
            if (task.is_last) {
                const SumFloats scales = load_raw<SumFloats>(task.scales + v * kByteLanes);
                whole = (ByteSums)(__builtin_convertvector(whole, SumFloats) * scales * row_scale);
            }
            std::memcpy(to, &whole, sizeof(whole));
        }
    }
}

// Few rows: a product of bytes of which one has no sign adds two neighbors exactly, for 2 x 128 x 127 < 2^15. So the sign of
// each weight goes to the row. One row is multiplied by two panels at once, whose streams use more of the bandwidth than one.
template <int Rows, int Vectors>
__attribute__((noinline)) void multiply_signed_tile(const TileTask& task) {
    __m256i sums[Rows][Vectors] = {};
    const __m256i ones = _mm256_set1_epi16(1), up = _mm256_set1_epi8(-128);
    const int64_t row_bytes = task.row_bytes;
    const uint8_t* rows = quantized_numbers(task.rows) + task.quad * 4;
    const int8_t *columns = task.columns[0], *others = task.columns[1];
    Ahead ahead = task.ahead;
    const bool is_alone = task.is_alone;
    const int64_t distance = task.distance;
    for (const uint8_t* end = rows + task.num_quads * 4; rows < end; rows += 4) {
        __m256i row[Rows];
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r)
            row[r] = _mm256_xor_si256(_mm256_set1_epi32(load_raw<int32_t>(rows + r * row_bytes)), up);
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
            const int8_t* at = (v < kVectorsPerPanel ? columns : others) + v % kVectorsPerPanel * 32;
            const __m256i weights = _mm256_loadu_si256((const __m256i*)at), sizes = _mm256_abs_epi8(weights);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                const __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(row[r], weights));
                sums[r][v] = _mm256_add_epi32(sums[r][v], _mm256_madd_epi16(pairs, ones));
            }
        }
        if (is_alone) {
            fetch<kQuadBytes>(columns + distance);
            if (Vectors > kVectorsPerPanel) fetch<kQuadBytes>(others + distance);
        } else {
            ahead.fetch_round();
        }
        columns += kQuadBytes;
        others += kQuadBytes;
    }
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
        const float row_scale = ((const QuantizedRow*)(task.rows + r * row_bytes))->scale;
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
            float* to = task.sums + r * task.sum_stride + v * kByteLanes;
            if (!task.is_first) sums[r][v] = _mm256_add_epi32(sums[r][v], load_raw<__m256i>(to));
            if (task.is_last) {
                const SumFloats scales = load_raw<SumFloats>(task.scales + v * kByteLanes);
                sums[r][v] = (__m256i)((SumFloats)_mm256_cvtepi32_ps(sums[r][v]) * scales * row_scale);
            }
            std::memcpy(to, &sums[r][v], sizeof(sums[r][v]));
        }
    }
}
#endif

template <int Vectors>
void multiply(int64_t num_rows, const TileTask& task) {
#if defined(__AVX2__)
    if constexpr (kHasWideNumbers) {
        if constexpr (Vectors > 4) return multiply_signed_tile<1, Vectors>(task);  // see tile_vectors
        if constexpr (Vectors == 4) return with_rows<kSignedTileRows>(num_rows, [&](auto rows) { multiply_signed_tile<rows, 4>(task); });
        return with_rows<kMostTileRows>(num_rows, [&](auto rows) { multiply_wide_tile<rows, 1>(task); });
    }
#endif
    if constexpr (!kHasWideNumbers) {
        constexpr int64_t most = Vectors == 4 ? kMostWideRows : kMostRowsAlone;
        with_rows<most>(num_rows, [&](auto rows) { multiply_tile<rows, Vectors>(task); });
    }
}

// How many vectors of columns a tile has, by what the registers hold.
int64_t tile_vectors(int64_t num_rows, int64_t num_panels) {
    if (kHasWideNumbers) return num_rows == 1 && num_panels == 2 ? 8 : num_rows <= kFewRows ? 4 : 1;
    if (kHas32Registers && kByteLanes < 16) return 4;
    const bool is_wide = kByteLanes < 16 ? num_rows <= 2 : num_panels == 2 && num_rows > kMostRowsAlone;
    return is_wide ? 4 : 2;
}

}  // namespace

void int8_dynamic_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums) {
    const int64_t width = num_panels * kPanelWidth, num_quads = padded_width(weight.format, weight.in_features) / 4;
    const int64_t stride = num_quads * kQuadBytes;
    const int8_t* panels = (const int8_t*)weight.panels + panel * stride;
    const bool is_alone = rows.num_rows <= kMostRowsAlone, are_few = kHasWideNumbers && rows.num_rows <= kFewRows;
    const RowTiles tiles(rows.num_rows, are_few ? kSignedTileRows : is_alone ? kMostRowsAlone : kMostTileRows);
    const int64_t distance = weight.prefetch_distance(rows.num_rows, are_few ? kAheadOfFew : kStreamAhead,
                                                      are_few ? kAheadOfFew : kStreamAheadOfMoreRows);
    const int64_t num_blocks = is_alone ? 1 : (num_quads + kBlockQuads - 1) / kBlockQuads;
    const int64_t vectors = tile_vectors(rows.num_rows, num_panels), step = vectors * kByteLanes;
    for (int64_t block = 0; block < num_blocks; ++block) {
        const bool is_last = block + 1 == num_blocks;
        const int64_t quad = num_quads * block / num_blocks, quads = num_quads * (block + 1) / num_blocks - quad;
        const int64_t after = is_last ? num_quads / num_blocks : num_quads * (block + 2) / num_blocks - quad - quads;
        const int8_t* next = is_last ? panels + num_panels * stride : panels + (quad + quads) * kQuadBytes;
        Lookahead lookahead({next, stride, after * kQuadBytes, num_panels}, quads * tiles.count * (width / step));
        for (int64_t column = 0; column < width; column += step)
            for (int64_t row = 0, end; row < rows.num_rows; row = end) {
                end = tiles.end_of(row);
                const int8_t* columns =
                    panels + column / kPanelWidth * stride + column % kPanelWidth * 4 + quad * kQuadBytes;
                const int64_t output = panel * kPanelWidth + column;
                const TileTask task = {rows.rows + row * rows.row_bytes,
                                       rows.row_bytes,
                                       num_quads * 4,
                                       quad,
                                       quads,
                                       {columns, columns + stride},
                                       block == 0,
                                       is_last,
                                       weight.sums + output,
                                       weight.scales + output,
                                       sums + row * width + column,
                                       width,
                                       tiles.count == 1,
                                       distance,
                                       kFollowsOneStream && is_alone ? Ahead{(const char*)columns + distance, kQuadBytes}
                                                                     : lookahead.next(quads)};
                switch (vectors) {
                    case 1: multiply<1>(end - row, task); break;
                    case 2: multiply<2>(end - row, task); break;
                    case 4: multiply<4>(end - row, task); break;
                    default:
                        if constexpr (kHasWideNumbers) multiply<8>(end - row, task);
                }
            }
    }
}

}  // namespace rayinfer
