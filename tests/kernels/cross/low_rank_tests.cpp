// Linear layers with low-rank adapters.

#include "linear_tests.h"

namespace {

// The terms of one adapter: x A^T B scale, added to some outputs.
template <class T>
struct Part {
    int64_t rank, begin, end;
    float scale;
    bool is_second_half;
    std::vector<T> a, b;                   // as the kernels read them
    std::vector<double> dense_a, dense_b;  // [rank, in_features], [rank, end - begin]

    LowRankPart argument() const { return {a.data(), b.data(), rank, begin, end, scale, is_second_half}; }
};

// Where a number stands in its group of 32: bfloat16 in pairs, the first with the 17th and so on.
template <class T>
int64_t place(int64_t i) {
    return std::is_same_v<T, float> ? i : i % 16 * 2 + i / 16;
}

template <class T>
Part<T> make_part(Part<T> part, int64_t in_features, Generator& generator) {
    const int64_t groups = rounded_up(in_features, 32) / 32, outputs = part.end - part.begin;
    const auto a = generator.numbers<T>(part.rank * in_features, 0.3f),
               b = generator.numbers<T>(part.rank * outputs, 0.3f);
    part.a.assign((size_t)(groups * part.rank * 32), T{});
    part.b.assign((size_t)(part.rank * outputs), T{});
    for (int64_t rank = 0; rank < part.rank; ++rank) {
        const int64_t block = rank / 8 * 8, ranks = std::min<int64_t>(8, part.rank - block);
        for (int64_t i = 0; i < in_features; ++i) {
            const int64_t at = block * groups * 32 + (i / 32 * ranks + rank - block) * 32 + place<T>(i % 32);
            part.a[(size_t)at] = a[(size_t)(rank * in_features + i)];
            part.dense_a.push_back(to_float(a[(size_t)(rank * in_features + i)]));
        }
        for (int64_t i = 0; i < outputs; ++i) {
            part.b[(size_t)((i / 32 * part.rank + rank) * 32 + place<T>(i % 32))] = b[(size_t)(rank * outputs + i)];
            part.dense_b.push_back(to_float(b[(size_t)(rank * outputs + i)]));
        }
    }
    return part;
}

template <class T>
void add_terms(const Part<T>& part, const WeightShape& shape, const float* row, Expected* sums) {
    const int64_t outputs = part.end - part.begin, first = part.begin + (part.is_second_half ? shape.out_features : 0);
    for (int64_t rank = 0; rank < part.rank; ++rank) {
        double product = 0.0, size = 0.0;
        for (int64_t i = 0; i < shape.in_features; ++i) {
            const double each = part.dense_a[(size_t)(rank * shape.in_features + i)] * row[i];
            product += each, size += std::fabs(each);
        }
        for (int64_t i = 0; i < outputs && part.begin + i < shape.out_features; ++i) {
            const double factor = part.dense_b[(size_t)(rank * outputs + i)] * part.scale;
            sums[first + i].value += product * factor;
            sums[first + i].tolerance += (20 + (double)part.rank) * 0x1p-24 * size * std::fabs(factor);
        }
    }
}

template <class T>
void test_adapters(const WeightShape& shape, uint64_t seed) {
    Generator generator(seed);
    const TestWeight weight = make_weight(shape, generator);
    const auto x = generator.numbers<T>(kMostRows * shape.in_features);
    std::vector<Part<T>> parts;
    const int64_t whole = rounded_up(shape.out_features, 32);
    parts.push_back(make_part<T>({4, 0, whole, 0.5f, false, {}, {}, {}, {}}, shape.in_features, generator));
    parts.push_back(make_part<T>({11, 32, 64, 2.0f, shape.is_gated, {}, {}, {}, {}}, shape.in_features, generator));
    parts.push_back(make_part<T>({16, 0, 32, 1.0f, false, {}, {}, {}, {}}, shape.in_features, generator));
    const LowRankPart both[] = {parts[0].argument(), parts[1].argument()}, last[] = {parts[2].argument()};
    const LowRankAdapter table[] = {{both, 2}, {last, 1}, {nullptr, 0}};
    const int64_t first_parts[] = {0, 2, 3, 3};  // of each adapter
    std::vector<int32_t> slots;
    for (int64_t row = 0; row < kMostRows; ++row) slots.push_back((int32_t)generator.integer(-1, 2));
    const int64_t num_sums = shape.num_rows();
    std::vector<Expected> terms((size_t)(kMostRows * num_sums));
    const auto floats = to_floats(x);
    for (int64_t row = 0; row < kMostRows; ++row)
        for (int64_t i = slots[row] < 0 ? 0 : first_parts[slots[row]];
             slots[row] >= 0 && i < first_parts[slots[row] + 1]; ++i)
            add_terms(parts[(size_t)i], shape, &floats[(size_t)(row * shape.in_features)],
                      &terms[(size_t)(row * num_sums)]);
    const Activation activation = shape.is_gated ? Activation::silu : Activation::none;
    check_linear<T>("low-rank", LinearCase{weight, {}, activation, terms}, x, {}, {table, slots.data(), 16});
}

}  // namespace

void test_low_rank() {
    test_adapters<float>({Format::float32, 96, 70}, 1);
    test_adapters<float>({Format::float32, 75, 64, true}, 2);
    test_adapters<float>({Format::int8_dynamic, 75, 64}, 3);
    test_adapters<bfloat16>({Format::bfloat16, 96, 70}, 4);
    test_adapters<bfloat16>({Format::int4_dynamic, 75, 64, true}, 5);
}
