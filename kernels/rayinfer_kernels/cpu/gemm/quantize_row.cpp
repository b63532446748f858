// Rows of float32 to rows of eight bits.

#include <limits>

#include "core/fetch_ahead.h"
#include "gemm/encoded_rows.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rayinfer {
namespace {

constexpr float kLimit = 127.0f;
constexpr float kSmallest = 0x1p-100f;  // what is smaller everywhere counts as nothing: its scale's inverse is no float
constexpr int32_t kInfinite = 0x7f800000;
constexpr int64_t kSumsPerLine = kRowAlignment / (int64_t)sizeof(int32_t);

inline int32_t largest_lane(Int lanes) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)lanes);
#elif defined(__aarch64__)
    return vmaxvq_s32((int32x4_t)lanes);
#endif
    int32_t largest = 0;
    for (int lane = 0; lane < kWidth; ++lane) largest = lanes[lane] > largest ? lanes[lane] : largest;
    return largest;
}

// The bits of the largest size: sizes are ordered as their bits are, with infinity and NaN above all numbers.
int32_t largest_size(const float* row, int64_t width) {
    constexpr int64_t count = 4;  // so that none waits for the one before
    auto larger_size = [](Int most, Float x) {
        const Int size = (Int)x & 0x7fffffff;
        return size > most ? size : most;
    };
    Int most[count] = {};
    int64_t i = 0;
    for (; i + count * kWidth <= width; i += count * kWidth)
#pragma GCC unroll 4
        for (int64_t j = 0; j < count; ++j) most[j] = larger_size(most[j], load(row + i + j * kWidth));
    for (; i < width; i += kWidth) most[0] = larger_size(most[0], load(row + i, width - i));
    for (int64_t j = 1; j < count; ++j) most[0] = most[j] > most[0] ? most[j] : most[0];
    return largest_lane(most[0]);
}

typedef int8_t Numbers __attribute__((vector_size(kWidth)));

// To the nearest, ties to even. Not by adding a large number: that could be fused with the multiplication before it.
inline Numbers nearest(Float x) {
#if defined(__AVX512F__)
    return (Numbers)_mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)x));
#elif defined(__AVX2__)
    const __m256i whole = _mm256_cvtps_epi32((__m256)x);
    const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    return (Numbers)_mm_cvtsi128_si64(_mm_packs_epi16(shorts, shorts));
#elif defined(__SSE2__)
    const __m128i shorts = _mm_packs_epi32(_mm_cvtps_epi32((__m128)x), _mm_setzero_si128());
    return (Numbers)_mm_cvtsi128_si32(_mm_packs_epi16(shorts, shorts));
#elif defined(__aarch64__)
    const int16x4_t shorts = vqmovn_s32(vcvtnq_s32_f32((float32x4_t)x));
    return (Numbers)vget_lane_s32((int32x2_t)vqmovn_s16(vcombine_s16(shorts, shorts)), 0);
#else
    Numbers numbers;
    for (int lane = 0; lane < kWidth; ++lane) numbers[lane] = (int8_t)__builtin_nearbyintf(x[lane]);
    return numbers;
#endif
}

#if defined(__AVX512BW__)
// The same of 64 numbers.
inline __m512i nearest_of_line(const float* row, Float inverse) {
    __m512i whole[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) whole[v] = _mm512_cvtps_epi32((__m512)(load(row + v * kWidth) * inverse));
    // Packing keeps to parts of 128 bits, each of which has four bytes of every register then.
    const __m512i first = _mm512_packs_epi32(whole[0], whole[1]), last = _mm512_packs_epi32(whole[2], whole[3]);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, last));
}
#endif

// What makes the sign go: 128 is added to each number.
inline Numbers moved_up(Numbers numbers) { return numbers ^ (int8_t)-128; }

inline int32_t sum_of(Numbers numbers) {
#if defined(__SSE2__)
    const Numbers unsigned_ones = moved_up(numbers);
    __m128i all = {};
    std::memcpy(&all, &unsigned_ones, sizeof(unsigned_ones));
    const __m128i halves = _mm_sad_epu8(all, __m128i{});
    return _mm_cvtsi128_si32(halves) + _mm_cvtsi128_si32(_mm_unpackhi_epi64(halves, halves)) - 128 * kWidth;
#else
    int32_t sum = 0;
    for (int lane = 0; lane < kWidth; ++lane) sum += numbers[lane];
    return sum;
#endif
}

// Of a whole group's numbers with signs.
inline int32_t sum_of_group(const uint8_t* numbers) {
    static_assert(kGroupSize == 32);
#if defined(__SSE2__)
    const __m128i zero{}, up = _mm_set1_epi8(-128);
    const __m128i first = _mm_xor_si128(_mm_loadu_si128((const __m128i*)numbers), up);
    const __m128i second = _mm_xor_si128(_mm_loadu_si128((const __m128i*)(numbers + 16)), up);
    const __m128i halves = _mm_add_epi64(_mm_sad_epu8(first, zero), _mm_sad_epu8(second, zero));
    return _mm_cvtsi128_si32(halves) + _mm_cvtsi128_si32(_mm_unpackhi_epi64(halves, halves)) - 128 * kGroupSize;
#elif defined(__aarch64__)
    return vaddlvq_s8(vld1q_s8((const int8_t*)numbers)) + vaddlvq_s8(vld1q_s8((const int8_t*)numbers + 16));
#else
    int32_t sum = 0;
    for (int64_t i = 0; i < kGroupSize; ++i) sum += (int8_t)numbers[i];
    return sum;
#endif
}

void quantize(const float* row, int64_t width, int64_t padded, float inverse, void* to) {
    uint8_t* bytes = quantized_numbers(to);
    [[maybe_unused]] int16_t* wide = wide_numbers(to, padded);
    int64_t i = 0;
#if defined(__AVX512BW__)
    for (; i + kLine <= width; i += kLine)
        _mm512_storeu_si512(bytes + i, _mm512_xor_si512(nearest_of_line(row + i, splat(inverse)), _mm512_set1_epi8(-128)));
#endif
    for (; i < padded; i += kWidth) {
        const Numbers numbers = nearest(load(row + i, width - i) * inverse);
        const Numbers stored = kMultipliesSigned ? numbers : moved_up(numbers);
        std::memcpy(bytes + i, &stored, sizeof(stored));
        if constexpr (kHasWideNumbers) {
            typedef int16_t Wide __attribute__((vector_size(kWidth * 2)));
            const Wide widened = __builtin_convertvector(numbers, Wide);
            std::memcpy(wide + i, &widened, sizeof(widened));
        }
    }
}

void quantize_groups(const float* row, int64_t width, int64_t padded, float inverse, void* to) {
    static_assert(kGroupSize % kWidth == 0);
    uint8_t* bytes = quantized_numbers(to);
    int32_t* sums = group_offsets(to, padded);
    int64_t group = 0;
#if defined(__AVX512BW__)
    for (; group + kLine <= width; group += kLine) {
        _mm512_storeu_si512(bytes + group, nearest_of_line(row + group, splat(inverse)));
        for (int64_t i = group; i < group + kLine; i += kGroupSize) *sums++ = sum_of_group(bytes + i);
    }
#endif
    for (; group < padded; group += kGroupSize) {
        for (int64_t i = group; i < group + kGroupSize; i += kWidth) {
            const Numbers numbers = nearest(load(row + i, width - i) * inverse);
            std::memcpy(bytes + i, &numbers, sizeof(numbers));
        }
        *sums++ = sum_of_group(bytes + group);
    }
}

// From the sums of groups, which lie where what groups begin with comes to lie. Behind them are zeros, to a whole line.
void quantize_sums(int64_t padded, void* to) {
    const int64_t num_groups = padded / kGroupSize, end = rounded_up(num_groups, kSumsPerLine);
    int32_t* offsets = group_offsets(to, padded);
    uint8_t* bytes = group_sums(to, padded);
    std::memset(offsets + num_groups, 0, (end - num_groups) * sizeof(int32_t));
    Int most = {};
    for (int64_t i = 0; i < end; i += kWidth) {
        const Int sums = load_raw<Int>(offsets + i), sign = sums >> 31, size = (sums ^ sign) - sign;
        most = size > most ? size : most;
    }
    const float largest = (float)largest_lane(most);
    const float inverse = largest > 0 ? kLimit / largest : 0.0f;
    int32_t total = 0;
    for (int64_t i = 0; i < end; i += kWidth) {
        const Int sums = load_raw<Int>(offsets + i), starts = sums * -kInt4Zero;
        const Numbers numbers = nearest(__builtin_convertvector(sums, Float) * inverse);
        total += sum_of(numbers);
        std::memcpy(bytes + i, &numbers, sizeof(numbers));
        std::memcpy(offsets + i, &starts, sizeof(starts));
    }
    QuantizedRow& header = *(QuantizedRow*)to;
    header.sum_scale = largest / kLimit;
    header.sum_start = kMultipliesSigned ? 0 : total * -128;
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
