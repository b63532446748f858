// Products of weights of four bits in groups with rows of eight bits.
//
// A group's sum is an exact integer; times its scale, which has few digits, it is an exact float32. So only the additions
// of groups round, and they are done in the order of groups.

#include "byte_sums.h"
#include "panel_products.h"
#include "row_buffer.h"

namespace rayinfer {
namespace {

// Of each block (see int4_blocks.py), where there are many rows: its numbers one to a byte, [8, 32, 4], and its scales.
struct WideBlock {
    uint8_t numbers[kGroupSize * kPanelWidth];
    float scales[kPanelWidth];
};

struct PackedBlock {
    uint8_t numbers[kGroupSize * kPanelWidth / 2];
    uint32_t scales[kPanelWidth / 2];  // of output n in the lower half, of output n + 16 in the upper half
};
static_assert(sizeof(PackedBlock) == 576);

constexpr int64_t kHalf = kPanelWidth / 2;
constexpr int kQuadsPerHalf = 4;
constexpr int kQuadBytes = kPanelWidth * 4;
constexpr int kVectors = 2;
constexpr int64_t kStep = kVectors * kByteLanes;  // outputs of a tile

inline SumFloats scales_of(const PackedBlock& block, int64_t output) {
    const Quads both = load_raw<Quads>(block.scales + output % kHalf);
    return (SumFloats)(output < kHalf ? both << 16 : both & 0xffff0000u);
}
inline SumFloats scales_of(const WideBlock& block, int64_t output) { return load_raw<SumFloats>(block.scales + output); }

// Four inputs from the group's first half and four from its second.
struct TwoQuads {
    Quads first, second;
};
inline TwoQuads numbers_of(const PackedBlock& block, int quad, int64_t output) {
    const Quads both = load_raw<Quads>(block.numbers + quad * kQuadBytes + output * 4);
    return {both & 0x0f0f0f0fu, both >> 4 & 0x0f0f0f0fu};
}
inline TwoQuads numbers_of(const WideBlock& block, int quad, int64_t output) {
    const uint8_t* first = block.numbers + quad * kQuadBytes + output * 4;
    return {load_raw<Quads>(first), load_raw<Quads>(first + kQuadsPerHalf * kQuadBytes)};
}

template <class Block>
struct TileTask {
    const uint8_t* rows;
    int64_t row_bytes;
    const Block* blocks;
    int64_t num_groups;
    int64_t output;  // the first of the tile's, in the panel
    float* out;
    int64_t out_stride;
};

template <class Block, int Rows>
__attribute__((noinline)) void multiply_tile(const TileTask<Block>& task) {
    constexpr Sign sign = Sign::rows;
    // With registers of sixteen lanes a tile is the whole panel.
    const int64_t output = kStep == kPanelWidth ? 0 : task.output, row_bytes = task.row_bytes;
    const uint8_t* numbers = quantized_numbers(task.rows);
    const uint8_t* offsets = (const uint8_t*)group_offsets(task.rows, task.num_groups * kGroupSize);
    SumFloats totals[Rows][kVectors] = {};
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
                const TwoQuads both = numbers_of(*block, quad, output + v * kByteLanes);
                first[v] = prepared_columns<sign>(both.first);
                second[v] = prepared_columns<sign>(both.second);
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

template <class Block>
void multiply_rows(int64_t num_rows, const TileTask<Block>& task) {
    constexpr int most = kByteTileRows;
    switch (num_rows) {
        case 1: return multiply_tile<Block, 1>(task);
        case 2: return multiply_tile<Block, 2>(task);
        case 3: return multiply_tile<Block, 3>(task);
        case 4: return multiply_tile<Block, 4>(task);
        case 5: return multiply_tile<Block, most < 5 ? most : 5>(task);
        default: return multiply_tile<Block, most>(task);
    }
}

template <class Block>
void multiply_panel(RowTile rows, const Block* blocks, int64_t num_groups, float* sums, int64_t width) {
    const int64_t num_tiles = (rows.num_rows + kByteTileRows - 1) / kByteTileRows;
    for (int64_t output = 0; output < kPanelWidth; output += kStep)
        for (int64_t tile = 0; tile < num_tiles; ++tile) {
            const int64_t row = rows.num_rows * tile / num_tiles, end = rows.num_rows * (tile + 1) / num_tiles;
            multiply_rows<Block>(end - row, {rows.rows + row * rows.row_bytes, rows.row_bytes, blocks, num_groups, output,
                                             sums + row * width + output, width});
        }
}

void widen(const PackedBlock& from, WideBlock& to) {
    for (int64_t i = 0; i < kQuadsPerHalf * kQuadBytes; i += sizeof(Word)) {
        const Word both = load_raw<Word>(from.numbers + i);
        const Word first = both & 0x0f0f0f0fu, second = both >> 4 & 0x0f0f0f0fu;
        std::memcpy(to.numbers + i, &first, sizeof(Word));
        std::memcpy(to.numbers + kQuadsPerHalf * kQuadBytes + i, &second, sizeof(Word));
    }
    for (int64_t i = 0; i < kPanelWidth; i += kByteLanes) {
        const SumFloats scales = scales_of(from, i);
        std::memcpy(to.scales + i, &scales, sizeof(scales));
    }
}

}  // namespace

void int4_dynamic_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums) {
    const int64_t width = num_panels * kPanelWidth;
    const int64_t num_groups = padded_width(weight.format, weight.in_features) / kGroupSize;
    for (int64_t p = 0; p < num_panels; ++p) {
        const PackedBlock* blocks = (const PackedBlock*)weight.panels + (panel + p) * num_groups;
        if (rows.num_rows <= kByteTileRows) {
            multiply_panel(rows, blocks, num_groups, sums + p * kPanelWidth, width);
            continue;
        }
        thread_local RowBuffer buffer;
        WideBlock* wide = (WideBlock*)buffer.at_least(num_groups * (int64_t)sizeof(WideBlock));
        for (int64_t group = 0; group < num_groups; ++group) widen(blocks[group], wide[group]);
        multiply_panel(rows, wide, num_groups, sums + p * kPanelWidth, width);
    }
}

}  // namespace rayinfer
