// One linear layer for several numbers of rows and threads.
#pragma once

#include <algorithm>

#include "linear_reference.h"

constexpr int64_t kMostRows = 100;
constexpr int64_t kRowCounts[] = {1, 2, 3, 4, 5, 6, 7, 16, 64, kMostRows};

template <class T>
std::vector<float> to_floats(const std::vector<T>& numbers) {
    std::vector<float> floats(numbers.size());
    std::transform(numbers.begin(), numbers.end(), floats.begin(), [](T x) { return to_float(x); });
    return floats;
}

// Weights in groups are rounded to the model's type before they are multiplied.
template <class T>
void round_weights(TestWeight& weight) {
    if (weight.shape.format < Format::int4_groups) return;
    for (double& each : weight.dense) each = to_float(to_number<T>((float)each));
}

struct Adapters {
    const LowRankAdapter* table = nullptr;
    const int32_t* slots = nullptr;
    int64_t width = 0;
};

// All rows are held against the reference, and any first few against all, to the bit.
template <class T>
void check_linear(const std::string& name, const LinearCase& layer, const std::vector<T>& x, const std::vector<T>& bias,
                  Adapters adapters = {}) {
    const WeightShape& shape = layer.weight.shape;
    const std::string what = name + " " + type_name<T> + " " + shape.name();
    const Weight weight = layer.weight.argument();
    const int64_t stride = shape.in_features + 2;
    std::vector<T> rows((size_t)(kMostRows * stride)), all((size_t)(kMostRows * shape.out_features)), some(all);
    for (int64_t r = 0; r < kMostRows; ++r)
        std::copy_n(x.begin() + r * shape.in_features, shape.in_features, rows.begin() + r * stride);
    auto run = [&](std::vector<T>& out, int64_t num_rows, int num_threads) {
        kernel::linear<T>(rows.data(), stride, &weight, bias.empty() ? nullptr : bias.data(), (int32_t)layer.activation,
                          adapters.table, adapters.slots, adapters.width, out.data(), num_rows, num_threads);
    };
    run(all, kMostRows, 1);
    check_near(what, all.data(), expected_linear(layer, to_floats(x), kMostRows, kRounding<T>));
    for (int num_threads : {1, 2})
        for (int64_t num_rows : kRowCounts) {
            std::fill(some.begin(), some.end(), T{});
            run(some, num_rows, num_threads);
            check_same_bits(what + ", rows: " + std::to_string(num_rows), some.data(), all.data(),
                            num_rows * shape.out_features);
        }
}

template <class T>
void check_linear(const std::string& name, const WeightShape& shape, bool has_bias, Activation activation,
                  uint64_t seed) {
    Generator generator(seed);
    TestWeight weight = make_weight(shape, generator);
    round_weights<T>(weight);
    auto x = generator.numbers<T>(kMostRows * shape.in_features);
    // All of one row are the extremes of eight bits.
    std::fill_n(x.begin() + 3 * shape.in_features, shape.in_features, to_number<T>(1.5f));
    const auto bias = has_bias ? generator.numbers<T>(shape.num_rows()) : std::vector<T>();
    std::vector<double> wide;
    for (T each : bias) wide.push_back(to_float(each));
    check_linear<T>(name, LinearCase{weight, wide, activation}, x, bias);
}
