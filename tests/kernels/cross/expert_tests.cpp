// Experts: grouped products, and sums of chosen rows.

#include "linear_tests.h"

namespace {

template <class T>
void test_grouped_gemm(const WeightShape& shape) {
    constexpr int64_t num_groups = 4, num_rows = 45;
    const std::vector<int32_t> starts = {0, 3, 3, 44, num_rows};
    Generator generator(11);
    std::vector<TestWeight> weights;
    TestWeight together{shape, {}, {}, {}, {}, {}, {}};
    for (int64_t group = 0; group < num_groups; ++group) {
        weights.push_back(make_weight(shape, generator));
        const TestWeight& own = weights.back();
        together.panels.insert(together.panels.end(), own.panels.begin(), own.panels.end());
        together.scales.insert(together.scales.end(), own.scales.begin(), own.scales.end());
        together.sums.insert(together.sums.end(), own.sums.begin(), own.sums.end());
    }
    const auto x = generator.numbers<T>(num_rows * shape.in_features);
    const Weight first = together.argument();
    std::vector<T> out((size_t)(num_rows * shape.out_features)), expected(out);
    for (int64_t group = 0; group < num_groups; ++group) {
        const Weight own = weights[(size_t)group].argument();
        const int64_t begin = starts[(size_t)group], count = starts[(size_t)group + 1] - begin;
        if (count == 0) continue;
        kernel::linear<T>(&x[(size_t)(begin * shape.in_features)], shape.in_features, &own, nullptr, 0, nullptr,
                          nullptr, 0, &expected[(size_t)(begin * shape.out_features)], count, 1);
    }
    for (int num_threads : {1, 2}) {
        kernel::grouped_gemm<T>(x.data(), shape.in_features, &first, starts.data(), num_groups, out.data(), num_rows,
                                num_threads);
        check_same_bits(std::string("grouped products ") + type_name<T> + " " + shape.name(), out.data(),
                        expected.data(), (int64_t)out.size());
    }
}

template <class T>
void test_combination(int64_t width) {
    constexpr int64_t num_rows = 20, num_tokens = 9, num_choices = 3;
    Generator generator((uint64_t)width);
    const auto rows = generator.numbers<T>(num_rows * width);
    const auto weights = generator.numbers<float>(num_tokens * num_choices);
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < num_tokens * num_choices; ++i) indices.push_back(generator.integer(0, num_rows - 1));
    std::vector<Expected> expected;
    for (int64_t token = 0; token < num_tokens; ++token)
        for (int64_t i = 0; i < width; ++i) {
            double sum = 0.0, size = 0.0;
            for (int64_t choice = token * num_choices; choice < (token + 1) * num_choices; ++choice) {
                const double each =
                    (double)weights[(size_t)choice] * to_float(rows[(size_t)(indices[(size_t)choice] * width + i)]);
                sum += each, size += std::fabs(each);
            }
            expected.push_back({sum, 4 * 0x1p-24 * size + kRounding<T> * std::fabs(sum)});
        }
    for (int num_threads : {1, 2}) {
        std::vector<T> out((size_t)(num_tokens * width));
        kernel::moe_combine<T>(rows.data(), indices.data(), weights.data(), out.data(), num_tokens, num_choices, width,
                               num_threads);
        check_near(std::string("combined experts ") + type_name<T> + ", width " + std::to_string(width), out.data(),
                   expected);
    }
}

template <class T>
void test_type(Format own) {
    for (Format format : {own, Format::int8, Format::int8_dynamic, Format::int4_dynamic})
        for (bool is_gated : {false, true}) test_grouped_gemm<T>({format, 75, 70, is_gated});
    for (int64_t width : {1, 33, 64, 500}) test_combination<T>(width);
}

}  // namespace

void test_experts() {
    test_type<float>(Format::float32);
    test_type<bfloat16>(Format::bfloat16);
}
