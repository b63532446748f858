// What a linear layer multiplies by, as packed_weight.py lays it out.
#pragma once

#include <cstdint>

#include "core/lanes.h"

namespace rayinfer {

constexpr int64_t kPanelWidth = 32;  // outputs of one panel
constexpr int64_t kGroupSize = 32;   // inputs that share a scale where weights have four bits
constexpr int64_t kFewPrefetchRows = 4;  // the same as rayinfer_kernels/packed_weight.py's

// The numbers are packed_weight.py's.
enum class Format : int32_t {
    float32 = 0,
    bfloat16 = 1,
    int8 = 2,          // weights of eight bits, rows as the model has them
    int8_dynamic = 3,  // the same weights, and rows of eight bits that are quantized when they are encoded
    int4_dynamic = 4,  // weights of four bits in groups, rows of eight
    // Rows as the model has them, and weights in groups with scales of float32: codes of a published checkpoint.
    int4_groups = 6,
    int8_groups = 7,
    float8_groups = 8,
    table4_groups = 9,
};

// Passed from Python by pointer: the order and the types of its fields are those of `kernels.py`.
struct Weight {
    const uint8_t* panels;    // see panel_bytes
    const float* scales;      // [num_panels x 32], of formats with eight bits
    const int32_t* sums;      // [num_panels x 32], of each output's weights of eight bits
    int64_t in_features;
    int64_t out_features;     // a gated weight's are those of one half
    Format format;
    int32_t is_gated;         // panels of gate and up alternate, each half padded to whole panels
    int32_t has_offsets;      // of int4_dynamic: its panels are an OffsetPanel's; of groups: offsets stand behind scales
    int32_t group_size;       // inputs of a group, of the formats with groups of any size
    const float* table;       // [16], of table4_groups
    // Bytes from a read of panels that one tile alone reads to its prefetch, with few rows and with more; 0: the default.
    int32_t prefetch_few_rows, prefetch_more_rows;

    int64_t panels_per_half() const { return (out_features + kPanelWidth - 1) / kPanelWidth; }
    int64_t num_panels() const { return panels_per_half() * (is_gated ? 2 : 1); }
    int64_t prefetch_distance(int64_t num_rows, int64_t of_few_rows, int64_t of_more_rows) const {
        if (num_rows <= kFewPrefetchRows) return prefetch_few_rows > 0 ? prefetch_few_rows : of_few_rows;
        return prefetch_more_rows > 0 ? prefetch_more_rows : of_more_rows;
    }
};

inline int64_t rounded_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// Where the parts of a panel of four bits with offsets begin; see int4_blocks.py.
struct OffsetPanel {
    int64_t num_groups;
    int64_t offsets() const { return kPanelWidth * 4; }  // behind each output's units
    int64_t scales() const { return offsets() + rounded_up(num_groups, 4) * kPanelWidth; }
    int64_t numbers() const { return scales() + rounded_up(num_groups, 2) * kPanelWidth; }
    int64_t bytes() const { return numbers() + num_groups * (kGroupSize / 2) * kPanelWidth; }
};

// Bytes of one panel: 32 outputs for all inputs, padded to whole steps of the format; of four bits, without offsets.
inline int64_t panel_bytes(Format format, int64_t in_features) {
    switch (format) {
        case Format::float32: return in_features * kPanelWidth * 4;
        case Format::bfloat16: return rounded_up(in_features, 2) * kPanelWidth * 2;
        case Format::int8:
        case Format::int8_dynamic: return rounded_up(in_features, 4) * kPanelWidth;
        // Of each group, half a byte for every weight and a scale of bfloat16 for every output.
        case Format::int4_dynamic: return rounded_up(in_features, kGroupSize) / kGroupSize * (kGroupSize / 2 + 2) * kPanelWidth;
        default: return 0;  // see panel_bytes_of_groups
    }
}

// The same of formats with groups of any size: scales, offsets if any, and codes of each group; see group_blocks.py.
inline int64_t panel_bytes_of_groups(const Weight& weight) {
    const bool is_four_bit = weight.format == Format::int4_groups || weight.format == Format::table4_groups;
    const int64_t scales = weight.in_features / weight.group_size * (weight.has_offsets ? 8 : 4);
    return (scales + weight.in_features / (is_four_bit ? 2 : 1)) * kPanelWidth;
}

}  // namespace rayinfer
