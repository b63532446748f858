// Linear layers with packed weights: threads share the panels, and the rows too where panels are few.

#include "packed_linear.h"

namespace rayinfer {
namespace {

// Part `index` of `count` nearly equal parts of [0, total).
Range part_of(int64_t total, int64_t index, int64_t count) {
    return {total * index / count, total * (index + 1) / count};
}

template <class T>
void linear(const PackedLinear<T>& layer, int64_t num_rows, int num_threads) {
    const int64_t row_tiles = (num_rows + kRowsAtOnce - 1) / kRowsAtOnce;
    const int64_t panel_groups = std::min<int64_t>(num_threads, layer.num_panels());
    const int64_t row_groups = std::max<int64_t>(1, std::min(row_tiles, num_threads / panel_groups));
    const int64_t count = panel_groups * row_groups;
#pragma omp parallel for schedule(static, 1) num_threads((int)count)
    for (int64_t i = 0; i < count; ++i) {
        const Range tiles = part_of(row_tiles, i / panel_groups, row_groups);
        layer.run({tiles.begin * kRowsAtOnce, std::min(tiles.end * kRowsAtOnce, num_rows)},
                  part_of(layer.num_panels(), i % panel_groups, panel_groups));
    }
}

}  // namespace
}  // namespace rayinfer

#define RAYINFER_LINEAR(name, T)                                                                                      \
    extern "C" __attribute__((visibility("default"))) void name(                                                      \
        const void* x, int64_t x_stride, const void* panels, const void* bias, void* out, int64_t num_rows,           \
        int64_t in_features, int64_t out_features, int num_threads) {                                                 \
        rayinfer::linear<T>({(const T*)x, x_stride, (const uint32_t*)panels, (const T*)bias, (T*)out, in_features,    \
                             out_features},                                                                           \
                            num_rows, num_threads);                                                                   \
    }

RAYINFER_LINEAR(rayinfer_linear_float32, float)
RAYINFER_LINEAR(rayinfer_linear_bfloat16, rayinfer::bfloat16)

// With fewer or narrower registers than AVX-512's, sums spill to memory and the matrix library is faster than the above.
extern "C" __attribute__((visibility("default"))) int rayinfer_has_wide_registers() {
#if defined(__AVX512F__) && defined(__AVX512VL__)
    return 1;
#else
    return 0;
#endif
}
