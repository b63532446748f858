// Products of weights whose inputs have groups with a scale, and maybe an offset, of float32 each.
//
// Panels are dequantized to the model's type, some inputs at a time, and multiplied as weights of that type are: so results
// are the bits of a checkpoint that was dequantized before.

#include <algorithm>

#include "core/fetch_ahead.h"
#include "core/thread_team.h"
#include "gemm/panel_products.h"
#include "gemm/register_sums.h"

namespace rayinfer {
namespace {

// So many of two panels stay in the first level cache until they are multiplied; even, as inputs lie in pairs.
template <class T>
constexpr int64_t kInputsAtOnce = 256 / sizeof(T);

constexpr int64_t kScaleBytes = kPanelWidth * (int64_t)sizeof(float);

// A byte for each lane.
RAYINFER_INLINE Word load_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
    return (Word)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
    return (Word)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
    Word words;
    for (int64_t lane = 0; lane < kWidth; ++lane) words[lane] = from[lane];
    return words;
#endif
}

RAYINFER_INLINE Float to_floats(Word words) { return __builtin_convertvector((Int)words, Float); }

// What codes of each format stand for before they are scaled.
struct Signed4 {
    static RAYINFER_INLINE Float number(Word code, const float*) { return to_floats(code - 8u); }
};

struct Unsigned4 {
    static RAYINFER_INLINE Float number(Word code, const float*) { return to_floats(code); }
};

struct Table4 {
    static RAYINFER_INLINE Float number(Word code, const float* table) {
#if defined(__AVX512F__)
        return (Float)_mm512_permutexvar_ps((__m512i)code, _mm512_loadu_ps(table));
#elif defined(__AVX2__)
        const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)code);
        const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), (__m256i)code);
        return (Float)_mm256_blendv_ps(low, high, (__m256)(code << 28));
#else
        Float numbers;
        for (int64_t lane = 0; lane < kWidth; ++lane) numbers[lane] = table[code[lane]];
        return numbers;
#endif
    }
};

struct Integers8 {
    static RAYINFER_INLINE Float number(Word code, const float*) {
        return __builtin_convertvector((Int)(code << 24) >> 24, Float);
    }
};

// e4m3: an exponent of 0 has no leading one.
struct Floats8 {
    static RAYINFER_INLINE Float number(Word code, const float*) {
        const Word digits = code & 0x7fu;
        const Float normal = (Float)((digits << 20) + (120u << 23));
        const Float small = to_floats(digits) * 0.001953125f;
        const Word is_normal = (Word)(digits > 7u), sign = (code & 0x80u) << 24;
        return (Float)(((Word)normal & is_normal) | ((Word)small & ~is_normal) | sign);
    }
};

RAYINFER_INLINE void put_pair(float* panel, int64_t pair, int64_t column, Float first, Float second) {
    store(panel + 2 * pair * kPanelWidth + column, first);
    store(panel + (2 * pair + 1) * kPanelWidth + column, second);
}

#if defined(__AVX512BF16__)
alignas(64) constexpr uint16_t kInterleaved[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                   8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
#endif

RAYINFER_INLINE void put_pair(bfloat16* panel, int64_t pair, int64_t column, Float first, Float second) {
#if defined(__AVX512BF16__)
    // The instruction makes 0 of numbers below 1.2e-38.
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    const __m512i both = _mm512_permutexvar_epi16(_mm512_load_si512(kInterleaved), halves);
#else
    const Word both = nearest_upper_half(first) >> 16 | (nearest_upper_half(second) & 0xffff0000u);
#endif
    std::memcpy(panel + (pair * kPanelWidth + column) * 2, &both, sizeof(both));
}

// Some pairs of inputs of a panel's group; `to` is where the first of them lies.
template <class Codes, bool IsFourBit, bool HasOffsets, class T>
void dequantize_group(const uint8_t* group, Range pairs, const float* table, T* to) {
    constexpr int64_t kPairBytes = IsFourBit ? kPanelWidth : 2 * kPanelWidth;
    const uint8_t* codes = group + kScaleBytes * (HasOffsets ? 2 : 1) + pairs.begin * kPairBytes;
    for (int64_t column = 0; column < kPanelWidth; column += kWidth) {
        const Float scales = load_raw<Float>(group + column * 4);
        Float offsets = {};
        if constexpr (HasOffsets) offsets = load_raw<Float>(group + kScaleBytes + column * 4);
        auto weight_of = [&](Word code) RAYINFER_LAMBDA {
            const Float number = Codes::number(code, table);
            return HasOffsets ? number * scales + offsets : number * scales;
        };
        for (int64_t pair = 0; pair < pairs.size(); ++pair) {
            const uint8_t* here = codes + pair * kPairBytes + column;
            if (column == 0) fetch<kPairBytes>(here + kStreamAhead);
            Word first, second;
            if constexpr (IsFourBit) {
                const Word both = load_bytes(here);
                first = both & 15u;
                second = both >> 4;
            } else {
                first = load_bytes(here);
                second = load_bytes(here + kPanelWidth);
            }
            put_pair(to, pair, column, weight_of(first), weight_of(second));
        }
    }
}

// Some inputs of a panel.
template <class Codes, bool IsFourBit, bool HasOffsets, class T>
void dequantize(const Weight& weight, int64_t panel, Range inputs, T* to) {
    const int64_t panel_bytes = panel_bytes_of_groups(weight);
    const int64_t group_bytes = panel_bytes / (weight.in_features / weight.group_size);
    for (int64_t begin = inputs.begin, end; begin < inputs.end; begin = end) {
        const int64_t group = begin / weight.group_size, first = group * weight.group_size;
        end = std::min(inputs.end, first + weight.group_size);
        const uint8_t* here = weight.panels + panel * panel_bytes + group * group_bytes;
        dequantize_group<Codes, IsFourBit, HasOffsets>(here, {(begin - first) / 2, (end - first) / 2}, weight.table, to);
        to += (end - begin) * kPanelWidth;
    }
}

template <class T>
void dequantize(const Weight& weight, int64_t panel, Range inputs, T* to) {
    switch (weight.format) {
        case Format::int4_groups:
            if (weight.has_offsets) return dequantize<Unsigned4, true, true>(weight, panel, inputs, to);
            return dequantize<Signed4, true, false>(weight, panel, inputs, to);
        case Format::int8_groups:
            if (weight.has_offsets) return dequantize<Integers8, false, true>(weight, panel, inputs, to);
            return dequantize<Integers8, false, false>(weight, panel, inputs, to);
        case Format::float8_groups: return dequantize<Floats8, false, false>(weight, panel, inputs, to);
        case Format::table4_groups: return dequantize<Table4, true, false>(weight, panel, inputs, to);
        default: return;
    }
}

}  // namespace

template <class T>
void group_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums) {
    alignas(kLine) T panels[kPanelsAtOnce * kPanelWidth * kInputsAtOnce<T>];
    for (int64_t begin = 0, end; begin < weight.in_features; begin = end) {
        end = std::min(weight.in_features, begin + kInputsAtOnce<T>);
        const int64_t count = end - begin;
        for (int64_t p = 0; p < num_panels; ++p)
            dequantize(weight, panel + p, {begin, end}, panels + p * count * kPanelWidth);
        const RowTile part = {rows.rows + begin * (int64_t)sizeof(T), rows.row_bytes, rows.num_rows};
        add_float_products(part, panels, num_panels, count, begin > 0, sums);
    }
}

template void group_products<float>(const Weight&, RowTile, int64_t, int64_t, float*);
template void group_products<bfloat16>(const Weight&, RowTile, int64_t, int64_t, float*);

}  // namespace rayinfer
