#include "weights.h"

#include <algorithm>

namespace {

constexpr int64_t kPanelWidth = 32;

void put(std::vector<uint8_t>& bytes, int64_t at, const void* from, int64_t size) {
    std::memcpy(bytes.data() + at, from, (size_t)size);
}

template <class T>
void put_number(std::vector<uint8_t>& bytes, int64_t at, T number) {
    put(bytes, at, &number, sizeof(T));
}

// Words of four bytes: [panel][word][32][numbers of a word].
template <class T>
void pack_words(TestWeight& weight, const std::vector<T>& numbers) {
    constexpr int64_t per_word = 4 / sizeof(T);
    const int64_t width = weight.shape.in_features, words = rounded_up(width, per_word) / per_word;
    weight.panels.assign((size_t)(weight.num_panels() * words * kPanelWidth * 4), 0);
    for (int64_t row = 0; row < weight.shape.num_rows(); ++row)
        for (int64_t i = 0; i < width; ++i) {
            const int64_t word = weight.panel_of(row) * words + i / per_word;
            const int64_t at = (word * kPanelWidth + weight.column_of(row)) * per_word + i % per_word;
            put_number(weight.panels, at * (int64_t)sizeof(T), numbers[row * width + i]);
        }
}

template <class T>
void make_plain(TestWeight& weight, Generator& generator) {
    const float size = 1.0f / std::sqrt((float)weight.shape.in_features);
    const auto numbers = generator.numbers<T>((int64_t)weight.dense.size(), size);
    std::transform(numbers.begin(), numbers.end(), weight.dense.begin(), [](T x) { return (double)to_float(x); });
    pack_words(weight, numbers);
}

void make_bytes(TestWeight& weight, Generator& generator) {
    const int64_t width = weight.shape.in_features;
    std::vector<int8_t> numbers(weight.dense.size());
    weight.scales.assign((size_t)(weight.num_panels() * kPanelWidth), 0.0f);
    weight.sums.assign(weight.scales.size(), 0);
    for (int64_t row = 0; row < weight.shape.num_rows(); ++row) {
        const int64_t column = weight.panel_of(row) * kPanelWidth + weight.column_of(row);
        const float scale = weight.scales[column] = (float)(generator.unit() + 0.5) / 1000.0f;
        for (int64_t i = 0; i < width; ++i) {
            // All of some rows are the extremes, to show what saturates.
            const int64_t number = row % 7 == 3 ? (row % 2 ? -127 : 127) : generator.integer(-127, 127);
            numbers[row * width + i] = (int8_t)number;
            weight.sums[column] += (int32_t)number;
            weight.dense[row * width + i] = (double)number * scale;
        }
    }
    pack_words(weight, numbers);
}

// Numbers of one output's group of 32 inputs, in a block [4, 32, 4].
void put_block_numbers(TestWeight& weight, int64_t at, int64_t row, int64_t group, const int64_t* numbers) {
    for (int64_t i = 0; i < 16; ++i) {
        const int64_t byte = (i / 4 * kPanelWidth + weight.column_of(row)) * 4 + i % 4;
        weight.panels[(size_t)(at + byte)] = (uint8_t)((numbers[i] + 8) | (numbers[i + 16] + 8) << 4);
    }
    for (int64_t i = 0; i < 32 && group * 32 + i < weight.shape.in_features; ++i)
        weight.dense[row * weight.shape.in_features + group * 32 + i] = (double)numbers[i];
}

void scale_group(TestWeight& weight, int64_t row, int64_t group, double scale) {
    const int64_t size = weight.shape.group_size, width = weight.shape.in_features;
    for (int64_t i = group * size; i < std::min(width, (group + 1) * size); ++i) weight.dense[row * width + i] *= scale;
}

void draw_group(const TestWeight& weight, int64_t group, Generator& generator, int64_t* numbers) {
    for (int64_t i = 0; i < 32; ++i)
        numbers[i] = group * 32 + i < weight.shape.in_features ? generator.integer(-8, 7) : 0;
}

void make_blocks(TestWeight& weight, Generator& generator) {
    const int64_t num_groups = weight.shape.num_groups(), bytes = 576;
    weight.panels.assign((size_t)(weight.num_panels() * num_groups * bytes), 0);
    for (int64_t row = 0; row < weight.shape.num_rows(); ++row)
        for (int64_t group = 0; group < num_groups; ++group) {
            const int64_t at = (weight.panel_of(row) * num_groups + group) * bytes, column = weight.column_of(row);
            int64_t numbers[32];
            draw_group(weight, group, generator, numbers);
            put_block_numbers(weight, at, row, group, numbers);
            const auto scale = to_number<bfloat16>((float)(generator.unit() + 0.1) / 50.0f);
            put_number(weight.panels, at + 512 + (column % 16 * 2 + column / 16) * 2, scale);
            scale_group(weight, row, group, to_float(scale));
        }
}

void make_blocks_with_offsets(TestWeight& weight, Generator& generator) {
    const int64_t num_groups = weight.shape.num_groups(), offsets_at = kPanelWidth * 4;
    const int64_t scales_at = offsets_at + rounded_up(num_groups, 4) * kPanelWidth;
    const int64_t numbers_at = scales_at + rounded_up(num_groups, 2) * kPanelWidth;
    const int64_t bytes = numbers_at + num_groups * 512;
    weight.panels.assign((size_t)(weight.num_panels() * bytes), 0);
    weight.offsets.resize((size_t)(weight.shape.num_rows() * num_groups));
    for (int64_t row = 0; row < weight.shape.num_rows(); ++row) {
        const int64_t panel = weight.panel_of(row) * bytes, column = weight.column_of(row);
        const auto ratio = to_number<bfloat16>((float)(generator.unit() + 0.5));
        const auto unit = to_number<bfloat16>((float)(generator.unit() + 0.5) / 5000.0f);
        put_number(weight.panels, panel + column * 4, ratio);
        put_number(weight.panels, panel + column * 4 + 2, unit);
        for (int64_t group = 0; group < num_groups; ++group) {
            int64_t numbers[32];
            draw_group(weight, group, generator, numbers);
            put_block_numbers(weight, panel + numbers_at + group * 512, row, group, numbers);
            const int64_t offset = row % 5 == 2 ? -127 : generator.integer(-127, 127),
                          scale = generator.integer(1, 255);
            const int64_t quad = (group / 4 * kPanelWidth + column) * 4 + group % 4;
            weight.panels[(size_t)(panel + offsets_at + quad)] = (uint8_t)(offset + 128);
            weight.panels[(size_t)(panel + scales_at + group * kPanelWidth + column)] = (uint8_t)scale;
            scale_group(weight, row, group, (double)scale * to_float(unit));
            weight.offsets[row * num_groups + group] = (double)offset * to_float(ratio) * to_float(unit);
        }
    }
}

double e4m3(int64_t code) {
    const int64_t exponent = code >> 3 & 15, digits = code & 7;
    const double size =
        exponent ? std::ldexp(8.0 + (double)digits, (int)exponent - 10) : std::ldexp((double)digits, -9);
    return code & 128 ? -size : size;
}

// A code of a format with groups, and what it stands for before it is scaled.
struct Code {
    int64_t bits;
    double number;
};

Code draw_code(const TestWeight& weight, Generator& generator) {
    const int64_t four = generator.integer(0, 15), eight = generator.integer(0, 255);
    switch (weight.shape.format) {
        case Format::int4_groups:
            return {four, (double)(weight.shape.has_offsets ? four : four - 8)};
        case Format::table4_groups:
            return {four, weight.table[(size_t)four]};
        case Format::int8_groups:
            return {eight, (double)(int8_t)eight};
        default: {
            const int64_t finite = (eight & 127) == 127 ? 0 : eight;  // the others are NaN
            return {finite, e4m3(finite)};
        }
    }
}

void make_groups(TestWeight& weight, Generator& generator) {
    const WeightShape& shape = weight.shape;
    const bool is_four_bit = shape.format == Format::int4_groups || shape.format == Format::table4_groups;
    const int64_t codes_at = kPanelWidth * (shape.has_offsets ? 8 : 4);
    const int64_t bytes = codes_at + shape.group_size * kPanelWidth / (is_four_bit ? 2 : 1);
    weight.panels.assign((size_t)(weight.num_panels() * shape.num_groups() * bytes), 0);
    for (int i = 0; i < 16; ++i) weight.table.push_back((float)(i * i - 60) / 63.7f);
    for (int64_t row = 0; row < shape.num_rows(); ++row)
        for (int64_t group = 0; group < shape.num_groups(); ++group) {
            const int64_t at = (weight.panel_of(row) * shape.num_groups() + group) * bytes,
                          column = weight.column_of(row);
            // Of so few digits that a weight is exact in float32, whether or not its product is rounded.
            const float scale = (float)generator.integer(1, 31) / 2048.0f;
            const float offset = shape.has_offsets ? (float)generator.integer(-31, 31) / 256.0f : 0.0f;
            put_number(weight.panels, at + column * 4, scale);
            if (shape.has_offsets) put_number(weight.panels, at + kPanelWidth * 4 + column * 4, offset);
            for (int64_t i = 0; i < shape.group_size; ++i) {
                const Code code = draw_code(weight, generator);
                const int64_t byte = at + codes_at + (is_four_bit ? i / 2 : i) * kPanelWidth + column;
                weight.panels[(size_t)byte] |= (uint8_t)(is_four_bit && i % 2 ? code.bits << 4 : code.bits);
                weight.dense[row * shape.in_features + group * shape.group_size + i] = code.number * scale + offset;
            }
        }
}

}  // namespace

std::string WeightShape::name() const {
    return "format " + std::to_string((int)format) + (is_gated ? " gated" : "") + (has_offsets ? " with offsets" : "") +
           " [" + std::to_string(out_features) + ", " + std::to_string(in_features) + "]";
}

int64_t TestWeight::panel_of(int64_t row) const {
    const int64_t within = row % shape.out_features / kPanelWidth;
    return shape.is_gated ? 2 * within + row / shape.out_features : within;
}

Weight TestWeight::argument() const {
    Weight weight = {};
    weight.panels = panels.data();
    weight.scales = scales.empty() ? nullptr : scales.data();
    weight.sums = sums.empty() ? nullptr : sums.data();
    weight.in_features = shape.in_features, weight.out_features = shape.out_features;
    weight.format = shape.format, weight.is_gated = shape.is_gated, weight.has_offsets = shape.has_offsets;
    weight.group_size = (int32_t)shape.group_size;
    weight.table = table.empty() ? nullptr : table.data();
    weight.prefetch_few_rows = 640, weight.prefetch_more_rows = 20480;  // no result may depend on them
    return weight;
}

TestWeight make_weight(const WeightShape& shape, Generator& generator) {
    TestWeight weight{shape, std::vector<double>((size_t)(shape.num_rows() * shape.in_features)), {}, {}, {}, {}, {}};
    switch (shape.format) {
        case Format::float32:
            make_plain<float>(weight, generator);
            break;
        case Format::bfloat16:
            make_plain<bfloat16>(weight, generator);
            break;
        case Format::int8:
        case Format::int8_dynamic:
            make_bytes(weight, generator);
            break;
        case Format::int4_dynamic:
            shape.has_offsets ? make_blocks_with_offsets(weight, generator) : make_blocks(weight, generator);
            break;
        default:
            make_groups(weight, generator);
    }
    return weight;
}
