// Products of weights of four bits in groups with rows of eight bits.
//
// A group's sum is an exact integer; times its scale, which has few digits, it is an exact float32. So only the additions
// of groups round, and they are done in the order of groups.

#include "gemm/byte_sums.h"
#include "core/fetch_ahead.h"
#include "gemm/panel_products.h"
#include "gemm/row_tiles.h"

namespace rayinfer {
namespace {

// See int4_blocks.py.
struct Block {
    uint8_t numbers[kGroupSize * kPanelWidth / 2];
    uint32_t scales[kPanelWidth / 2];  // of output n in the lower half, of output n + 16 in the upper half
};
static_assert(sizeof(Block) == 576);

constexpr int64_t kHalf = kPanelWidth / 2;
constexpr int kQuadsPerHalf = 4;
constexpr int kQuadBytes = kPanelWidth * 4;
constexpr int kVectors = 2;
constexpr int kLinesPerGroup = 3;
constexpr int64_t kStep = kVectors * kByteLanes;  // outputs of a tile
// Each of a tile's sums is kept as an integer and as a float.
constexpr int64_t kMostRows = kByteLanes < 16 ? 2 : RAYINFER_HAS_BYTE_DOTS ? 6 : 3;

inline SumFloats scales_of(const Block& block, int64_t output) {
    const Quads both = load_raw<Quads>(block.scales + output % kHalf);
    return (SumFloats)(output < kHalf ? both << 16 : both & 0xffff0000u);
}

// What groups add to the weights of a tile's outputs, with eight bits; multiplied by the sums of groups.
struct Offsets {
    const int8_t* columns;  // null where there are none
    int64_t num_quads;      // of groups
    const int32_t* column_sums;
    const float* scales;
};

struct TileTask {
    const uint8_t* rows;
    int64_t row_bytes;
    const Block* blocks;
    Offsets offsets;
    int64_t num_groups;
    int64_t output;  // the first of the tile's, in the panel
    float* out;
    int64_t out_stride;
    bool is_alone;      // no other tile reads the same blocks
    const char* ahead;  // what to fetch if it is not, some lines for each group
    int64_t ahead_step;
};

template <int Rows>
inline __attribute__((always_inline)) void add_offsets(const TileTask& task, SumFloats (&totals)[Rows][kVectors]) {
    constexpr Sign sign = Sign::columns;
    const Offsets& offsets = task.offsets;
    const uint8_t* rows = group_sums(task.rows, task.num_groups * kGroupSize);
    ByteSums sums[Rows][kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
        const ByteSums moved = load_raw<ByteSums>(offsets.column_sums + v * kByteLanes) * -128;
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) sums[r][v] = moved;
    }
    for (int64_t quad = 0; quad < offsets.num_quads; ++quad) {
        decltype(prepared_columns<sign>(Quads{})) columns[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
            columns[v] = prepared_columns<sign>(load_raw<Quads>(offsets.columns + quad * kQuadBytes + v * kByteLanes * 4));
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const uint8_t* numbers = quantized_numbers(rows + r * task.row_bytes) + quad * 4;
            const auto row = prepared_row<sign>(load_raw<uint32_t>(numbers));
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) add_products<sign>(sums[r][v], columns[v], row);
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
        const SumFloats scales = load_raw<SumFloats>(offsets.scales + v * kByteLanes);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const float row_scale = ((const QuantizedRow*)(rows + r * task.row_bytes))->scale;
            totals[r][v] = __builtin_convertvector(sums[r][v], SumFloats) * scales * row_scale;
        }
    }
}

template <int Rows>
__attribute__((noinline)) void multiply_tile(const TileTask& task) {
    constexpr Sign sign = Sign::rows;
    // With registers of sixteen lanes a tile is the whole panel.
    const int64_t output = kStep == kPanelWidth ? 0 : task.output, row_bytes = task.row_bytes;
    const uint8_t* numbers = quantized_numbers(task.rows);
    const uint8_t* offsets = (const uint8_t*)group_offsets(task.rows, task.num_groups * kGroupSize);
    const char* ahead = task.ahead;
    SumFloats totals[Rows][kVectors] = {};
    if (task.offsets.columns) add_offsets(task, totals);
    for (const Block *block = task.blocks, *end = block + task.num_groups; block < end; ++block) {
        ByteSums sums[Rows][kVectors];
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) sums[r][v] = ByteSums{} + load_raw<int32_t>(offsets + r * row_bytes);
#pragma GCC unroll 8
        for (int quad = 0; quad < kQuadsPerHalf; ++quad) {
            decltype(prepared_columns<sign>(Quads{})) first[kVectors], second[kVectors];
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) {
                const Quads both =
                    load_raw<Quads>(block->numbers + quad * kQuadBytes + (output + v * kByteLanes) * 4);
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
            const SumFloats scales = scales_of(*block, output + v * kByteLanes);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) totals[r][v] += __builtin_convertvector(sums[r][v], SumFloats) * scales;
        }
        numbers += kGroupSize;
        offsets += sizeof(int32_t);
        if (task.is_alone)
            fetch<sizeof(Block)>((const char*)block + 2 * kStreamAhead);  // at this distance it measured fastest
        else
            fetch<kLinesPerGroup * kLine>(ahead);
        ahead += task.ahead_step;
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        const float row_scale = ((const QuantizedRow*)(task.rows + r * row_bytes))->scale;
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
            const SumFloats result = totals[r][v] * row_scale;
            std::memcpy(task.out + r * task.out_stride + v * kByteLanes, &result, sizeof(result));
        }
    }
}

inline Offsets offsets_of(const Weight* weight, int64_t panel, int64_t output) {
    if (!weight) return {};
    const int64_t column = panel * kPanelWidth + output;
    return {(const int8_t*)weight->panels + panel * panel_bytes(weight->format, weight->in_features) + output * 4,
            padded_width(weight->format, weight->in_features) / 4, weight->sums + column, weight->scales + column};
}

inline void fetch_lines(const void* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += kLine) fetch<kLine>((const char*)from + i);
}

// A panel's offsets: too little for the processor to follow by itself.
inline void fetch_offsets(const Weight* weight, int64_t panel) {
    if (!weight) return;
    const Offsets offsets = offsets_of(weight, panel, 0);
    fetch_lines(offsets.columns, offsets.num_quads * kQuadBytes);
    fetch_lines(offsets.column_sums, kPanelWidth * sizeof(int32_t));
    fetch_lines(offsets.scales, kPanelWidth * sizeof(float));
}

}  // namespace

void int4_dynamic_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums) {
    const int64_t width = num_panels * kPanelWidth;
    const int64_t num_groups = padded_width(weight.format, weight.in_features) / kGroupSize;
    const RowTiles tiles(rows.num_rows, kMostRows);
    for (int64_t p = 0; p < num_panels; ++p) {
        const Block* blocks = (const Block*)weight.panels + (panel + p) * num_groups;
        fetch_offsets(weight.offsets, panel + p + 1);
        // The next panel, some of it in each tile.
        const char *ahead = (const char*)(blocks + num_groups), *ahead_end = ahead + num_groups * sizeof(Block);
        for (int64_t output = 0; output < kPanelWidth; output += kStep)
            for (int64_t row = 0, end; row < rows.num_rows; row = end) {
                end = tiles.end_of(row);
                const TileTask task = {rows.rows + row * rows.row_bytes,
                                       rows.row_bytes,
                                       blocks,
                                       offsets_of(weight.offsets, panel + p, output),
                                       num_groups,
                                       output,
                                       sums + row * width + p * kPanelWidth + output,
                                       width,
                                       tiles.count == 1 && kStep == kPanelWidth,
                                       ahead,
                                       ahead < ahead_end ? kLinesPerGroup * kLine : 0};
                with_rows<kMostRows>(end - row, [&](auto count) { multiply_tile<count>(task); });
                ahead += num_groups * task.ahead_step;
            }
    }
}

}  // namespace rayinfer
