// Rows in the form in which products read them.
//
// Which form that is depends on the weight's format and on T, the model's own type: float32 numbers, bfloat16 numbers, or
// numbers of eight bits behind a header with their scale.
#pragma once

#include <type_traits>

#include "gemm/weight.h"

namespace rayinfer {

// Both add the products of a pair of bfloat16 to a float32, and make 0 of numbers below the smallest normal one.
#if (defined(__AVX512BF16__) && defined(__AVX512VL__)) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr bool kHasBfloat16Products = true;
#else
constexpr bool kHasBfloat16Products = false;
#endif

// Where no instruction multiplies bytes exactly, weights of eight bits are widened to sixteen, and so are rows: once, when
// they are encoded. Processors with AVX2 multiply and add two such products at once.
#if defined(__AVX2__) && !defined(__AVX512BW__) && !defined(__AVXVNNI__)
constexpr bool kHasWideNumbers = true;
#else
constexpr bool kHasWideNumbers = false;
#endif

// AArch64 multiplies bytes that both have signs. Elsewhere one of the two has none: rows that weights of eight bits are
// multiplied with are moved up by 128, as the offsets of groups of four bits are stored everywhere.
#if defined(__aarch64__)
constexpr bool kMultipliesSigned = true;
#else
constexpr bool kMultipliesSigned = false;
#endif

constexpr int64_t kRowAlignment = 64;  // bytes: every encoded row begins where a cache line does

// A number of a row that is not quantized: where nothing multiplies bfloat16 they are widened once, not in every product.
template <class T>
using Plain = std::conditional_t<std::is_same_v<T, bfloat16> && kHasBfloat16Products, bfloat16, float>;

// Whether rows are quantized when they are encoded.
inline bool is_dynamic(Format format) { return format == Format::int8_dynamic || format == Format::int4_dynamic; }

// What stands before the numbers of a quantized row; behind them, for weights of four bits, stands what is known of groups.
struct alignas(kRowAlignment) QuantizedRow {
    float scale;  // a number is its eight bits times this; NaN for a row that holds an infinity or NaN
    // Of the sums of groups: a sum is about its eight bits times this; and -128 times the total of those bits.
    float sum_scale;
    int32_t sum_start;
};

inline uint8_t* quantized_numbers(void* row) { return (uint8_t*)row + sizeof(QuantizedRow); }
inline const uint8_t* quantized_numbers(const void* row) { return (const uint8_t*)row + sizeof(QuantizedRow); }

// Behind the numbers without signs, the same with sixteen bits and signs.
inline int16_t* wide_numbers(void* row, int64_t padded_width) {
    return (int16_t*)(quantized_numbers(row) + rounded_up(padded_width, kRowAlignment));
}
inline const int16_t* wide_numbers(const void* row, int64_t padded_width) {
    return wide_numbers((void*)row, padded_width);
}

// Of each 32 numbers, their sum times -8: added to products with weights that were moved up by 8 to have no sign.
constexpr int32_t kInt4Zero = 8;
inline int32_t* group_offsets(void* row, int64_t padded_width) {
    return (int32_t*)(quantized_numbers(row) + rounded_up(padded_width, kRowAlignment));
}
inline const int32_t* group_offsets(const void* row, int64_t padded_width) {
    return group_offsets((void*)row, padded_width);
}

// Behind them, the sums themselves, rounded to eight bits with a sign: what offsets of groups are multiplied with.
inline uint8_t* group_sums(void* row, int64_t padded_width) {
    const int64_t bytes = padded_width / kGroupSize * (int64_t)sizeof(int32_t);
    return (uint8_t*)group_offsets(row, padded_width) + rounded_up(bytes, kRowAlignment);
}
inline const uint8_t* group_sums(const void* row, int64_t padded_width) { return group_sums((void*)row, padded_width); }

// Numbers of a plain row, padded with zeros to whole steps of the format.
inline int64_t padded_width(Format format, int64_t width) {
    switch (format) {
        case Format::float32: return width;
        case Format::bfloat16: return rounded_up(width, 2);
        case Format::int8:
        case Format::int8_dynamic: return rounded_up(width, 4);
        case Format::int4_dynamic: return rounded_up(width, kGroupSize);
        default: return width;  // whole groups
    }
}

// Bytes from one encoded row to the next.
template <class T>
int64_t encoded_row_bytes(Format format, int64_t width) {
    const int64_t numbers = padded_width(format, width);
    if (is_dynamic(format)) {
        const int64_t plain = (int64_t)sizeof(QuantizedRow) + rounded_up(numbers, kRowAlignment);
        const int64_t wide = kHasWideNumbers ? rounded_up(numbers * (int64_t)sizeof(int16_t), kRowAlignment) : 0;
        if (format == Format::int8_dynamic) return plain + wide;
        const int64_t groups = numbers / kGroupSize, offsets = groups * (int64_t)sizeof(int32_t);
        return plain + rounded_up(offsets, kRowAlignment) + rounded_up(groups, kRowAlignment);
    }
    return rounded_up(numbers * (int64_t)sizeof(Plain<T>), kRowAlignment);
}

// Of eight bits with a sign, or moved up by 128 to have none: q = round(x / scale), scale = max |x| / 127. Where nothing
// is larger than 2^-100 all are 0.
void quantize_row(const float* row, int64_t width, int64_t padded, bool has_sign, void* to);

template <class T>
void encode_row(Format format, const float* row, int64_t width, void* to) {
    const int64_t padded = padded_width(format, width);
    if (is_dynamic(format)) return quantize_row(row, width, padded, format == Format::int4_dynamic, to);
    Plain<T>* numbers = (Plain<T>*)to;
    for (int64_t i = 0; i < padded; i += kWidth)
        store(numbers + i, rounded_to<T>(load(row + i, width - i)), padded - i);
}

}  // namespace rayinfer
