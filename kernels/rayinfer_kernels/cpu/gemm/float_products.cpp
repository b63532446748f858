// Products with weights of float32 or bfloat16.
//
// Rows are cut into tiles whose sums fill the registers. A panel is read from memory once for all of them, some inputs at
// a time, so that it stays in the second level cache; meanwhile what comes next is prefetched.

#include <algorithm>

#include "gemm/lookahead.h"
#include "gemm/panel_products.h"
#include "gemm/register_sums.h"
#include "gemm/row_buffer.h"
#include "gemm/row_tiles.h"

namespace rayinfer {
namespace {

// Two panels of float32 stay in a second level cache: of 1 MB or more where there is AVX-512, else of half of that.
constexpr int64_t kBlockInputs = kSimd == 16 ? 1536 : 768;
constexpr int64_t kRowsToWiden = 40;  // so many read pairs widened before; fewer widen them in registers
constexpr int kVectorsPerPanel = kPanelWidth / kSimd;
constexpr int kVectorsPerLine = kLine / (4 * kSimd);

template <class E>
constexpr int64_t kPerWord = 4 / sizeof(E);

// Rows of a tile; widening pairs takes registers.
template <class E>
constexpr int kMostRows = kSimd == 8 && !std::is_same_v<E, Plain<E>> ? 4 : kTileRows;
// So many rows are one tile where its sums fit into registers: their panels come from memory once, in order, and are not read
// again.
template <class E>
constexpr int kMostRowsAlone = kSimd == 16 ? kNarrowTileRows : kMostRows<E>;
template <class E>
constexpr int kMostWideRows = kTileVectors < 4 ? 2 : kMostRows<E>;

// With AVX2 so many rows are multiplied two at a time by whole panels, which are then read line after line.
constexpr int64_t kFewRows = kSimd == 8 ? 6 : 0;

// Words of one round: two where 12 products alone would not make up for the loop's own work.
template <class E>
constexpr int64_t kWordsPerRound = kSimd == 8 && kPerWord<E> == 1 ? 2 : 1;

// With AVX2 one row is multiplied by two panels at once: one stream alone does not use a processor's whole bandwidth, which then
// follows both by itself; near prefetches help where a line takes longer to compute. On AArch64 one or two rows are multiplied
// by a whole panel at once, which is then read line after line.
constexpr int kPairVectors = 8;
constexpr bool kHasWholePanels = kSimd == 4 && kHas32Registers;
template <class E>
constexpr int64_t kAhead = kSimd != 8 ? kStreamAhead : kPerWord<E> == 1 ? 0 : 3072;
template <class E>
constexpr int64_t kAheadOfMoreRows = kSimd != 8 ? kStreamAheadOfMoreRows : kAhead<E>;

// With AVX-512 a tile that is alone reads one panel, so that what is prefetched follows it, as it follows other panels
// where tiles share one: one loop for both.
constexpr bool kFollowsOneStream = kSimd == 16;
template <class E>
constexpr int64_t kRoundBytes = kPanelWidth * 4 * kWordsPerRound<E>;

alignas(kLine) constexpr float kZeros[kPanelsAtOnce * kPanelWidth] = {};

// One tile of rows, and the block of columns that it is multiplied by.
template <class E>
struct TileTask {
    const Plain<E>* rows;
    int64_t row_stride;
    const E* columns[2];  // where those of each panel begin
    int64_t num_inputs;
    const float* start;   // what the sums begin with
    int64_t start_stride;
    float* sums;
    int64_t sum_stride;
    bool is_alone;        // no other tile reads the same columns
    int64_t distance;     // of prefetches of the columns, if it is and `ahead` does not follow them
    Ahead ahead;          // what is prefetched meanwhile
};

template <class E, int Rows, int Vectors>
__attribute__((noinline)) void multiply_tile(const TileTask<E>& task) {
    using Float = typename Lanes<kSimd>::Float;
    constexpr int64_t n = kPerWord<E>;
    Sums<E, Rows, Vectors, kSimd> sums;
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v)
            sums.at[r][v] = load_raw<Float>(task.start + r * task.start_stride + v * kSimd);
    const Plain<E>* rows = task.rows;
    const E *columns = task.columns[0], *others = task.columns[1];
    Ahead ahead = task.ahead;
    const int64_t row_stride = task.row_stride;
    const bool is_alone = task.is_alone;
    const int64_t distance = task.distance;
    auto vector = [&](int v) RAYINFER_LAMBDA {
        return (v < kVectorsPerPanel ? columns : others) + v % kVectorsPerPanel * kSimd * n;
    };
    auto add_one = [&]() RAYINFER_LAMBDA {
        sums.add(vector, rows, row_stride);
        if (!kFollowsOneStream && distance > 0)
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; v += kVectorsPerLine) fetch<kLine>((const char*)vector(v) + distance);
        rows += n;
        columns += kPanelWidth * n;
        others += kPanelWidth * n;
    };
    const int64_t num_words = task.num_inputs / n;
    // Without an empty loop to provide for, GCC keeps the sums in registers before and behind it.
    if (kWordsPerRound<E> == 1 && num_words < 1) __builtin_unreachable();
    for (int64_t w = 0; w < num_words / kWordsPerRound<E>; ++w) {
#pragma GCC unroll 4
        for (int64_t i = 0; i < kWordsPerRound<E>; ++i) add_one();
        if (kFollowsOneStream || !is_alone) ahead.fetch_round();
    }
    for (int64_t w = 0; w < num_words % kWordsPerRound<E>; ++w) add_one();
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v)
            std::memcpy(task.sums + r * task.sum_stride + v * kSimd, &sums.at[r][v], sizeof(Float));
}

// The rest of a panel, or of two, from some input on.
template <class E>
struct Panels {
    const E* data;
    int64_t stride;  // numbers from one panel to the next
    int64_t count;

    Panels from(int64_t input) const { return {data + input * kPanelWidth, stride, count}; }
    const E* panel(int64_t index) const { return data + index * stride; }
};

// Multiplies all rows by some inputs of the panels; the rows begin with the first of these inputs.
template <class E>
void multiply_block(RowTile rows, Panels<E> panels, int64_t num_inputs, bool continues, float* sums, int64_t distance,
                    PanelBytes next) {
    const int64_t width = panels.count * kPanelWidth;
    const bool are_few = rows.num_rows <= kFewRows;
    const int64_t most_rows = rows.num_rows <= kMostRowsAlone<E> ? kMostRowsAlone<E> : kMostRows<E>;
    const RowTiles tiles(rows.num_rows, are_few ? kMostWideRows<E> : most_rows);
    const bool is_alone = tiles.count == 1;
    // Two panels at a time share what is loaded of the rows; one at a time is read faster.
    const bool is_wide =
        kSimd == 16 ? panels.count == 2 && !is_alone : kHasWholePanels || are_few || rows.num_rows <= 2;
    const bool is_pair = kSimd == 8 && rows.num_rows == 1 && panels.count == 2;
    const bool is_whole = kHasWholePanels && rows.num_rows <= 2;
    const int64_t step = is_pair || is_whole ? kPairVectors * kSimd : (is_wide ? 4 : 2) * kSimd;
    const int64_t num_rounds = num_inputs / kPerWord<E> / kWordsPerRound<E>;
    Lookahead lookahead(next, num_rounds * tiles.count * (width / step));
    for (int64_t column = 0; column < width; column += step)
        for (int64_t row = 0, end; row < rows.num_rows; row = end) {
            end = tiles.end_of(row);
            const E* columns = panels.panel(column / kPanelWidth) + column % kPanelWidth * kPerWord<E>;
            const TileTask<E> task = {(const Plain<E>*)(rows.rows + row * rows.row_bytes),
                                      rows.row_bytes / (int64_t)sizeof(Plain<E>),
                                      {columns, columns + panels.stride},
                                      num_inputs,
                                      continues ? sums + row * width + column : kZeros,
                                      continues ? width : 0,
                                      sums + row * width + column,
                                      width,
                                      is_alone,
                                      is_alone ? distance : 0,
                                      kFollowsOneStream && is_alone ? Ahead{(const char*)columns + distance, kRoundBytes<E>}
                                                                    : lookahead.next(num_rounds)};
            if constexpr (kHasWholePanels)
                if (is_whole) {
                    with_rows<2>(end - row, [&](auto count) { multiply_tile<E, count, kPairVectors>(task); });
                    continue;
                }
            if (is_pair)
                multiply_tile<E, 1, kSimd == 8 ? kPairVectors : 1>(task);
            else if (is_wide)
                with_rows<kMostWideRows<E>>(end - row, [&](auto count) { multiply_tile<E, count, 4>(task); });
            else
                with_rows<kMostRowsAlone<E>>(end - row, [&](auto count) { multiply_tile<E, count, 2>(task); });
        }
}

// Pairs of bfloat16 to float32, both in panels.
void widen_panels(Panels<bfloat16> from, int64_t num_inputs, float* to) {
    for (int64_t p = 0; p < from.count; ++p) {
        const bfloat16* pairs = from.panel(p);
        for (int64_t i = 0; i < num_inputs * kPanelWidth; i += 2 * kPanelWidth)
            for (int64_t c = 0; c < kPanelWidth; c += kWidth) {
                const Word words = load_raw<Word>(pairs + i + 2 * c);
                store(to + i + c, (Float)(words << 16));
                store(to + i + kPanelWidth + c, (Float)(words & 0xffff0000u));
            }
        to += num_inputs * kPanelWidth;
    }
}

template <class E>
void multiply_in_blocks(RowTile rows, Panels<E> panels, int64_t num_inputs, bool continues, float* sums, int64_t distance) {
    const bool is_read_again = kSimd == 16 ? rows.num_rows > kMostRowsAlone<E> : rows.num_rows >= kRowsToWiden;
    const int64_t num_blocks = is_read_again ? (num_inputs + kBlockInputs - 1) / kBlockInputs : 1;
    const int64_t block = rounded_up((num_inputs + num_blocks - 1) / num_blocks, kPerWord<E>);
    for (int64_t begin = 0; begin < num_inputs; begin += block) {
        const int64_t count = std::min(block, num_inputs - begin);
        const Panels<E> here = panels.from(begin);
        const bool is_last = begin + count == num_inputs, is_added = continues || begin > 0;
        const E* after = is_last ? panels.panel(panels.count) : panels.from(begin + count).data;
        const int64_t num_after = std::min(block, is_last ? num_inputs : num_inputs - begin - count);
        const PanelBytes next = {after, panels.stride * (int64_t)sizeof(E),
                                 num_after * kPanelWidth * (int64_t)sizeof(E), panels.count};
        const RowTile part = {rows.rows + begin * (int64_t)sizeof(Plain<E>), rows.row_bytes, rows.num_rows};
        if constexpr (!std::is_same_v<E, Plain<E>>) {
            if (rows.num_rows >= kRowsToWiden) {
                thread_local RowBuffer buffer;
                float* widened = buffer.rows<float>(panels.count * count, kPanelWidth);
                widen_panels(here, count, widened);
                multiply_block<float>(part, {widened, count * kPanelWidth, panels.count}, count, is_added, sums, distance, next);
                continue;
            }
        }
        multiply_block<E>(part, here, count, is_added, sums, distance, next);
    }
}

}  // namespace

template <class T>
void float_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums) {
    const int64_t num_inputs = padded_width(weight.format, weight.in_features);
    const int64_t stride = num_inputs * kPanelWidth;
    multiply_in_blocks<T>(rows, {(const T*)weight.panels + panel * stride, stride, num_panels}, num_inputs, false, sums,
                          weight.prefetch_distance(rows.num_rows, kAhead<T>, kAheadOfMoreRows<T>));
}

template <class T>
void add_float_products(RowTile rows, const T* panels, int64_t num_panels, int64_t num_inputs, bool continues, float* sums) {
    multiply_in_blocks<T>(rows, {panels, num_inputs * kPanelWidth, num_panels}, num_inputs, continues, sums, kAhead<T>);
}

template void float_products<float>(const Weight&, RowTile, int64_t, int64_t, float*);
template void float_products<bfloat16>(const Weight&, RowTile, int64_t, int64_t, float*);
template void add_float_products<float>(RowTile, const float*, int64_t, int64_t, bool, float*);
template void add_float_products<bfloat16>(RowTile, const bfloat16*, int64_t, int64_t, bool, float*);

}  // namespace rayinfer
