// Rows of float32 to rows of eight bits.

#include <limits>

#include "encoded_rows.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rayinfer {
namespace {

constexpr float kLimit = 127.0f;
constexpr float kSmallest = 0x1p-100f;  // what is smaller everywhere counts as nothing: its scale's inverse is no float
constexpr int32_t kInfinite = 0x7f800000;

// The bits of the largest size: sizes are ordered as their bits are, with infinity and NaN above all numbers.
int32_t largest_size(const float* row, int64_t width) {
    Int most = {};
    for (int64_t i = 0; i < width; i += kWidth) {
        const Int size = (Int)load(row + i, width - i) & 0x7fffffff;
        most = size > most ? size : most;
    }
    int32_t largest = 0;
    for (int lane = 0; lane < kWidth; ++lane) largest = most[lane] > largest ? most[lane] : largest;
    return largest;
}

// To the nearest, ties to even. Not by adding a large number: that could be fused with the multiplication before it.
inline Int nearest(Float x) {
#if defined(__AVX512F__)
    return (Int)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX__)
    __m256 halves[2];
    std::memcpy(halves, &x, sizeof(x));
    const __m256i whole[2] = {_mm256_cvtps_epi32(halves[0]), _mm256_cvtps_epi32(halves[1])};
    return load_raw<Int>(whole);
#else
    Int whole;
    for (int lane = 0; lane < kWidth; ++lane) whole[lane] = (int32_t)__builtin_nearbyintf(x[lane]);
    return whole;
#endif
}

inline void store_bytes(uint8_t* to, Int x) {
    typedef uint8_t Bytes __attribute__((vector_size(kWidth)));
    const Bytes bytes = __builtin_convertvector((Word)x, Bytes);
    std::memcpy(to, &bytes, sizeof(bytes));
}

inline int32_t sum_of(Int x) {
    int32_t sum = 0;
    for (int lane = 0; lane < kWidth; ++lane) sum += x[lane];
    return sum;
}

template <bool HasSign>
void quantize(const float* row, int64_t width, int64_t padded, float inverse, void* to) {
    constexpr int32_t moved = HasSign ? 0 : 128;
    uint8_t* numbers = quantized_numbers(to);
    int32_t* offsets = group_offsets(to, padded);
    Int group = {};
    for (int64_t i = 0; i < padded; i += kWidth) {
        const Int q = nearest(load(row + i, width - i) * inverse);
        store_bytes(numbers + i, q + moved);
        if constexpr (HasSign) {
            group += q;
            if ((i + kWidth) % kGroupSize) continue;
            *offsets++ = sum_of(group) * -kInt4Zero;
            group = Int{};
        }
    }
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
    if (has_sign)
        quantize<true>(row, width, padded, inverse, to);
    else
        quantize<false>(row, width, padded, inverse, to);
}

}  // namespace rayinfer
