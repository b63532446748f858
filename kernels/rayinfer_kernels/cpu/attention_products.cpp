#include "attention_products.h"

#include <algorithm>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace rayinfer {
namespace {

#define RAYINFER_INLINE inline __attribute__((always_inline))
#define RAYINFER_LAMBDA __attribute__((always_inline))

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
    return __builtin_convertvector(load_raw<typename Bytes<W>::Vector>(from), Columns);
}

// A unit is one number of the cache, or a pair of bfloat16. It is multiplied in `kParts` steps, by one factor each.
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
    static RAYINFER_INLINE Columns add(Columns sums, Columns columns, Factor factor) {
        return sums + columns * (factor - Columns{});  // 0 + factor would be a sum that is computed: of -0 it makes 0
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
    static RAYINFER_INLINE Columns add(Columns sums, Columns columns, Factor factor) {
        return sums + columns * (factor - Columns{});  // 0 + factor would be a sum that is computed: of -0 it makes 0
    }
};

#if defined(__AVX512BF16__) && defined(__AVX512VL__)
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
    static RAYINFER_INLINE Sums add(Sums sums, Columns columns, Factor factor) {
        const Columns factors = Columns{} + factor;
        if constexpr (W == 16)
            return (Sums)_mm512_dpbf16_ps((__m512)sums, (__m512bh)columns, (__m512bh)factors);
        else
            return (Sums)_mm256_dpbf16_ps((__m256)sums, (__m256bh)columns, (__m256bh)factors);
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
#pragma GCC unroll 8
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

    // Without what lies behind the first of a pair: NaN perhaps, which not even a factor of zero may touch.
    template <class From>
    RAYINFER_INLINE void add_half(From from, const Plain<E>* factors, int64_t stride) {
        add_part<0>([&](int v) RAYINFER_LAMBDA { return U::first_of_pair(from(v)); }, factors, stride);
    }
};

template <class E, int Rows, int Vectors, int W>
__attribute__((noinline)) void score_block(const ScoreTask<E>& task) {
    constexpr int64_t n = kNeighbours<E>;
    using Float = typename Lanes<W>::Float;
    Sums<E, Rows, Vectors, W> sums = {};
    const E* keys[Vectors];
    for (int v = 0; v < Vectors; ++v) keys[v] = task.keys[v];
    const int64_t step = task.block_size * n, stride = task.query_stride;
    const Plain<E>* query = task.query;
    for (int64_t at = 0, d = 0; d < task.padded_dim; d += n, at += step)
        sums.add([&](int v) RAYINFER_LAMBDA { return keys[v] + at; }, query + d, stride);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
        Float factors = Float{} + task.factor;
        if constexpr (Cache<E>::kHasScales) factors *= load_raw<Float>(task.scales + v * W);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Float scores = sums.at[r][v] * factors;
            std::memcpy(task.scores + r * task.score_stride + v * W, &scores, sizeof(scores));
        }
    }
}

template <class E, int Rows, int Vectors>
__attribute__((noinline)) void add_value_block(const ValueTask<E>& task, int64_t channel) {
    constexpr int64_t n = kNeighbours<E>;
    using Float = typename Lanes<kSimd>::Float;
    Sums<E, Rows, Vectors, kSimd> sums;
    float* sums_at = task.sums + channel;
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v)
            sums.at[r][v] = load_raw<Float>(sums_at + r * task.sum_stride + v * kSimd) * task.decay[r];
    const int64_t step = task.padded_dim * n, stride = task.weight_stride, num_tokens = task.num_tokens / n * n;
    const Plain<E>* weights = task.weights;
    const E* const* pieces = task.pieces;
    int64_t token = 0;
    const E* values = nullptr;
    auto columns = [&](int v) RAYINFER_LAMBDA { return values + v * kSimd * n; };
    while (token < num_tokens) {
        values = *pieces++ + channel * n;
        const int64_t end = std::min(num_tokens, token + task.piece_size);
        for (; token < end; token += n, values += step) sums.add(columns, weights + token, stride);
    }
    if (token < task.num_tokens) {
        if (token % task.piece_size == 0) values = *pieces + channel * n;
        sums.add_half(columns, weights + token, stride);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v)
            std::memcpy(sums_at + r * task.sum_stride + v * kSimd, &sums.at[r][v], sizeof(Float));
}

// Calls `run` with a constant for the number of rows.
template <class Run>
RAYINFER_INLINE void with_rows(int64_t num_rows, Run run) {
    switch (num_rows) {
        case 1: return run(std::integral_constant<int, 1>());
        case 2: return run(std::integral_constant<int, 2>());
        case 3: return run(std::integral_constant<int, 3>());
        case 4: return run(std::integral_constant<int, 4>());
        case 5: return run(std::integral_constant<int, kTileRows < 5 ? 4 : 5>());
        default: return run(std::integral_constant<int, kTileRows < 6 ? 4 : 6>());
    }
}

template <class E, int W>
void score_tokens_of(int64_t num_rows, int64_t num_vectors, const ScoreTask<E>& task) {
    with_rows(num_rows, [&](auto rows) {
        if (num_vectors == kTileVectors) return score_block<E, rows, kTileVectors, W>(task);
        if (num_vectors == 2) return score_block<E, rows, 2, W>(task);
        return score_block<E, rows, 1, W>(task);
    });
}

}  // namespace

template <class E>
void score_tokens(int64_t num_rows, int64_t num_vectors, int64_t width, const ScoreTask<E>& task) {
    if (width == kSimd) return score_tokens_of<E, kSimd>(num_rows, num_vectors, task);
    if constexpr (kSimd == 16) score_tokens_of<E, 8>(num_rows, num_vectors, task);
}

template <class E>
void add_values(int64_t num_rows, const ValueTask<E>& task) {
    constexpr int64_t wide = kTileVectors * kSimd;
    for (int64_t channel = 0; channel < task.padded_dim;) {
        const bool is_wide = task.padded_dim - channel >= wide;
        with_rows(num_rows, [&](auto rows) {
            if (is_wide) return add_value_block<E, rows, kTileVectors>(task, channel);
            return add_value_block<E, rows, 1>(task, channel);
        });
        channel += is_wide ? wide : kSimd;
    }
}

#define RAYINFER_PRODUCTS(E)                                                              \
    template void score_tokens<E>(int64_t, int64_t, int64_t, const ScoreTask<E>&);        \
    template void add_values<E>(int64_t, const ValueTask<E>&);

RAYINFER_PRODUCTS(float)
RAYINFER_PRODUCTS(bfloat16)
RAYINFER_PRODUCTS(int8_t)

}  // namespace rayinfer
