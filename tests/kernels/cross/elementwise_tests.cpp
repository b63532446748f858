// Norms, gates, rotations, and the choice of the greatest number.

#include <algorithm>
#include <functional>

#include "checks.h"
#include "entry_points.h"
#include "linear_reference.h"

namespace {

constexpr int64_t kWidths[] = {1, 3, 8, 33, 64, 130, 576};
constexpr int64_t kNumRows = 9;
constexpr double kEpsilon = 0x1p-24;

template <class T>
std::string named(const char* name, int64_t width) {
    return std::string(name) + " " + type_name<T> + ", width " + std::to_string(width);
}

// Runs by one thread and by two, and compares both.
template <class T>
void check_rows(const std::string& what, int64_t size, const std::vector<Expected>& expected,
                const std::function<void(T*, int)>& run) {
    std::vector<T> out((size_t)size), others((size_t)size);
    run(out.data(), 1);
    run(others.data(), 2);
    check_near(what, out.data(), expected);
    check_same_bits(what, out.data(), others.data(), size);
}

template <class T>
void test_rms_norm(int64_t width, bool unit_offset, bool has_residual) {
    Generator generator((uint64_t)width);
    const auto x = generator.numbers<T>(kNumRows * width), residual = generator.numbers<T>(kNumRows * width);
    const auto weight = generator.numbers<T>(width);
    std::vector<Expected> expected;
    for (int64_t r = 0; r < kNumRows; ++r) {
        std::vector<double> row;
        double squares = 0.0;
        for (int64_t i = 0; i < width; ++i) {
            double value = to_float(x[(size_t)(r * width + i)]);
            if (has_residual)
                value = to_float(to_number<T>((float)value + to_float(residual[(size_t)(r * width + i)])));
            row.push_back(value);
            squares += value * value;
        }
        const double factor = 1.0 / std::sqrt(squares / (double)width + 1e-5);
        for (int64_t i = 0; i < width; ++i) {
            const double scale = to_float(weight[(size_t)i]) + (unit_offset ? 1.0 : 0.0),
                         value = row[(size_t)i] * factor * scale;
            expected.push_back({value, (20 * kEpsilon + 2 * kRounding<T>)*std::fabs(value) + 1e-12});
        }
    }
    check_rows<T>(named<T>("RMS norm", width), kNumRows * width, expected, [&](T* out, int num_threads) {
        auto sums = residual;
        kernel::rms_norm<T>(x.data(), 1, width, 0, has_residual ? sums.data() : nullptr, weight.data(), out, kNumRows,
                            width, 1e-5f, unit_offset, num_threads);
    });
}

template <class T>
void test_layer_norm(int64_t width) {
    Generator generator((uint64_t)width);
    const auto x = generator.numbers<T>(kNumRows * width), weight = generator.numbers<T>(width);
    const auto bias = generator.numbers<T>(width);
    std::vector<Expected> expected;
    for (int64_t r = 0; r < kNumRows; ++r) {
        double mean = 0.0, squares = 0.0, largest = 0.0;
        for (int64_t i = 0; i < width; ++i) mean += to_float(x[(size_t)(r * width + i)]) / (double)width;
        for (int64_t i = 0; i < width; ++i) {
            const double distance = to_float(x[(size_t)(r * width + i)]) - mean;
            squares += distance * distance;
            largest = std::max(largest, std::fabs(distance) + std::fabs(mean));
        }
        const double factor = 1.0 / std::sqrt(squares / (double)width + 1e-5);
        for (int64_t i = 0; i < width; ++i) {
            const double scale = to_float(weight[(size_t)i]), shift = to_float(bias[(size_t)i]);
            const double value = (to_float(x[(size_t)(r * width + i)]) - mean) * factor * scale + shift;
            expected.push_back({value, 40 * kEpsilon * (largest * factor * std::fabs(scale) + std::fabs(shift)) +
                                           kRounding<T> * std::fabs(value)});
        }
    }
    check_rows<T>(named<T>("layer norm", width), kNumRows * width, expected, [&](T* out, int num_threads) {
        kernel::layer_norm<T>(x.data(), width, weight.data(), bias.data(), out, kNumRows, width, 1e-5f, num_threads);
    });
}

template <class T>
void test_gate(const char* name, Activation activation, decltype(kernel::silu_and_mul<T>) gate, int64_t width) {
    Generator generator((uint64_t)width);
    const auto x = generator.numbers<T>(kNumRows * 2 * width, 3.0f);
    std::vector<Expected> expected;
    for (int64_t r = 0; r < kNumRows; ++r)
        for (int64_t i = 0; i < width; ++i) {
            const double up = to_float(x[(size_t)(r * 2 * width + width + i)]);
            const double value = activate(activation, to_float(x[(size_t)(r * 2 * width + i)])) * up;
            expected.push_back({value, (1e-5 + 2 * kRounding<T>)*std::fabs(value) + 1e-30});
        }
    check_rows<T>(named<T>(name, width), kNumRows * width, expected,
                  [&](T* out, int num_threads) { gate(x.data(), 2 * width, out, kNumRows, width, num_threads); });
}

template <class T>
void test_activation(const char* name, Activation activation, decltype(kernel::gelu<T>) change, int64_t width) {
    Generator generator((uint64_t)width);
    auto x = generator.numbers<T>(kNumRows * width, 5.0f);
    x[0] = to_number<T>(-12.0f);  // where little is left of the digits
    std::vector<Expected> expected;
    for (T each : x) {
        const double value = activate(activation, to_float(each));
        expected.push_back({value, (1e-5 + kRounding<T>)*std::fabs(value) + 1e-30});
    }
    check_rows<T>(named<T>(name, width), kNumRows * width, expected,
                  [&](T* out, int num_threads) { change(x.data(), width, out, kNumRows, width, num_threads); });
}

template <class T>
void test_rotation(int64_t head_dim) {
    constexpr int64_t num_heads = 3;
    Generator generator((uint64_t)head_dim);
    const int64_t half = head_dim / 2, stride = num_heads * head_dim;
    const auto x = generator.numbers<T>(kNumRows * stride);
    const auto cos = generator.numbers<T>(kNumRows * head_dim), sin = generator.numbers<T>(kNumRows * head_dim);
    std::vector<Expected> expected;
    for (int64_t row = 0; row < kNumRows * num_heads; ++row)
        for (int64_t i = 0; i < head_dim; ++i) {
            const int64_t angle = row / num_heads * head_dim + i, other = i < half ? i + half : i - half;
            const double own = (double)to_float(x[(size_t)(row * head_dim + i)]) * to_float(cos[(size_t)angle]);
            const double turned = (double)to_float(x[(size_t)(row * head_dim + other)]) * to_float(sin[(size_t)angle]);
            expected.push_back({i < half ? own - turned : own + turned,
                                (2 * kRounding<T> + kEpsilon) * (std::fabs(own) + std::fabs(turned))});
        }
    check_rows<T>(named<T>("rotation", head_dim), kNumRows * stride, expected, [&](T* out, int num_threads) {
        kernel::rotary_embedding<T>(x.data(), num_heads, stride, head_dim, cos.data(), sin.data(), out, kNumRows,
                                    head_dim, num_threads);
    });
}

template <class T>
void test_argmax(int64_t width) {
    Generator generator((uint64_t)width);
    auto x = generator.numbers<T>(kNumRows * width);
    for (int64_t r = 0; r < kNumRows; ++r)
        if (r % 2)
            x[(size_t)(r * width + generator.integer(0, width - 1))] = x[(size_t)(r * width)] = to_number<T>(9.0f);
    std::vector<float> values(kNumRows);
    std::vector<int64_t> indices(kNumRows);
    for (int num_threads : {1, 2}) {
        kernel::argmax<T>(x.data(), width, values.data(), indices.data(), kNumRows, width, num_threads);
        bool are_right = true;
        for (int64_t r = 0; r < kNumRows; ++r) {
            int64_t best = 0;
            for (int64_t i = 1; i < width; ++i)
                if (to_float(x[(size_t)(r * width + i)]) > to_float(x[(size_t)(r * width + best)])) best = i;
            are_right &= indices[(size_t)r] == best && values[(size_t)r] == to_float(x[(size_t)(r * width + best)]);
        }
        check(are_right, named<T>("argmax", width));
    }
}

template <class T>
void test_type() {
    for (int64_t width : kWidths) {
        for (bool unit_offset : {false, true}) test_rms_norm<T>(width, unit_offset, width % 2 == 0);
        if (width > 1) test_layer_norm<T>(width);
        test_gate<T>("SiLU gate", Activation::silu, kernel::silu_and_mul<T>, width);
        test_gate<T>("GELU gate", Activation::gelu_tanh, kernel::gelu_tanh_and_mul<T>, width);
        test_activation<T>("GELU", Activation::gelu, kernel::gelu<T>, width);
        test_activation<T>("tanh GELU", Activation::gelu_tanh, kernel::gelu_tanh<T>, width);
        test_argmax<T>(width);
    }
    for (int64_t head_dim : {2, 24, 64, 128}) test_rotation<T>(head_dim);
}

}  // namespace

void test_elementwise() {
    test_type<float>();
    test_type<bfloat16>();
}
