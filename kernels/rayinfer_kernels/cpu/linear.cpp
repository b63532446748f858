// Linear layers with packed weights: [num_panels, in_features / kPerWord, 32] words, a panel being 32 outputs.
//
// Every output is one sum in the order of the inputs, so a row's result is the same bits in any batch. Threads share the
// panels, and the rows too where panels are few; a pair of panels stays in the second-level cache for all rows.

#include <algorithm>

#include "multiply_rows.h"

namespace rayinfer {
namespace {

constexpr int64_t kPanelWidth = 32;
constexpr int kVectorsPerPanel = kPanelWidth / kWidth;

struct Range {
    int64_t begin, end;
};

// Part `index` of `count` nearly equal parts of [0, total).
Range part_of(int64_t total, int64_t index, int64_t count) {
    return {total * index / count, total * (index + 1) / count};
}

template <class T>
struct Linear {
    const T* x;
    int64_t x_stride;
    const uint32_t* panels;
    const T* bias;  // or null
    T* out;
    int64_t num_rows, in_features, out_features;

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

template <class T>
void linear(const Linear<T>& layer, int num_threads) {
    const int64_t row_tiles = (layer.num_rows + kRowsAtOnce - 1) / kRowsAtOnce;
    const int64_t panel_groups = std::min<int64_t>(num_threads, layer.num_panels());
    const int64_t row_groups = std::max<int64_t>(1, std::min(row_tiles, num_threads / panel_groups));
    const int64_t count = panel_groups * row_groups;
#pragma omp parallel for schedule(static, 1) num_threads((int)count)
    for (int64_t i = 0; i < count; ++i) {
        const Range tiles = part_of(row_tiles, i / panel_groups, row_groups);
        layer.run({tiles.begin * kRowsAtOnce, std::min(tiles.end * kRowsAtOnce, layer.num_rows)},
                  part_of(layer.num_panels(), i % panel_groups, panel_groups));
    }
}

}  // namespace
}  // namespace rayinfer

#define RAYINFER_LINEAR(name, T)                                                                                      \
    extern "C" __attribute__((visibility("default"))) void name(                                                      \
        const void* x, int64_t x_stride, const void* panels, const void* bias, void* out, int64_t num_rows,           \
        int64_t in_features, int64_t out_features, int num_threads) {                                                 \
        rayinfer::linear<T>({(const T*)x, x_stride, (const uint32_t*)panels, (const T*)bias, (T*)out, num_rows,       \
                             in_features, out_features},                                                              \
                            num_threads);                                                                             \
    }

RAYINFER_LINEAR(rayinfer_linear_float32, float)
RAYINFER_LINEAR(rayinfer_linear_bfloat16, rayinfer::bfloat16)

// Without such an instruction the matrix library is faster than the above.
extern "C" __attribute__((visibility("default"))) int rayinfer_multiplies_bfloat16() {
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
    return 1;
#else
    return 0;
#endif
}
