// Sums of products of small integers, in registers: the heart of products with quantized rows.
//
// A register holds four neighboring inputs of each of `kByteLanes` outputs. Sums are exact: nothing saturates.
// On AArch64 both factors have signs (`kMultipliesSigned`); rows lie from -127 to 127.
#pragma once

#include "gemm/encoded_rows.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rayinfer {

#if defined(__AVX512BW__)
constexpr int kByteLanes = 16;
#elif defined(__AVX2__)
constexpr int kByteLanes = 8;
#else
constexpr int kByteLanes = 4;
#endif

// Whether bytes are multiplied as they are.
#if defined(__AVX512BW__) ? defined(__AVX512VNNI__) : defined(__AVX2__) && defined(__AVXVNNI__)
#define RAYINFER_HAS_BYTE_DOTS 1
#elif defined(__aarch64__)
#define RAYINFER_HAS_BYTE_DOTS 1
#else
#define RAYINFER_HAS_BYTE_DOTS 0
#endif

// 6 x 4 of 32 registers hold sums, 6 x 2 of 16; without an instruction for four products factors take more of them.
constexpr int64_t kByteTileRows = RAYINFER_HAS_BYTE_DOTS ? 6 : 4;

typedef int32_t ByteSums __attribute__((vector_size(kByteLanes * 4)));
typedef uint32_t Quads __attribute__((vector_size(kByteLanes * 4)));
typedef float SumFloats __attribute__((vector_size(kByteLanes * 4)));

enum class Sign { rows, columns };  // which of the two factors has one

#if RAYINFER_HAS_BYTE_DOTS

template <Sign>
inline Quads prepared_columns(Quads columns) {
    return columns;
}
template <Sign>
inline Quads prepared_row(uint32_t quad) {
    return Quads{} + quad;
}

#if defined(__aarch64__)
template <Sign>
inline __attribute__((always_inline)) void add_products(ByteSums& sums, Quads columns, Quads row) {
    const int8x16_t weights = (int8x16_t)columns, numbers = (int8x16_t)row;
#if defined(__ARM_FEATURE_DOTPROD)
    sums = (ByteSums)vdotq_s32((int32x4_t)sums, weights, numbers);
#else
    // Two products fit into sixteen bits, for 2 x 128 x 127 < 2^15.
    const int16x8_t first = vmull_s8(vget_low_s8(weights), vget_low_s8(numbers));
    const int16x8_t second = vmull_high_s8(weights, numbers);
    sums = (ByteSums)vpadalq_s16((int32x4_t)sums, vpaddq_s16(first, second));
    asm("" : "+w"(sums));  // otherwise GCC fetches numbers early, and then has to spill sums
#endif
}
#else
// GCC keeps sums in registers around the instruction, but not around its intrinsic.
template <Sign sign>
inline __attribute__((always_inline)) void add_products(ByteSums& sums, Quads columns, Quads row) {
    const Quads with = sign == Sign::columns ? columns : row, without = sign == Sign::columns ? row : columns;
#if defined(__AVX512VNNI__)
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(without), "v"(with));
#else
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(without), "x"(with));
#endif
}
#endif

#else

typedef int16_t Shorts __attribute__((vector_size(kByteLanes * 4)));

struct WideQuads {
    Shorts even, odd;
};

inline ByteSums products_of_pairs(Shorts a, Shorts b) {
#if defined(__AVX512BW__)
    return (ByteSums)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (ByteSums)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (ByteSums)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    const ByteSums first = ((ByteSums)a << 16 >> 16) * ((ByteSums)b << 16 >> 16);
    return first + ((ByteSums)a >> 16) * ((ByteSums)b >> 16);
#endif
}

inline WideQuads widened_with_sign(Quads quads) { return {(Shorts)quads << 8 >> 8, (Shorts)quads >> 8}; }
inline WideQuads widened_without_sign(Quads quads) {
    return {(Shorts)(quads & 0x00ff00ffu), (Shorts)(quads >> 8 & 0x00ff00ffu)};
}

template <Sign sign>
inline WideQuads prepared_columns(Quads columns) {
    return sign == Sign::columns ? widened_with_sign(columns) : widened_without_sign(columns);
}
template <Sign sign>
inline WideQuads prepared_row(uint32_t quad) {
    return sign == Sign::rows ? widened_with_sign(Quads{} + quad) : widened_without_sign(Quads{} + quad);
}

template <Sign>
inline __attribute__((always_inline)) void add_products(ByteSums& sums, WideQuads columns, WideQuads row) {
    sums += products_of_pairs(columns.even, row.even);
    sums += products_of_pairs(columns.odd, row.odd);
}

#endif

}  // namespace rayinfer
