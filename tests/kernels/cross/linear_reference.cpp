#include "linear_reference.h"

#include <algorithm>

namespace {

constexpr double kEpsilon = 0x1p-24;

std::vector<double> rounded_sums(const std::vector<int64_t>& sums, double scale) {
    int64_t largest = 0;
    for (int64_t sum : sums) largest = std::max(largest, std::abs(sum));
    const float inverse = largest > 0 ? 127.0f / (float)largest : 0.0f, unit = (float)largest / 127.0f;
    std::vector<double> rounded;
    for (int64_t sum : sums) rounded.push_back(std::nearbyint((float)sum * inverse) * (double)unit * scale);
    return rounded;
}

// A sum, and what it may be off by.
Expected sum_of(const TestWeight& weight, int64_t output, const EncodedRow& row) {
    const WeightShape& shape = weight.shape;
    double sum = 0.0, size = 0.0;
    for (int64_t i = 0; i < shape.in_features; ++i) {
        const double product = weight.at(output, i) * row.numbers[(size_t)i];
        sum += product, size += std::fabs(product);
    }
    if (!weight.offsets.empty())
        for (int64_t group = 0; group < shape.num_groups(); ++group) {
            const double product = weight.offsets[output * shape.num_groups() + group] * row.group_sums[(size_t)group];
            sum += product, size += std::fabs(product);
        }
    if (shape.format == Format::int8_dynamic) return {sum, 4 * kEpsilon * std::fabs(sum)};
    if (shape.format == Format::int4_dynamic) return {sum, (double)(shape.num_groups() + 4) * kEpsilon * size};
    return {sum, (8 + 2 * std::sqrt((double)shape.in_features)) * kEpsilon * size};
}

}  // namespace

EncodedRow encode(const WeightShape& shape, const std::vector<float>& row) {
    EncodedRow encoded;
    encoded.numbers.assign(row.begin(), row.end());
    if (!shape.is_dynamic()) return encoded;
    float largest = 0.0f;
    for (float x : row) largest = std::max(largest, std::fabs(x));
    const float scale = largest / 127.0f, inverse = largest > 0 ? 127.0f / largest : 0.0f;
    std::vector<int64_t> sums((size_t)(rounded_up(shape.in_features, 32) / 32));
    for (size_t i = 0; i < row.size(); ++i) {
        const float product = row[i] * inverse;
        const double number = std::nearbyint(product);
        sums[i / 32] += (int64_t)number;
        encoded.numbers[i] = number * (double)scale;
    }
    encoded.group_sums = rounded_sums(sums, scale);
    return encoded;
}

double activate(Activation activation, double x) {
    switch (activation) {
        case Activation::silu:
            return x / (1.0 + std::exp(-x));
        case Activation::gelu_tanh:
            return x / (1.0 + std::exp(-2.0 * 0.7978845608028654 * (x + 0.044715 * x * x * x)));
        case Activation::gelu:
            return 0.5 * x * std::erfc(-x * 0.7071067811865476);
        case Activation::relu:
            return std::max(0.0, x);
        default:
            return x;
    }
}

std::vector<Expected> expected_linear(const LinearCase& layer, const std::vector<float>& x, int64_t num_rows,
                                      double rounding) {
    const WeightShape& shape = layer.weight.shape;
    const int64_t width = shape.in_features, outputs = shape.out_features, num_sums = shape.num_rows();
    std::vector<Expected> expected, sums((size_t)num_sums);
    for (int64_t r = 0; r < num_rows; ++r) {
        const EncodedRow row = encode(shape, {x.begin() + r * width, x.begin() + (r + 1) * width});
        for (int64_t output = 0; output < num_sums; ++output) {
            Expected& sum = sums[(size_t)output] = sum_of(layer.weight, output, row);
            if (!layer.terms.empty()) {
                const Expected& term = layer.terms[(size_t)(r * num_sums + output)];
                sum.value += term.value, sum.tolerance += term.tolerance + kEpsilon * std::fabs(sum.value);
            }
            if (layer.bias.empty()) continue;
            sum.value += layer.bias[(size_t)output];
            sum.tolerance += kEpsilon * std::fabs(sum.value);
        }
        for (int64_t output = 0; output < outputs; ++output) {
            const Expected gate = sums[(size_t)output],
                           up = shape.is_gated ? sums[(size_t)(output + outputs)] : Expected{1, 0};
            const double activated = activate(layer.activation, gate.value), value = activated * up.value;
            const double own = layer.activation == Activation::none ? 0.0 : 2e-6 * std::fabs(value);
            const double slope = layer.activation == Activation::none ? 1.0 : 1.2;  // the steepest of all
            expected.push_back({value, slope * gate.tolerance * std::fabs(up.value) +
                                           std::fabs(activated) * up.tolerance + own + rounding * std::fabs(value) +
                                           1e-30});
        }
    }
    return expected;
}
