// A register's floats at a time, in GCC's vector extensions: the compiler maps them to whatever the processor has.
//
// Never more: of a vector wider than a register GCC compares, chooses and converts number by number.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace rayinfer {

// A template, so that blocks whose size is no multiple of sixteen can be read eight tokens at a time.
template <int Width>
struct Lanes {
    typedef float Float __attribute__((vector_size(Width * 4)));
    typedef uint32_t Word __attribute__((vector_size(Width * 4)));
    typedef uint16_t Half __attribute__((vector_size(Width * 2)));
};

// Floats of one register.
#if defined(__AVX512F__)
constexpr int kSimd = 16;
#elif defined(__AVX2__)
constexpr int kSimd = 8;
#else
constexpr int kSimd = 4;
#endif

constexpr int kWidth = kSimd;
using Float = Lanes<kWidth>::Float;
using Word = Lanes<kWidth>::Word;
using Half = Lanes<kWidth>::Half;
typedef int32_t Int __attribute__((vector_size(kWidth * 4)));

// AVX-512 and AArch64 have 32 registers, others 16.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr bool kHas32Registers = true;
#else
constexpr bool kHas32Registers = false;
#endif

// 6 x 4 of 32 registers hold sums, 6 x 2 of 16; without fused multiplication and addition products need one too.
constexpr int64_t kTileRows = kSimd == 4 && !kHas32Registers ? 4 : 6;
// Of half as many columns, whose sums fit into registers for twice as many rows where there are 32 of 512 bits.
constexpr int64_t kNarrowTileRows = kSimd == 16 ? 2 * kTileRows : kTileRows;
constexpr int64_t kTileVectors = kHas32Registers ? 4 : 2;

constexpr int64_t kRowsAtOnce = 6;  // x 4 vectors of sums = 24 of 32 registers

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct bfloat16 {
    uint16_t bits;
};

template <class Vector, class Element>
inline Vector load_raw(const Element* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof(vector));
    return vector;
}

inline Float splat(float x) { return Float{} + x; }

// 0, 1, 2, ...
inline Int lane_numbers() {
    constexpr int32_t numbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return load_raw<Int>(numbers);
}

// The greater or lesser of each two; `b` where one of them is NaN.
inline Float larger(Float a, Float b) {
#if defined(__AVX512F__)
    return (Float)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Float)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}
inline Float smaller(Float a, Float b) {
#if defined(__AVX512F__)
    return (Float)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Float)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return a < b ? a : b;
#endif
}

// Whether a comparison holds anywhere.
inline bool any_lane(Int holds) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)holds, (__m512i)holds) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_epi8((__m256i)holds) != 0;
#elif defined(__aarch64__)
    return vmaxvq_u32((uint32x4_t)holds) != 0;
#else
    int32_t any = 0;
    for (int64_t lane = 0; lane < kWidth; ++lane) any |= holds[lane];
    return any != 0;
#endif
}

inline Float absolute(Float x) { return (Float)((Word)x & 0x7fffffffu); }

inline Float widen(Half halves) {
#if defined(__AVX2__) && !defined(__AVX512F__)  // GCC converts halves of a register
    return (Float)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)halves), 16);
#else
    return (Float)(__builtin_convertvector(halves, Word) << 16);
#endif
}

// To the nearest bfloat16, ties to even, in the upper half of each word; the lower half may hold anything. NaN stays NaN.
inline Word nearest_upper_half(Float x) {
    const Word bits = (Word)x;
    return (bits + 0x7fffu + (bits << 15 >> 31)) | (Word)(x != x);
}

// The same in as many bits. Where an instruction does it, numbers below the smallest normal one become 0, as those of its
// products do.
#if defined(__AVX512BF16__)
inline Half narrow(Float x) { return (Half)_mm512_cvtneps_pbh((__m512)x); }
#else
inline Half narrow(Float x) {
    const Word halves = nearest_upper_half(x) >> 16;
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i packed = _mm256_packus_epi32((__m256i)halves, (__m256i)halves);
    return (Half)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000));
#else
    return __builtin_convertvector(halves, Half);
#endif
}
#endif

inline Float load(const float* from) { return load_raw<Float>(from); }
inline Float load(const bfloat16* from) { return widen(load_raw<Half>(from)); }
inline void store(float* to, Float x) { std::memcpy(to, &x, sizeof(x)); }
inline void store(bfloat16* to, Float x) {
    Half halves = narrow(x);
    std::memcpy(to, &halves, sizeof(halves));
}

// The first `count` elements only; the lanes behind them are zero.
template <class T>
inline Float load(const T* from, int64_t count) {
    if (count >= kWidth) return load(from);
    T part[kWidth] = {};
    for (int64_t i = 0; i < count; ++i) part[i] = from[i];
    return load(part);
}

template <class T>
inline void store(T* to, Float x, int64_t count) {
    if (count >= kWidth) return store(to, x);
    T part[kWidth];
    store(part, x);
    for (int64_t i = 0; i < count; ++i) to[i] = part[i];
}

// Non-temporal stores, past the caches; `to` is aligned to the bytes stored. Other threads see them behind `finish_streams`.
template <class T>
inline void stream(T* to, Float x) {
    store(to, x);
}
#if defined(__AVX512F__)
template <>
inline void stream(float* to, Float x) {
    _mm512_stream_ps(to, (__m512)x);
}
template <>
inline void stream(bfloat16* to, Float x) {
    _mm256_stream_si256((__m256i*)to, (__m256i)narrow(x));
}
#endif
inline void finish_streams() {
#if defined(__AVX512F__)
    _mm_sfence();
#endif
}

// What x becomes when it is kept in T and read back.
template <class T>
inline Float rounded_to(Float x);
template <>
inline Float rounded_to<float>(Float x) {
    return x;
}
template <>
inline Float rounded_to<bfloat16>(Float x) {
    return (Float)(nearest_upper_half(x) & 0xffff0000u);
}

// The lower half of the lanes with the upper half, and so on: in a fixed order, so that equal lanes give equal results.
template <int Width, class Combine>
inline float fold_lanes(typename Lanes<Width>::Float x, Combine combine) {
    if constexpr (Width == 2) {
        return combine(x[0], x[1]);
    } else {
        using Part = typename Lanes<Width / 2>::Float;
        Part halves[2];
        std::memcpy(halves, &x, sizeof(x));
        return fold_lanes<Width / 2>(combine(halves[0], halves[1]), combine);
    }
}

inline float sum_of(Float x) {
    return fold_lanes<kWidth>(x, [](auto a, auto b) { return a + b; });
}

inline float max_of(Float x) {
    return fold_lanes<kWidth>(x, [](auto a, auto b) { return a > b ? a : b; });
}

// e^x for x <= 87.3, of what is below -87.3 the same as of that: 2^n times a polynomial in r, x = n ln 2 + r.
constexpr float kLargestExponent = 87.33654f;
inline Float exp_of_bounded(Float x) {
    constexpr float shift = 12582912.0f;  // 1.5 x 2^23 rounds to an integer
    const Float bounded = larger(splat(-kLargestExponent), x);
    const Float shifted = bounded * 1.44269504f + shift;
    const Float n = shifted - shift;
    Float r = bounded - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Float p = splat(1.392625333e-03f);
    p = p * r + 8.357250476e-03f;
    p = p * r + 4.166655419e-02f;
    p = p * r + 1.666663067e-01f;
    p = p * r + 0.5f;
    p = (p * r) * r + r + 1.0f;
    return p * (Float)((Word)shifted + 127u << 23);  // of the sum's other bits none is left
}

// e^x for |x| <= 87.3, of what is beyond that the same as of the bound.
inline Float bounded_exp(Float x) { return exp_of_bounded(smaller(splat(kLargestExponent), x)); }

// e^x for x <= 0; 0 below the smallest normal float.
inline Float exp_of_negative(Float x) { return x < -kLargestExponent ? splat(0.0f) : exp_of_bounded(x); }

constexpr float kLog2e = 1.44269504f;

constexpr float kLeastExponent = -125.0f;

// 2^x for |x| <= 1/2.
inline Float exp2_polynomial(Float r) {
    Float p = splat(1.327647129e-03f);
    p = p * r + 9.675541893e-03f;
    p = p * r + 5.550713092e-02f;
    p = p * r + 2.402212024e-01f;
    p = p * r + 6.931469440e-01f;
    return p * r + 1.0f;
}

// 2^x for x <= 0, by 2^n times a polynomial in x - n; 0 below 2^-125.
#if defined(__AVX512DQ__)
inline Float exp2_of_negative(Float x) {
    const __m512 r = _mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __mmask16 is_normal = _mm512_cmp_ps_mask((__m512)x, (__m512)splat(kLeastExponent), _CMP_NLT_UQ);
    return (Float)_mm512_maskz_scalef_ps(is_normal, (__m512)exp2_polynomial((Float)r), (__m512)(x - (Float)r));
}
#else
inline Float exp2_of_negative(Float x) {
    constexpr float shift = 12582912.0f + 127.0f;  // 1.5 x 2^23 rounds to an integer
    const Float bounded = larger(splat(kLeastExponent), x);
    const Float shifted = bounded + shift;
    const Float power = exp2_polynomial(bounded - (shifted - shift)) * (Float)((Word)shifted << 23);
    return x < kLeastExponent ? splat(0.0f) : power;
}
#endif

// 1 / x for 1 <= x < 2^126: an estimate and one of Newton's steps, where dividing takes many times as long.
inline Float reciprocal(Float x) {
#if defined(__AVX512F__)
    const Float estimate = (Float)_mm512_rcp14_ps((__m512)x);
    return estimate * (2.0f - x * estimate);
#else
    return 1.0f / x;
#endif
}

inline Float tanh(Float x) {
    Float size = absolute(x);
    Float square = x * x;
    Float p = splat(-6.077547406e-03f);
    p = p * square + 2.098361198e-02f;
    p = p * square + -5.384782810e-02f;
    p = p * square + 1.333274471e-01f;
    p = p * square + -3.333332839e-01f;
    Float small = x + x * square * p;
    Float large = 1.0f - 2.0f / (bounded_exp(size + size) + 1.0f);
    Float result = x < 0.0f ? -large : large;
    return size < 0.625f ? small : result;
}

}  // namespace rayinfer
