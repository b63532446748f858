// Linear layers in double, and how far from them a result may be.
#pragma once

#include "checks.h"
#include "weights.h"

// Rows as a product reads them: those of dynamic formats are rounded to eight bits.
struct EncodedRow {
    std::vector<double> numbers;
    std::vector<double> group_sums;  // of numbers, rounded to eight bits
};

EncodedRow encode(const WeightShape& shape, const std::vector<float>& row);

double activate(Activation activation, double x);

struct LinearCase {
    const TestWeight& weight;
    std::vector<double> bias;  // [num_rows of the weight]; empty: none
    Activation activation = Activation::none;
    std::vector<Expected> terms = {};  // [num_rows of x, num_rows of the weight], added to the sums; empty: none
};

// What a layer of the model's type T makes of rows [num_rows, in_features]; `rounding` is T's.
std::vector<Expected> expected_linear(const LinearCase& layer, const std::vector<float>& x, int64_t num_rows,
                                      double rounding);
