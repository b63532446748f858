// Some rows times some panels of a packed weight: [num_panels, in_features / kPerWord, 32] words, a panel being 32
// outputs.
//
// Every output is one sum in the order of the inputs, so a row's result is the same bits in any batch. A pair of panels
// stays in the second-level cache for all rows.
#pragma once

#include <algorithm>

#include "multiply_rows.h"

namespace rayinfer {

constexpr int64_t kPanelWidth = 32;
constexpr int kVectorsPerPanel = kPanelWidth / kWidth;

struct Range {
    int64_t begin, end;
};

template <class T>
struct PackedLinear {
    const T* x;
    int64_t x_stride;
    const uint32_t* panels;
    const T* bias;  // or null
    T* out;
    int64_t in_features, out_features;

    int64_t num_words() const { return in_features / kPerWord<T>; }
    int64_t num_panels() const { return (out_features + kPanelWidth - 1) / kPanelWidth; }

    void run(Range rows, Range panels_of) const {
        for (int64_t panel = panels_of.begin; panel < panels_of.end;) {
            const int64_t count = panel + 1 < panels_of.end ? 2 : 1;
            for (int64_t row = rows.begin; row < rows.end; row += kRowsAtOnce)
                multiply(row, std::min<int64_t>(kRowsAtOnce, rows.end - row), panel, count);
            panel += count;
        }
    }

    void multiply(int64_t row, int64_t count, int64_t panel, int64_t panel_count) const {
        float sums[kRowsAtOnce * 2 * kPanelWidth];
        const uint32_t* columns[kVectorsAtOnce];
        for (int v = 0; v < kVectorsPerPanel * panel_count; ++v)
            columns[v] = panels + (panel + v / kVectorsPerPanel) * num_words() * kPanelWidth + v % kVectorsPerPanel * kWidth;
        const uint32_t* from = (const uint32_t*)(x + row * x_stride);
        const int64_t width = panel_count * kPanelWidth, row_words = x_stride / kPerWord<T>;
        if (panel_count == 2)
            multiply_rows<T, 2 * kVectorsPerPanel, kWidth>(count, from, row_words, num_words(), columns, kPanelWidth,
                                                           sums, width);
        else
            multiply_rows<T, kVectorsPerPanel, kWidth>(count, from, row_words, num_words(), columns, kPanelWidth, sums,
                                                       width);
        put(sums, row, count, panel * kPanelWidth, width);
    }

    void put(const float* sums, int64_t row, int64_t count, int64_t column, int64_t width) const {
        const int64_t end = std::min(column + width, out_features);
        for (int64_t r = 0; r < count; ++r)
            for (int64_t c = column; c < end; c += kWidth) {
                Float sum = load(sums + r * width + c - column);
                if (bias) sum += load(bias + c, end - c);
                store(out + (row + r) * out_features + c, sum, end - c);
            }
    }
};

}  // namespace rayinfer
