// Products of weights whose inputs have groups with a scale, and maybe an offset, of float32 each.
//
// Panels are dequantized to the model's type, some inputs at a time, and multiplied as weights of that type are: so results
// are the bits of a checkpoint that was dequantized before.

#include <algorithm>
#include <array>

#include "core/fetch_ahead.h"
#include "core/thread_team.h"
#include "gemm/panel_products.h"
#include "gemm/register_sums.h"
#include "gemm/row_tiles.h"

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
#elif defined(__aarch64__)
    const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(load_raw<uint32_t>(from)));
    return (Word)vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
#else
    Word words;
    for (int64_t lane = 0; lane < kWidth; ++lane) words[lane] = from[lane];
    return words;
#endif
}

RAYINFER_INLINE Float to_floats(Word words) { return __builtin_convertvector((Int)words, Float); }

// The entry of 16 that the lowest four bits of each lane name.
RAYINFER_INLINE Float look_up(Word code, const float* table) {
#if defined(__AVX512F__)
    return (Float)_mm512_permutexvar_ps((__m512i)code, _mm512_loadu_ps(table));
#elif defined(__AVX2__)
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)code);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), (__m256i)code);
    return (Float)_mm256_blendv_ps(low, high, (__m256)(code << 28));
#elif defined(__aarch64__)
    const uint8_t* bytes = (const uint8_t*)table;
    const uint8x16x4_t entries = {vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)};
    return (Float)vqtbl4q_u8(entries, (uint8x16_t)((code & 15u) * 0x04040404u + 0x03020100u));
#else
    Float numbers;
    for (int64_t lane = 0; lane < kWidth; ++lane) numbers[lane] = table[code[lane] & 15u];
    return numbers;
#endif
}

// What the lowest four bits count from `First` on. With AVX-512 one permutation is less than a mask and a conversion.
template <int First>
RAYINFER_INLINE Float lowest_four_bits(Word code) {
    alignas(kLine) static constexpr auto kNumbers = [] {
        std::array<float, 16> numbers{};
        for (int i = 0; i < 16; ++i) numbers[i] = (float)(First + i);
        return numbers;
    }();
    return kSimd == 16 ? look_up(code, kNumbers.data()) : to_floats((code & 15u) + (uint32_t)First);
}

// What codes of each format stand for before they are scaled; of four bits, the bits above may hold anything.
struct Signed4 {
    static RAYINFER_INLINE Float number(Word code, const float*) { return lowest_four_bits<-8>(code); }
};

struct Unsigned4 {
    static RAYINFER_INLINE Float number(Word code, const float*) { return lowest_four_bits<0>(code); }
};

struct Table4 {
    static RAYINFER_INLINE Float number(Word code, const float* table) { return look_up(code, table); }
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

// How the codes of a group are laid out.
template <class TCodes, bool AreFourBit, bool HasOffsets>
struct Layout {
    using Codes = TCodes;
    static constexpr bool kAreFourBit = AreFourBit, kHasOffsets = HasOffsets;
    static constexpr int64_t kCodesAt = kScaleBytes * (HasOffsets ? 2 : 1);
    static constexpr int64_t kPairBytes = AreFourBit ? kPanelWidth : 2 * kPanelWidth;
};

template <class Run>
void with_layout(const Weight& weight, const Run& run) {
    switch (weight.format) {
        case Format::int4_groups:
            if (weight.has_offsets) return run(Layout<Unsigned4, true, true>());
            return run(Layout<Signed4, true, false>());
        case Format::int8_groups:
            if (weight.has_offsets) return run(Layout<Integers8, false, true>());
            return run(Layout<Integers8, false, false>());
        case Format::float8_groups: return run(Layout<Floats8, false, false>());
        case Format::table4_groups: return run(Layout<Table4, true, false>());
        default: return;
    }
}

// Weights of a register's outputs in one group.
template <class L>
struct GroupColumns {
    const float* table;
    Float scales, offsets;

    GroupColumns(const uint8_t* group, int64_t column, const float* table)
        : table(table), scales(load_raw<Float>(group + column * 4)), offsets{} {
        if constexpr (L::kHasOffsets) offsets = load_raw<Float>(group + kScaleBytes + column * 4);
    }

    RAYINFER_INLINE Float weights_of(Word codes) const {
        const Float numbers = L::Codes::number(codes, table);
        return L::kHasOffsets ? numbers * scales + offsets : numbers * scales;
    }

    RAYINFER_INLINE void read_pair(const uint8_t* codes, Float& first, Float& second) const {
        const Word words = load_bytes(codes);
        first = weights_of(words);
        second = weights_of(L::kAreFourBit ? words >> 4 : load_bytes(codes + kPanelWidth));
    }
};

// Calls `run` with each group that has some of the inputs, which of its pairs these are, and the first one's number.
template <class L, class Run>
RAYINFER_INLINE void for_groups(const Weight& weight, int64_t panel, Range inputs, const Run& run) {
    const int64_t panel_bytes = panel_bytes_of_groups(weight);
    const int64_t group_bytes = panel_bytes / (weight.in_features / weight.group_size);
    for (int64_t begin = inputs.begin, end; begin < inputs.end; begin = end) {
        const int64_t group = begin / weight.group_size, first = group * weight.group_size;
        end = std::min(inputs.end, first + weight.group_size);
        run(weight.panels + panel * panel_bytes + group * group_bytes, Range{(begin - first) / 2, (end - first) / 2}, begin);
    }
}

#if defined(__AVX512BF16__) && defined(__AVX512VL__)
alignas(64) constexpr uint16_t kInterleaved[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                   8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
#endif

RAYINFER_INLINE Word to_pairs(Float first, Float second) {
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
    // The instruction makes 0 of numbers below 1.2e-38.
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    return (Word)_mm512_permutexvar_epi16(_mm512_load_si512(kInterleaved), halves);
#else
    return nearest_upper_half(first) >> 16 | (nearest_upper_half(second) & 0xffff0000u);
#endif
}

RAYINFER_INLINE void put_pair(float* panel, int64_t pair, int64_t column, Float first, Float second) {
    store(panel + 2 * pair * kPanelWidth + column, first);
    store(panel + (2 * pair + 1) * kPanelWidth + column, second);
}

RAYINFER_INLINE void put_pair(bfloat16* panel, int64_t pair, int64_t column, Float first, Float second) {
    const Word both = to_pairs(first, second);
    std::memcpy(panel + (pair * kPanelWidth + column) * 2, &both, sizeof(both));
}

// Some inputs of a panel.
template <class L, class T>
void dequantize(const Weight& weight, int64_t panel, Range inputs, int64_t distance, T* to) {
    for_groups<L>(weight, panel, inputs, [&](const uint8_t* group, Range pairs, int64_t input) RAYINFER_LAMBDA {
        T* here = to + (input - inputs.begin) * kPanelWidth;
        const uint8_t* codes = group + L::kCodesAt + pairs.begin * L::kPairBytes;
        for (int64_t column = 0; column < kPanelWidth; column += kWidth) {
            const GroupColumns<L> columns(group, column, weight.table);
            for (int64_t pair = 0; pair < pairs.size(); ++pair) {
                if (column == 0) fetch<L::kPairBytes>(codes + pair * L::kPairBytes + distance);
                Float first, second;
                columns.read_pair(codes + pair * L::kPairBytes + column, first, second);
                put_pair(here, pair, column, first, second);
            }
        }
    });
}

#if defined(__AVX512BF16__) && defined(__AVX512VL__)
// Few rows are multiplied by each pair of inputs in the registers where it was dequantized, in the order of float_products.
template <class L, int Rows>
void multiply_few(const Weight& weight, RowTile rows, int64_t panel, float* to, int64_t stride) {
    constexpr int kVectors = kPanelWidth / kSimd;
    Sums<bfloat16, Rows, kVectors, kSimd> sums = {};
    const int64_t row_stride = rows.row_bytes / (int64_t)sizeof(bfloat16);
    const int64_t distance = weight.prefetch_distance(rows.num_rows, kStreamAhead, kStreamAhead);
    for_groups<L>(weight, panel, {0, weight.in_features}, [&](const uint8_t* group, Range pairs, int64_t input) RAYINFER_LAMBDA {
        const auto* row = (const Plain<bfloat16>*)rows.rows + input;
        const uint8_t* codes = group + L::kCodesAt;
        const GroupColumns<L> columns[kVectors] = {{group, 0, weight.table}, {group, kSimd, weight.table}};
        for (int64_t pair = 0; pair < pairs.size(); ++pair, row += 2, codes += L::kPairBytes) {
            fetch<L::kPairBytes>(codes + distance);
            auto weights = [&](int v) RAYINFER_LAMBDA {
                Float first, second;
                columns[v].read_pair(codes + v * kSimd, first, second);
                return to_pairs(first, second);
            };
            sums.template add_part<0>(weights, row, row_stride);
        }
    });
    for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < kVectors; ++v) std::memcpy(to + r * stride + v * kSimd, &sums.at[r][v], sizeof(Float));
}
#endif

template <class L, class T>
void multiply(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums) {
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
    if constexpr (std::is_same_v<T, bfloat16>)
        if (rows.num_rows <= kTileRows) {
            for (int64_t p = 0; p < num_panels; ++p)
                with_rows<kTileRows>(rows.num_rows, [&](auto count) {
                    multiply_few<L, count>(weight, rows, panel + p, sums + p * kPanelWidth, num_panels * kPanelWidth);
                });
            return;
        }
#endif
    const int64_t distance = weight.prefetch_distance(rows.num_rows, kStreamAhead, kStreamAhead);
    alignas(kLine) T panels[kPanelsAtOnce * kPanelWidth * kInputsAtOnce<T>];
    for (int64_t begin = 0, end; begin < weight.in_features; begin = end) {
        end = std::min(weight.in_features, begin + kInputsAtOnce<T>);
        const int64_t count = end - begin;
        for (int64_t p = 0; p < num_panels; ++p)
            dequantize<L>(weight, panel + p, {begin, end}, distance, panels + p * count * kPanelWidth);
        const RowTile part = {rows.rows + begin * (int64_t)sizeof(Plain<T>), rows.row_bytes, rows.num_rows};
        add_float_products(part, panels, num_panels, count, begin > 0, sums);
    }
}

}  // namespace

template <class T>
void group_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums) {
    with_layout(weight, [&](auto layout) { multiply<decltype(layout), T>(weight, rows, panel, num_panels, sums); });
}

template void group_products<float>(const Weight&, RowTile, int64_t, int64_t, float*);
template void group_products<bfloat16>(const Weight&, RowTile, int64_t, int64_t, float*);

}  // namespace rayinfer
