// Weights in the layouts that packed_weight.py, int4_blocks.py and group_blocks.py describe, beside the same in double.
#pragma once

#include <string>
#include <vector>

#include "entry_points.h"

struct WeightShape {
    Format format;
    int64_t in_features, out_features;  // a gated weight's are those of one half
    bool is_gated = false, has_offsets = false;
    int64_t group_size = 32;

    int64_t num_rows() const { return out_features * (is_gated ? 2 : 1); }
    int64_t num_groups() const { return (in_features + group_size - 1) / group_size; }
    bool is_dynamic() const { return format == Format::int8_dynamic || format == Format::int4_dynamic; }
    std::string name() const;
};

// A matrix [num_rows, in_features]: the gate's rows before those that it is multiplied with.
struct TestWeight {
    WeightShape shape;
    std::vector<double> dense;    // what each weight stands for, without the offsets below
    std::vector<double> offsets;  // [num_rows, num_groups] of int4_dynamic; empty: none
    std::vector<uint8_t> panels;
    std::vector<float> scales, table;
    std::vector<int32_t> sums;

    Weight argument() const;
    double at(int64_t row, int64_t input) const { return dense[row * shape.in_features + input]; }
    // Where a row's numbers lie.
    int64_t panel_of(int64_t row) const;
    int64_t column_of(int64_t row) const { return row % shape.out_features % 32; }
    int64_t num_panels() const { return rounded_up(shape.out_features, 32) / 32 * (shape.is_gated ? 2 : 1); }
};

// Of T, where the format is the model's own type.
TestWeight make_weight(const WeightShape& shape, Generator& generator);
