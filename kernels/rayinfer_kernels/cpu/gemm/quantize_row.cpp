// Rows of float32 to rows of eight bits.

#include <limits>

#include "gemm/encoded_rows.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rayinfer {
namespace {

constexpr float kLimit = 127.0f;
constexpr float kSmallest = 0x1p-100f;  // what is smaller everywhere counts as nothing: its scale's inverse is no float
constexpr int32_t kInfinite = 0x7f800000;

inline int32_t largest_lane(Int lanes) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)lanes);
#endif
    int32_t largest = 0;
    for (int lane = 0; lane < kWidth; ++lane) largest = lanes[lane] > largest ? lanes[lane] : largest;
    return largest;
}

// The bits of the largest size: sizes are ordered as their bits are, with infinity and NaN above all numbers.
int32_t largest_size(const float* row, int64_t width) {
    Int most = {};
    for (int64_t i = 0; i < width; i += kWidth) {
        const Int size = (Int)load(row + i, width - i) & 0x7fffffff;
        most = size > most ? size : most;
    }
    return largest_lane(most);
}

typedef int8_t Numbers __attribute__((vector_size(kWidth)));

// To the nearest, ties to even. Not by adding a large number: that could be fused with the multiplication before it.
inline Numbers nearest(Float x) {
#if defined(__AVX512F__)
    return (Numbers)_mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)x));
#elif defined(__SSE2__)
    __m128 parts[4];
    std::memcpy(parts, &x, sizeof(x));
    const __m128i first = _mm_packs_epi32(_mm_cvtps_epi32(parts[0]), _mm_cvtps_epi32(parts[1]));
    const __m128i second = _mm_packs_epi32(_mm_cvtps_epi32(parts[2]), _mm_cvtps_epi32(parts[3]));
    return (Numbers)_mm_packs_epi16(first, second);
#else
    Numbers numbers;
    for (int lane = 0; lane < kWidth; ++lane) numbers[lane] = (int8_t)__builtin_nearbyintf(x[lane]);
    return numbers;
#endif
}

// What makes the sign go: 128 is added to each number.
inline Numbers moved_up(Numbers numbers) { return numbers ^ (int8_t)-128; }

inline int32_t sum_of(Numbers first, Numbers second) {
#if defined(__SSE2__)
    const __m128i zero{}, halves = _mm_add_epi64(_mm_sad_epu8((__m128i)moved_up(first), zero),
                                                 _mm_sad_epu8((__m128i)moved_up(second), zero));
    return _mm_cvtsi128_si32(halves) + _mm_cvtsi128_si32(_mm_unpackhi_epi64(halves, halves)) - 2 * 128 * kWidth;
#else
    int32_t sum = 0;
    for (int lane = 0; lane < kWidth; ++lane) sum += first[lane] + second[lane];
    return sum;
#endif
}

void quantize(const float* row, int64_t width, int64_t padded, float inverse, void* to) {
    uint8_t* bytes = quantized_numbers(to);
    for (int64_t i = 0; i < padded; i += kWidth) {
        const Numbers numbers = moved_up(nearest(load(row + i, width - i) * inverse));
        std::memcpy(bytes + i, &numbers, sizeof(numbers));
    }
}

void quantize_groups(const float* row, int64_t width, int64_t padded, float inverse, void* to) {
    static_assert(kGroupSize == 2 * kWidth);
    uint8_t* bytes = quantized_numbers(to);
    int32_t* sums = group_offsets(to, padded);
    for (int64_t i = 0; i < padded; i += kGroupSize) {
        const Numbers first = nearest(load(row + i, width - i) * inverse);
        const Numbers second = nearest(load(row + i + kWidth, width - i - kWidth) * inverse);
        std::memcpy(bytes + i, &first, sizeof(first));
        std::memcpy(bytes + i + kWidth, &second, sizeof(second));
        *sums++ = sum_of(first, second);
    }
}

// From the sums of groups, which lie where what groups begin with comes to lie. Behind them are zeros, to a whole line.
void quantize_sums(int64_t padded, void* to) {
    const int64_t num_groups = padded / kGroupSize;
    int32_t* offsets = group_offsets(to, padded);
    uint8_t* bytes = group_sums(to, padded);
    std::memset(offsets + num_groups, 0, (rounded_up(num_groups, kWidth) - num_groups) * sizeof(int32_t));
    Int most = {};
    for (int64_t i = 0; i < num_groups; i += kWidth) {
        const Int sums = load_raw<Int>(offsets + i), sign = sums >> 31, size = (sums ^ sign) - sign;
        most = size > most ? size : most;
    }
    const float largest = (float)largest_lane(most);
    const float inverse = largest > 0 ? kLimit / largest : 0.0f;
    int32_t total = 0;
    for (int64_t i = 0; i < num_groups; i += kWidth) {
        const Int sums = load_raw<Int>(offsets + i), starts = sums * -kInt4Zero;
        const Numbers numbers = nearest(__builtin_convertvector(sums, Float) * inverse);
        total += sum_of(numbers, Numbers{});
        std::memcpy(bytes + i, &numbers, sizeof(numbers));
        std::memcpy(offsets + i, &starts, sizeof(starts));
    }
    QuantizedRow& header = *(QuantizedRow*)to;
    header.sum_scale = largest / kLimit;
    header.sum_start = total * -128;
}

}  // namespace

void quantize_row(const float* row, int64_t width, int64_t padded, bool has_sign, void* to) {
    const int32_t bits = largest_size(row, width);
    float largest;
    std::memcpy(&largest, &bits, sizeof(largest));
    const bool is_finite = bits < kInfinite, counts = largest >= kSmallest;
    QuantizedRow& header = *(QuantizedRow*)to;
    header.scale = !is_finite ? std::numeric_limits<float>::quiet_NaN() : counts ? largest / kLimit : 0.0f;
    if (!is_finite) width = 0;
    const float inverse = is_finite && counts ? kLimit / largest : 0.0f;
    if (!has_sign) return quantize(row, width, padded, inverse, to);
    quantize_groups(row, width, padded, inverse, to);
    quantize_sums(padded, to);
}

}  // namespace rayinfer
