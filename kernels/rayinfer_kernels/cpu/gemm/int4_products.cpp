// Products of weights of four bits in groups with rows of eight bits.
//
// A group's sum is an exact integer; times its scale, which has few digits, it is an exact float32. So only the additions
// of groups round, and they are done in the order of groups, behind the products with offsets, if there are any.

#include "gemm/byte_sums.h"
#include "core/fetch_ahead.h"
#include "gemm/panel_products.h"
#include "gemm/row_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rayinfer {
namespace {

constexpr int64_t kNumberBytes = kGroupSize * kPanelWidth / 2;  // of a group

// See int4_blocks.py.
struct Block {
    uint8_t numbers[kNumberBytes];
    uint32_t scales[kPanelWidth / 2];  // of output n in the lower half, of output n + 16 in the upper half
};
static_assert(sizeof(Block) == 576);

constexpr int64_t kHalf = kPanelWidth / 2;
constexpr int kQuadsPerHalf = 4;
constexpr int kQuadBytes = kPanelWidth * 4;
constexpr int kVectors = 2;
constexpr int kLinesPerGroup = 3, kMoreLines = kByteLanes == 16 ? 2 : 0;  // more where only two tiles share a panel
constexpr int64_t kStep = kVectors * kByteLanes;  // outputs of a tile
// Each of a tile's sums is kept as an integer and as a float.
constexpr int64_t kMostNarrowRows = kHasWideNumbers || kHas32Registers ? 4 : 2;
constexpr int64_t kMostRows = kByteLanes < 16 ? kMostNarrowRows : RAYINFER_HAS_BYTE_DOTS ? 6 : 3;
constexpr int64_t kAhead = 6144;  // where it was measured this was fastest

typedef uint8_t ScaleBytes __attribute__((vector_size(kByteLanes)));

struct TileTask {
    const uint8_t* rows;
    int64_t row_bytes;
    const uint8_t* panel;
    int64_t num_groups;
    int64_t output;  // the first of the tile's, in the panel
    float* out;
    int64_t out_stride;
    bool is_alone;      // no other tile reads the same panel
    bool has_more;      // kMoreLines to fetch beside the others
    const char* ahead;  // what to fetch, some lines for each group
    int64_t ahead_step;
};

struct Blocks {
    static constexpr int64_t kNumberStep = sizeof(Block), kScaleStep = sizeof(Block);  // from a group to the next
    static constexpr int kLinesAlone = sizeof(Block) / kLine;
    static int64_t numbers(int64_t) { return 0; }
    static int64_t scales(int64_t) { return kNumberBytes; }
    static SumFloats load_scales(const uint8_t* from, int64_t output) {
        const Quads both = load_raw<Quads>(from + output % kHalf * 4);
        return (SumFloats)(output < kHalf ? both << 16 : both & 0xffff0000u);
    }
};

struct WithOffsets {
    static constexpr int64_t kNumberStep = kNumberBytes, kScaleStep = kPanelWidth;
    static constexpr int kLinesAlone = kNumberBytes / kLine + 2;
    static int64_t numbers(int64_t num_groups) { return OffsetPanel{num_groups}.numbers(); }
    static int64_t scales(int64_t num_groups) { return OffsetPanel{num_groups}.scales(); }
    static SumFloats load_scales(const uint8_t* from, int64_t output) {
#if defined(__AVX512BW__)
        return (SumFloats)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(from + output))));
#else
        return __builtin_convertvector(__builtin_convertvector(load_raw<ScaleBytes>(from + output), ByteSums), SumFloats);
#endif
    }
};

// A scale's unit has the upper half of an output's word; what turns products with offsets into that unit has the lower.
inline Quads load_units(const TileTask& task, int v) {
    return load_raw<Quads>(task.panel + (task.output + v * kByteLanes) * 4);
}

// Offsets were moved up by 128.
inline Quads load_moved_up(const uint8_t* from) {
    const Quads quads = load_raw<Quads>(from);
    return kMultipliesSigned ? quads ^ 0x80808080u : quads;
}

inline const QuantizedRow& header_of(const TileTask& task, int64_t row) {
    return *(const QuantizedRow*)(task.rows + row * task.row_bytes);
}

template <int Rows>
inline __attribute__((always_inline)) void add_offsets(const TileTask& task, SumFloats (&totals)[Rows][kVectors]) {
    constexpr Sign sign = Sign::rows;
    const uint8_t* rows = group_sums(task.rows, task.num_groups * kGroupSize);
    const uint8_t* columns = task.panel + OffsetPanel{task.num_groups}.offsets() + task.output * 4;
    ByteSums sums[Rows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[r][v] = ByteSums{} + header_of(task, r).sum_start;
    for (int64_t group = 0; group < task.num_groups; group += 4, columns += kQuadBytes) {
        decltype(prepared_columns<sign>(Quads{})) prepared[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
            prepared[v] = prepared_columns<sign>(load_moved_up(columns + v * kByteLanes * 4));
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const auto row = prepared_row<sign>(load_raw<uint32_t>(rows + r * task.row_bytes + group));
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) add_products<sign>(sums[r][v], prepared[v], row);
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
        const SumFloats ratios = (SumFloats)(load_units(task, v) << 16);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
            totals[r][v] = __builtin_convertvector(sums[r][v], SumFloats) * ratios * header_of(task, r).sum_scale;
    }
}

template <int Rows, class Layout>
inline __attribute__((always_inline)) void store_results(const TileTask& task, const SumFloats (&totals)[Rows][kVectors]) {
    constexpr bool kHasOffsets = std::is_same_v<Layout, WithOffsets>;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
        SumFloats units = SumFloats{} + 1.0f;
        if constexpr (kHasOffsets) units = (SumFloats)(load_units(task, v) & 0xffff0000u);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const SumFloats result = (kHasOffsets ? totals[r][v] * units : totals[r][v]) * header_of(task, r).scale;
            std::memcpy(task.out + r * task.out_stride + v * kByteLanes, &result, sizeof(result));
        }
    }
}

template <int Rows, class Layout>
__attribute__((noinline)) void multiply_tile(const TileTask& task) {
    constexpr Sign sign = Sign::rows;
    constexpr bool kHasOffsets = std::is_same_v<Layout, WithOffsets>;
    // With registers of sixteen lanes a tile is the whole panel.
    const int64_t output = kStep == kPanelWidth ? 0 : task.output, row_bytes = task.row_bytes;
    const uint8_t* numbers = quantized_numbers(task.rows);
    const uint8_t* starts = (const uint8_t*)group_offsets(task.rows, task.num_groups * kGroupSize);
    const uint8_t* scales_at = task.panel + Layout::scales(task.num_groups);
    const uint8_t* columns = task.panel + Layout::numbers(task.num_groups);
    const char* ahead = task.ahead;
    SumFloats totals[Rows][kVectors] = {};
    if constexpr (kHasOffsets) add_offsets(task, totals);
    for (const uint8_t* end = columns + task.num_groups * Layout::kNumberStep; columns < end;) {
        ByteSums sums[Rows][kVectors];
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) sums[r][v] = ByteSums{} + load_raw<int32_t>(starts + r * row_bytes);
#pragma GCC unroll 8
        for (int quad = 0; quad < kQuadsPerHalf; ++quad) {
            decltype(prepared_columns<sign>(Quads{})) first[kVectors], second[kVectors];
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) {
                const Quads both = load_raw<Quads>(columns + quad * kQuadBytes + (output + v * kByteLanes) * 4);
                first[v] = prepared_columns<sign>(both & 0x0f0f0f0fu);
                second[v] = prepared_columns<sign>(both >> 4 & 0x0f0f0f0fu);
            }
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                const auto row = prepared_row<sign>(load_raw<uint32_t>(numbers + r * row_bytes + quad * 4));
#pragma GCC unroll 8
                for (int v = 0; v < kVectors; ++v) add_products<sign>(sums[r][v], first[v], row);
            }
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                const auto row = prepared_row<sign>(load_raw<uint32_t>(numbers + r * row_bytes + kHalf + quad * 4));
#pragma GCC unroll 8
                for (int v = 0; v < kVectors; ++v) add_products<sign>(sums[r][v], second[v], row);
            }
        }
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
            const SumFloats scales = Layout::load_scales(scales_at, output + v * kByteLanes);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) totals[r][v] += __builtin_convertvector(sums[r][v], SumFloats) * scales;
        }
        numbers += kGroupSize;
        starts += sizeof(int32_t);
        columns += Layout::kNumberStep;
        scales_at += Layout::kScaleStep;
        if (task.is_alone)
            fetch<Layout::kLinesAlone * kLine>(ahead);
        else
            fetch<kLinesPerGroup * kLine>(ahead);
        if (kMoreLines && task.has_more) fetch<kMoreLines * kLine>(ahead + kLinesPerGroup * kLine);
        ahead += task.ahead_step;
    }
    store_results<Rows, Layout>(task, totals);
}

#if defined(__AVX2__)
// Without an instruction for four products: two products of a number without sign, at most 15, and one of eight bits are added
// at once, in sixteen bits, which hold all of a group: 8 x 2 x 15 x 127 < 2^15.
template <int Rows, class Layout>
__attribute__((noinline)) void multiply_short_tile(const TileTask& task) {
    constexpr bool kHasOffsets = std::is_same_v<Layout, WithOffsets>;
    const int64_t row_bytes = task.row_bytes;
    const uint8_t* numbers = quantized_numbers(task.rows);
    const uint8_t* starts = (const uint8_t*)group_offsets(task.rows, task.num_groups * kGroupSize);
    const uint8_t* scales_at = task.panel + Layout::scales(task.num_groups);
    const uint8_t* columns = task.panel + Layout::numbers(task.num_groups) + task.output * 4;
    const char* ahead = task.ahead;
    const __m256i low_bits = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    SumFloats totals[Rows][kVectors] = {};
    if constexpr (kHasOffsets) add_offsets(task, totals);
    for (int64_t group = 0; group < task.num_groups; ++group) {
        __m256i sums[Rows][kVectors];
#pragma GCC unroll 8
        for (int quad = 0; quad < kQuadsPerHalf; ++quad) {
            __m256i first[kVectors], second[kVectors];
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) {
                const __m256i both = _mm256_loadu_si256((const __m256i*)(columns + quad * kQuadBytes + v * 32));
                first[v] = _mm256_and_si256(both, low_bits);
                second[v] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_bits);
            }
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                const uint8_t* at = numbers + r * row_bytes + quad * 4;
                const __m256i row = _mm256_set1_epi32(load_raw<int32_t>(at)), behind = _mm256_set1_epi32(load_raw<int32_t>(at + kHalf));
#pragma GCC unroll 8
                for (int v = 0; v < kVectors; ++v) {
                    const __m256i products = _mm256_maddubs_epi16(first[v], row);
                    sums[r][v] = quad == 0 ? products : _mm256_add_epi16(sums[r][v], products);
                    sums[r][v] = _mm256_add_epi16(sums[r][v], _mm256_maddubs_epi16(second[v], behind));
                }
            }
        }
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
            const SumFloats scales = Layout::load_scales(scales_at, task.output + v * kByteLanes);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                const __m256i start = _mm256_set1_epi32(load_raw<int32_t>(starts + r * row_bytes));
                const __m256i whole = _mm256_add_epi32(_mm256_madd_epi16(sums[r][v], ones), start);
                totals[r][v] += (SumFloats)_mm256_cvtepi32_ps(whole) * scales;
            }
        }
        numbers += kGroupSize;
        starts += sizeof(int32_t);
        columns += Layout::kNumberStep;
        scales_at += Layout::kScaleStep;
        fetch<kLinesPerGroup * kLine>(ahead);
        ahead += task.ahead_step;
    }
    store_results<Rows, Layout>(task, totals);
}
#endif

template <int Rows, class Layout>
void multiply(const TileTask& task) {
#if defined(__AVX2__)
    if constexpr (kHasWideNumbers) return multiply_short_tile<Rows, Layout>(task);
#endif
    if constexpr (!kHasWideNumbers) multiply_tile<Rows, Layout>(task);
}

template <class Layout>
void multiply_panels(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums) {
    const int64_t width = num_panels * kPanelWidth;
    const int64_t num_groups = padded_width(weight.format, weight.in_features) / kGroupSize;
    const int64_t panel_bytes = Layout::numbers(num_groups) + num_groups * Layout::kNumberStep;
    const RowTiles tiles(rows.num_rows, kMostRows);
    const bool is_alone = tiles.count == 1 && kStep == kPanelWidth;
    const int64_t distance = weight.prefetch_distance(rows.num_rows, kAhead, kAhead);
    const int64_t lines = kLinesPerGroup + (tiles.count == 2 ? kMoreLines : 0);
    for (int64_t p = 0; p < num_panels; ++p) {
        const uint8_t* at = weight.panels + (panel + p) * panel_bytes;
        // The next panel, some of it in each tile.
        const char *ahead = (const char*)at + panel_bytes, *ahead_end = ahead + panel_bytes;
        for (int64_t output = 0; output < kPanelWidth; output += kStep)
            for (int64_t row = 0, end; row < rows.num_rows; row = end) {
                end = tiles.end_of(row);
                const TileTask task = {rows.rows + row * rows.row_bytes,
                                       rows.row_bytes,
                                       at,
                                       num_groups,
                                       output,
                                       sums + row * width + p * kPanelWidth + output,
                                       width,
                                       is_alone,
                                       tiles.count == 2,
                                       is_alone ? (const char*)at + distance : ahead,
                                       is_alone           ? rounded_up(panel_bytes / std::max<int64_t>(num_groups, 1), kLine)
                                       : ahead < ahead_end ? lines * kLine
                                                           : 0};
                with_rows<kMostRows>(end - row, [&](auto count) { multiply<count, Layout>(task); });
                ahead += num_groups * task.ahead_step;
            }
    }
}

}  // namespace

void int4_dynamic_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums) {
    const auto multiply = weight.has_offsets ? multiply_panels<WithOffsets> : multiply_panels<Blocks>;
    multiply(weight, rows, panel, num_panels, sums);
}

}  // namespace rayinfer
