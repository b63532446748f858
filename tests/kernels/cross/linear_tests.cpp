// Linear layers of all formats of weights.

#include "linear_tests.h"

namespace {

template <class T>
constexpr Format kOwnFormat = std::is_same_v<T, float> ? Format::float32 : Format::bfloat16;

template <class T>
void test_formats(const char* name, std::initializer_list<WeightShape> shapes) {
    uint64_t seed = 0;
    for (const WeightShape& shape : shapes) {
        const Activation activation = shape.is_gated ? (Activation)(1 + seed % 3) : (Activation)(seed % 5);
        check_linear<T>(name, shape, seed % 4 >= 2, activation, 1000 + seed);
        ++seed;
    }
}

template <class T>
void test_own_type() {
    const Format own = kOwnFormat<T>;
    test_formats<T>("linear", {{own, 64, 32},
                               {own, 100, 70},
                               {own, 33, 45, true},
                               {own, 7, 100},
                               {own, 1, 3},
                               {own, 800, 64},
                               {own, 96, 40, true}});
}

template <class T>
void test_quantized_formats() {
    for (Format format : {Format::int8, Format::int8_dynamic, Format::int4_dynamic})
        test_formats<T>(
            "quantized",
            {{format, 64, 32}, {format, 100, 70}, {format, 33, 45, true}, {format, 7, 100}, {format, 672, 64}});
    test_formats<T>("quantized", {{Format::int4_dynamic, 64, 32, false, true},
                                  {Format::int4_dynamic, 100, 70, false, true},
                                  {Format::int4_dynamic, 325, 45, true, true}});
}

template <class T>
void test_group_formats() {
    for (Format format : {Format::int4_groups, Format::int8_groups, Format::float8_groups, Format::table4_groups})
        test_formats<T>("groups", {{format, 96, 70, false, false, 32},
                                   {format, 130, 33, true, false, 10},
                                   {format, 256, 64, false, false, 128}});
    for (Format format : {Format::int4_groups, Format::int8_groups})
        test_formats<T>("groups", {{format, 96, 70, false, true, 32}, {format, 128, 33, true, true, 64}});
}

// Rows in which something is no number, or nothing is large enough to be one of eight bits.
template <class T>
void test_rows_without_a_scale(Format format) {
    constexpr int64_t width = 64, outputs = 40, num_rows = 3;
    Generator generator(7);
    const TestWeight packed = make_weight({format, width, outputs}, generator);
    const Weight weight = packed.argument();
    auto x = generator.numbers<T>(num_rows * width);
    x[5] = to_number<T>(INFINITY);
    for (int64_t i = 0; i < width; ++i) x[(size_t)(width + i)] = to_number<T>(1e-38f);
    std::vector<T> out((size_t)(num_rows * outputs));
    kernel::linear<T>(x.data(), width, &weight, nullptr, 0, nullptr, nullptr, 0, out.data(), num_rows, 1);
    bool are_nan = true, are_zero = true, are_finite = true;
    for (int64_t i = 0; i < outputs; ++i) {
        are_nan &= std::isnan(to_float(out[(size_t)i]));
        are_zero &= to_float(out[(size_t)(outputs + i)]) == 0.0f;
        are_finite &= std::isfinite(to_float(out[(size_t)(2 * outputs + i)]));
    }
    check(are_nan && are_zero && are_finite, "rows without a scale, format " + std::to_string((int)format));
}

// An embedding's rows out of a packed weight.
template <class T>
void test_gathered_rows(Format format) {
    constexpr int64_t width = 37, outputs = 70;
    Generator generator(8);
    const TestWeight packed = make_weight({format, width, outputs}, generator);
    const Weight weight = packed.argument();
    const std::vector<int64_t> indices = {69, 0, 31, 32, 5, 5, 64};
    std::vector<T> out(indices.size() * width);
    kernel::gather_rows<T>(&weight, indices.data(), (int64_t)indices.size(), out.data(), 2);
    std::vector<Expected> expected;
    for (int64_t index : indices)
        for (int64_t i = 0; i < width; ++i) {
            const double value = packed.at(index, i);
            expected.push_back({value, format == Format::int8 ? kRounding<T> * std::fabs(value) : 0.0});
        }
    check_near(std::string("gathered rows ") + type_name<T>, out.data(), expected);
}

}  // namespace

void test_linear() {
    test_own_type<float>();
    test_own_type<bfloat16>();
    test_gathered_rows<float>(Format::float32);
    test_gathered_rows<bfloat16>(Format::bfloat16);
    test_gathered_rows<float>(Format::int8);
    test_gathered_rows<bfloat16>(Format::int8);
}

void test_quantized() {
    test_quantized_formats<float>();
    test_quantized_formats<bfloat16>();
    for (Format format : {Format::int8_dynamic, Format::int4_dynamic}) {
        test_rows_without_a_scale<float>(format);
        test_rows_without_a_scale<bfloat16>(format);
    }
}

void test_groups() {
    test_group_formats<float>();
    test_group_formats<bfloat16>();
}
