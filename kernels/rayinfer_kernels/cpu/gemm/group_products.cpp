// Products of weights whose inputs have groups with a scale, and maybe an offset, of float32 each.
//
// Panels are dequantized to the model's type, some at a time, and multiplied as weights of that type are: so results are
// the bits of a checkpoint that was dequantized before.

#include "gemm/panel_products.h"
#include "gemm/register_sums.h"
#include "gemm/row_buffer.h"

namespace rayinfer {
namespace {

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

RAYINFER_INLINE void put_pair(bfloat16* panel, int64_t pair, int64_t column, Float first, Float second) {
    const Word both = nearest_upper_half(first) >> 16 | (nearest_upper_half(second) & 0xffff0000u);
    std::memcpy(panel + (pair * kPanelWidth + column) * 2, &both, sizeof(both));
}

// One group of a panel: `to` is where its first pair of inputs lies.
template <class Codes, bool IsFourBit, bool HasOffsets, class T>
void dequantize_group(const uint8_t* group, int64_t num_pairs, const float* table, T* to) {
    const uint8_t* codes = group + kScaleBytes * (HasOffsets ? 2 : 1);
    for (int64_t column = 0; column < kPanelWidth; column += kWidth) {
        const Float scales = load_raw<Float>(group + column * 4);
        Float offsets = {};
        if constexpr (HasOffsets) offsets = load_raw<Float>(group + kScaleBytes + column * 4);
        auto weight_of = [&](Word code) RAYINFER_LAMBDA {
            const Float number = Codes::number(code, table);
            return HasOffsets ? number * scales + offsets : number * scales;
        };
        for (int64_t pair = 0; pair < num_pairs; ++pair) {
            Word first, second;
            if constexpr (IsFourBit) {
                const Word both = load_bytes(codes + pair * kPanelWidth + column);
                first = both & 15u;
                second = both >> 4;
            } else {
                first = load_bytes(codes + 2 * pair * kPanelWidth + column);
                second = load_bytes(codes + (2 * pair + 1) * kPanelWidth + column);
            }
            put_pair(to, pair, column, weight_of(first), weight_of(second));
        }
    }
}

template <class Codes, bool IsFourBit, bool HasOffsets, class T>
void dequantize(const Weight& weight, int64_t panel, int64_t num_panels, T* to) {
    const int64_t num_pairs = weight.group_size / 2, num_groups = weight.in_features / weight.group_size;
    const int64_t group_bytes = panel_bytes_of_groups(weight) / num_groups;
    const uint8_t* group = weight.panels + panel * panel_bytes_of_groups(weight);
    for (int64_t i = 0; i < num_panels * num_groups; ++i, group += group_bytes, to += weight.group_size * kPanelWidth)
        dequantize_group<Codes, IsFourBit, HasOffsets>(group, num_pairs, weight.table, to);
}

template <class T>
void dequantize(const Weight& weight, int64_t panel, int64_t num_panels, T* to) {
    switch (weight.format) {
        case Format::int4_groups:
            if (weight.has_offsets) return dequantize<Unsigned4, true, true>(weight, panel, num_panels, to);
            return dequantize<Signed4, true, false>(weight, panel, num_panels, to);
        case Format::int8_groups:
            if (weight.has_offsets) return dequantize<Integers8, false, true>(weight, panel, num_panels, to);
            return dequantize<Integers8, false, false>(weight, panel, num_panels, to);
        case Format::float8_groups: return dequantize<Floats8, false, false>(weight, panel, num_panels, to);
        case Format::table4_groups: return dequantize<Table4, true, false>(weight, panel, num_panels, to);
        default: return;
    }
}

}  // namespace

template <class T>
void group_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums) {
    thread_local RowBuffer buffer;
    T* panels = buffer.rows<T>(num_panels * kPanelWidth, weight.in_features);
    dequantize(weight, panel, num_panels, panels);
    Weight floats = weight;
    floats.panels = (const uint8_t*)panels;
    floats.format = std::is_same_v<T, float> ? Format::float32 : Format::bfloat16;
    float_products<T>(floats, rows, 0, num_panels, sums);
}

template void group_products<float>(const Weight&, RowTile, int64_t, int64_t, float*);
template void group_products<bfloat16>(const Weight&, RowTile, int64_t, int64_t, float*);

}  // namespace rayinfer
