// Products over 32-bit words: a word is one float or a pair of bfloat16, and so is a word of the paged cache.
#pragma once

#include "lanes.h"

namespace rayinfer {

template <class T>
constexpr int kPerWord = 4 / sizeof(T);

// Add to each lane the product of its word with the one word that all lanes share; sums are kept in float32.
template <class T, int Width>
struct Product;

template <int Width>
struct Product<float, Width> {
    using Sums = typename Lanes<Width>::Float;
    using Words = typename Lanes<Width>::Word;
    static inline Sums add(Sums sums, Words words, uint32_t shared) {
        float factor;
        std::memcpy(&factor, &shared, sizeof(factor));
        return sums + (Sums)words * factor;
    }
    // The words whose second half is not to be read.
    static inline Words first_of_pair(Words words) { return words; }
};

template <int Width>
struct Product<bfloat16, Width> {
    using Sums = typename Lanes<Width>::Float;
    using Words = typename Lanes<Width>::Word;
    static inline Sums add(Sums sums, Words words, uint32_t shared) {
        Words factors = Words{} + shared;
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
        if constexpr (Width == 16)
            return (Sums)_mm512_dpbf16_ps((__m512)sums, (__m512bh)words, (__m512bh)factors);
        else
            return (Sums)_mm256_dpbf16_ps((__m256)sums, (__m256bh)words, (__m256bh)factors);
#else
        sums = sums + (Sums)(words << 16) * (Sums)(factors << 16);
        return sums + (Sums)(words & 0xffff0000u) * (Sums)(factors & 0xffff0000u);
#endif
    }
    static inline Words first_of_pair(Words words) { return words & 0xffffu; }
};

}  // namespace rayinfer
