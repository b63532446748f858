// A linear layer divided among threads, and the stores of its sums.
//
// Everything here runs inside a parallel region: each thread computes what it takes; the stage has to be done before the
// results are read.
#pragma once

#include <algorithm>

#include "activations.h"
#include "gemm/low_rank.h"
#include "gemm/panel_products.h"
#include "gemm/row_tiles.h"
#include "core/stage_team.h"

namespace rayinfer {

enum class Activation : int32_t { none = 0, silu = 1, gelu_tanh = 2, gelu = 3, relu = 4 };

inline Float activate(Activation activation, Float x) {
    switch (activation) {
        case Activation::none: return x;
        case Activation::silu: return silu(x);
        case Activation::gelu_tanh: return gelu_tanh(x);
        case Activation::gelu: return gelu(x);
        case Activation::relu: return relu(x);
    }
    return x;
}

// Encoded rows of one layer's input.
struct EncodedRows {
    const uint8_t* data;
    int64_t row_bytes, num_rows;
    RowTile part(int64_t row, int64_t end) const {
        return {data + row * row_bytes, row_bytes, end - row};
    }
};

// Fetches cache lines of rows that will be written to and that another core may have used last: a thread that takes its next
// unit waits until all that it stored is in its cache.
template <class Out>
inline void fetch_results(Out* out, int64_t stride, Range rows, Range columns) {
    for (int64_t row = rows.begin; row < rows.end; ++row)
        for (int64_t column = columns.begin; column < columns.end; column += kLine / (int64_t)sizeof(Out))
            __builtin_prefetch(out + row * stride + column, 1, 2);
}

// Puts results into rows of Out. `fetch` comes before them, while they are computed.
template <class Out>
struct StoreInRows {
    Out* out;
    int64_t stride;
    void operator()(int64_t row, int64_t column, Float x, int64_t left) const {
        store(out + row * stride + column, x, left);
    }
    void fetch(Range rows, Range columns) const { fetch_results(out, stride, rows, columns); }
};

// Adds results to rows of float32.
struct AddToRows {
    float* sums;
    int64_t stride;
    void operator()(int64_t row, int64_t column, Float x, int64_t left) const {
        float* to = sums + row * stride + column;
        store(to, load(to, left) + x, left);
    }
    void fetch(Range rows, Range columns) const { fetch_results(sums, stride, rows, columns); }
};

// Many rows are divided into parts for different threads, each of which then finds its rows in its second level cache, but
// reads every panel.
constexpr int64_t kLeastRowsPerPart = 96, kMostParts = 8;

template <class T>
struct LinearLayer {
    const Weight& weight;
    const T* bias;  // or null; a gated weight's is [2 x out_features], gate first
    Activation activation;
    LowRankRows<T> low_rank = {};

    // Computes units of the team's next stage until none is left. `put(row, column, values, left)` takes a vector of results at
    // a time, of which `left` count.
    template <class Put>
    void run(EncodedRows rows, StageTeam& team, const Put& put) const {
        // Threads share the panels, and the rows too where panels are few or rows are many.
        const int64_t num_panels = weight.panels_per_half(), num_threads = team.num_threads();
        const int64_t num_tiles = (rows.num_rows + kRowsAtOnce - 1) / kRowsAtOnce;
        const bool are_few = num_panels < num_threads;
        const int64_t most_parts = are_few ? num_threads / num_panels : std::min<int64_t>(num_threads, kMostParts);
        const int64_t least_tiles = are_few ? 1 : kLeastRowsPerPart / kRowsAtOnce;
        const int64_t num_parts = std::max<int64_t>(1, std::min(num_tiles / least_tiles, most_parts));
        team.begin_stage(num_parts * num_panels);
        for (Range taken; (taken = team.take(are_few ? 1 : kPanelsAtOnce)).size() > 0;) {
            for (int64_t unit = taken.begin; unit < taken.end;) {
                const int64_t part = unit / num_panels, panel = unit % num_panels;
                const int64_t count = std::min(taken.end - unit, num_panels - panel);
                const Range tiles = ThreadRange{(int)part, (int)num_parts}.of(num_tiles);
                run(rows, {tiles.begin * kRowsAtOnce, std::min(tiles.end * kRowsAtOnce, rows.num_rows)},
                    {panel, panel + count}, put, num_threads > 1);
                unit += count;
            }
            team.finish(taken.size());
        }
    }

    // The rows of a range by the panels of another; a gated weight counts its panels in pairs. `is_shared` says whether other
    // threads use the rows of results, too.
    template <class Put>
    void run(EncodedRows rows, Range row_range, Range units, const Put& put, bool is_shared) const {
        alignas(kRowAlignment) float sums[kRowsPerBlock * kPanelsAtOnce * kPanelWidth];
        const int64_t panels_per_unit = weight.is_gated ? 2 : 1;
        const RowTiles blocks(row_range.size(), kRowsPerBlock);
        for (int64_t unit = units.begin; unit < units.end;) {
            const int64_t count = weight.is_gated ? 1 : std::min(kPanelsAtOnce, units.end - unit);
            const int64_t num_panels = count * panels_per_unit, width = num_panels * kPanelWidth;
            for (int64_t row = row_range.begin, end; row < row_range.end; row = end) {
                end = row_range.begin + blocks.end_of(row - row_range.begin);
                const RowTile block = rows.part(row, end);
                if (is_shared) put.fetch({row, end}, {unit * kPanelWidth, (unit + count) * kPanelWidth});
                panel_products<T>(weight, block, unit * panels_per_unit, num_panels, sums);
                for (int64_t r = 0; r < block.num_rows; ++r) {
                    add_terms(row + r, unit * kPanelWidth, count, r + 1 < block.num_rows, sums + r * width);
                    if (weight.is_gated)
                        put_gated(row + r, unit * kPanelWidth, sums + r * width, put);
                    else
                        put_plain(row + r, unit * kPanelWidth, count * kPanelWidth, sums + r * width, put);
                }
            }
            unit += count;
        }
    }

    // Adds the low-rank term of a row to its sums of some panels; a gated weight's second one is that of the other half.
    void add_terms(int64_t row, int64_t column, int64_t num_units, bool is_followed, float* sums) const {
        if (low_rank.is_empty()) return;
        const LowRankAdapter* adapter = low_rank.adapter_of(row);
        const int64_t num_panels = weight.is_gated ? 2 : num_units;
        for (int64_t panel = 0; panel < num_panels; ++panel) {
            const bool is_second_half = weight.is_gated && panel == 1;
            const int64_t c = weight.is_gated ? column : column + panel * kPanelWidth;
            if (is_followed) low_rank.fetch_panel(row + 1, c, is_second_half);
            if (adapter) low_rank.expand(*adapter, row, c, is_second_half, sums + panel * kPanelWidth);
        }
    }

    template <class Put>
    void put_plain(int64_t row, int64_t column, int64_t width, const float* sums, const Put& put) const {
        const int64_t end = std::min(column + width, weight.out_features);
        for (int64_t c = column; c < end; c += kWidth, sums += kWidth) {
            Float sum = load(sums);
            if (bias) sum += load(bias + c, end - c);
            put(row, c, activate(activation, sum), end - c);
        }
    }

    template <class Put>
    void put_gated(int64_t row, int64_t column, const float* sums, const Put& put) const {
        const int64_t end = std::min(column + kPanelWidth, weight.out_features);
        for (int64_t c = column; c < end; c += kWidth, sums += kWidth) {
            Float gate = load(sums), up = load(sums + kPanelWidth);
            if (bias) {
                gate += load(bias + c, end - c);
                up += load(bias + weight.out_features + c, end - c);
            }
            put(row, c, activate(activation, gate) * up, end - c);
        }
    }
};

}  // namespace rayinfer
