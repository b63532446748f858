// Sums of a few rows times a few vectors of columns, all in registers: the heart of attention and of linear layers.
#pragma once

#include "gemm/encoded_rows.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace rayinfer {

#define RAYINFER_INLINE inline __attribute__((always_inline))
#define RAYINFER_LAMBDA __attribute__((always_inline))

// Otherwise GCC fetches factors early where it may, and then has to spill sums.
#if defined(__aarch64__)
#define RAYINFER_VECTOR "w"
#else
#define RAYINFER_VECTOR "v"
#endif
#define RAYINFER_KEEP_IN_REGISTER(x) asm("" : "+" RAYINFER_VECTOR(x))

template <int W>
struct Bytes {
    typedef int8_t Vector __attribute__((vector_size(W)));
};

template <int W>
RAYINFER_INLINE typename Lanes<W>::Float load_columns(const float* from) {
    return load_raw<typename Lanes<W>::Float>(from);
}

template <int W>
RAYINFER_INLINE typename Lanes<W>::Float load_columns(const int8_t* from) {
    using Columns = typename Lanes<W>::Float;
#if defined(__AVX512F__)
    if constexpr (W == 16) return (Columns)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#endif
#if defined(__AVX2__)
    if constexpr (W == 8) return (Columns)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#endif
#if defined(__aarch64__)
    const int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(load_raw<uint32_t>(from)));
    return (Columns)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
#endif
    return __builtin_convertvector(load_raw<typename Bytes<W>::Vector>(from), Columns);
}

// sums + columns x factors. With 16 registers GCC keeps sums and columns in them around the instruction only: else it
// loads columns again for every row. On AArch64 the intrinsic is always one instruction, whatever is around it.
#if defined(__AVX2__) && defined(__FMA__)
constexpr int kWidthOfOwnProducts = 8;
#elif defined(__aarch64__)
constexpr int kWidthOfOwnProducts = 4;
#else
constexpr int kWidthOfOwnProducts = 0;
#endif
template <class Columns>
RAYINFER_INLINE Columns add_product(Columns sums, Columns columns, Columns factors) {
#if defined(__AVX2__) && defined(__FMA__)
    asm("vfmadd231ps %2, %1, %0" : "+x"(sums) : "x"(columns), "x"(factors));
#elif defined(__aarch64__)
    sums = (Columns)vfmaq_f32((float32x4_t)sums, (float32x4_t)columns, (float32x4_t)factors);
    RAYINFER_KEEP_IN_REGISTER(sums);
#endif
    return sums;
}

// A unit is one number of a column, or a pair of bfloat16. It is multiplied in `kParts` steps, by one factor each.
template <class E, int W>
struct Units {
    using Columns = typename Lanes<W>::Float;
    using Factor = float;
    static constexpr int kParts = 1;
    template <int Part>
    static RAYINFER_INLINE Columns columns(const E* from) {
        return load_columns<W>(from);
    }
    static RAYINFER_INLINE Columns first_of_pair(const E* from) { return columns<0>(from); }
    static RAYINFER_INLINE Columns second_of_pair(const E* from) { return columns<0>(from); }
    static RAYINFER_INLINE Columns add(Columns sums, Columns columns, Factor factor) {
        const Columns factors = factor - Columns{};  // 0 + factor would be a sum that is computed: of -0 it makes 0
        if constexpr (kSimd < 16 && W == kWidthOfOwnProducts) return add_product(sums, columns, factors);
        return sums + columns * factors;
    }
};

template <int W>
struct WidenedPairs {
    using Columns = typename Lanes<W>::Float;
    using Words = typename Lanes<W>::Word;
    using Factor = float;
    static constexpr int kParts = 2;
    template <int Part>
    static RAYINFER_INLINE Columns columns(const bfloat16* from) {
        const Words words = load_raw<Words>(from);
        return (Columns)(Part == 0 ? words << 16 : words & 0xffff0000u);
    }
    static RAYINFER_INLINE Columns first_of_pair(const bfloat16* from) { return columns<0>(from); }
    static RAYINFER_INLINE Columns second_of_pair(const bfloat16* from) { return columns<1>(from); }
    static RAYINFER_INLINE Columns add(Columns sums, Columns columns, Factor factor) {
        const Columns factors = factor - Columns{};  // 0 + factor would be a sum that is computed: of -0 it makes 0
        if constexpr (W == kWidthOfOwnProducts) return add_product(sums, columns, factors);
        sums += columns * factors;
        RAYINFER_KEEP_IN_REGISTER(sums);
        return sums;
    }
};

#if (defined(__AVX512BF16__) && defined(__AVX512VL__)) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
template <int W>
struct Pairs {
    using Columns = typename Lanes<W>::Word;
    using Sums = typename Lanes<W>::Float;
    using Factor = uint32_t;
    static constexpr int kParts = 1;
    template <int Part>
    static RAYINFER_INLINE Columns columns(const bfloat16* from) {
        return load_raw<Columns>(from);
    }
    static RAYINFER_INLINE Columns first_of_pair(const bfloat16* from) { return columns<0>(from) & 0xffffu; }
    static RAYINFER_INLINE Columns second_of_pair(const bfloat16* from) { return columns<0>(from) & 0xffff0000u; }
    static RAYINFER_INLINE Sums add(Sums sums, Columns columns, Factor factor) {
        const Columns factors = Columns{} + factor;
#if defined(__aarch64__)
        sums = (Sums)vbfdotq_f32((float32x4_t)sums, (bfloat16x8_t)columns, (bfloat16x8_t)factors);
        RAYINFER_KEEP_IN_REGISTER(sums);
        return sums;
#else
        if constexpr (W == 16)
            return (Sums)_mm512_dpbf16_ps((__m512)sums, (__m512bh)columns, (__m512bh)factors);
        else
            return (Sums)_mm256_dpbf16_ps((__m256)sums, (__m256bh)columns, (__m256bh)factors);
#endif
    }
};
template <int W>
struct Units<bfloat16, W> : Pairs<W> {};
#else
template <int W>
struct Units<bfloat16, W> : WidenedPairs<W> {};
#endif

// Adds one unit of each vector, times one factor for each row and part, to all sums.
template <class E, int Rows, int Vectors, int W>
struct Sums {
    using U = Units<E, W>;
    typename Lanes<W>::Float at[Rows][Vectors];

    template <int Part, class Columns>
    RAYINFER_INLINE void add_part(Columns columns, const Plain<E>* factors, int64_t stride) {
        typename U::Columns parts[Vectors];
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) parts[v] = columns(v);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
            typename U::Factor factor;
            std::memcpy(&factor, factors + r * stride + Part, sizeof(factor));
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v) at[r][v] = U::add(at[r][v], parts[v], factor);
        }
    }

    template <class From>
    RAYINFER_INLINE void add(From from, const Plain<E>* factors, int64_t stride) {
        add_part<0>([&](int v) RAYINFER_LAMBDA { return U::template columns<0>(from(v)); }, factors, stride);
        if constexpr (U::kParts == 2)
            add_part<1>([&](int v) RAYINFER_LAMBDA { return U::template columns<1>(from(v)); }, factors, stride);
    }

    // Without the other one of a pair: NaN perhaps, which not even a factor of zero may touch.
    template <class From>
    RAYINFER_INLINE void add_first_half(From from, const Plain<E>* factors, int64_t stride) {
        add_part<0>([&](int v) RAYINFER_LAMBDA { return U::first_of_pair(from(v)); }, factors, stride);
    }
    template <class From>
    RAYINFER_INLINE void add_second_half(From from, const Plain<E>* factors, int64_t stride) {
        add_part<U::kParts - 1>([&](int v) RAYINFER_LAMBDA { return U::second_of_pair(from(v)); }, factors, stride);
    }
};

}  // namespace rayinfer
