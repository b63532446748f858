// One token for each row of logits: the best, or a draw by temperature, top-k, top-p and min-p; bit masks forbid tokens.

#include "core/thread_team.h"
#include "sample/truncated_draw.h"

// The settings of a row, in arrays of them all.
struct RowSettings {
    const bool* is_drawn;
    const double *temperature, *top_p, *min_p, *uniform;
    const int64_t* top_k;
};

namespace rayinfer {
namespace {

template <class T>
int64_t drawn_column(const Row<T>& row, float best, const RowSettings& settings, int64_t i) {
    const float temperature = (float)settings.temperature[i], min_p = (float)settings.min_p[i];
    const Truncation truncation = {settings.top_k[i], settings.top_p[i]};
    const bool is_truncated = truncation.top_k < row.width || truncation.top_p < 1.0;
    const Weights weights = {splat(best / temperature), splat(temperature), splat(is_truncated ? 0.0f : min_p)};
    if (!is_truncated) return drawn_from_all(row, weights, settings.uniform[i]);
    return drawn_from_likeliest(row, weights, truncation, min_p, settings.uniform[i]);
}

}  // namespace
}  // namespace rayinfer

// mask_of[row] is the index of its mask, or -1; without any mask the pointer is null.
#define RAYINFER_SAMPLE_ROWS(name, T)                                                                                  \
    extern "C" __attribute__((visibility("default"))) void name(                                                       \
        const void* rows, int64_t stride, const int64_t* mask_of, const uint32_t* masks, int64_t mask_stride,          \
        const RowSettings* settings, float* values, int64_t* indices, int64_t num_rows, int64_t width,                 \
        int num_threads) {                                                                                             \
        using namespace rayinfer;                                                                                      \
        const int team = team_size(num_rows, 2, num_threads);                                                          \
        _Pragma("omp parallel for schedule(static) num_threads(team)") for (int64_t i = 0; i < num_rows; ++i) {        \
            const bool is_masked = mask_of && mask_of[i] >= 0;                                                         \
            const Row<T> row = {(const T*)rows + i * stride, is_masked ? masks + mask_of[i] * mask_stride : nullptr,   \
                                width};                                                                                \
            const Best best = best_of(row);                                                                            \
            values[i] = best.value;                                                                                    \
            indices[i] = best.index;                                                                                   \
            const bool is_finite = best.value - best.value == 0.0f;                                                    \
            if (settings->is_drawn[i] && is_finite) indices[i] = drawn_column(row, best.value, *settings, i);          \
        }                                                                                                              \
    }

RAYINFER_SAMPLE_ROWS(rayinfer_sample_rows_float32, float)
RAYINFER_SAMPLE_ROWS(rayinfer_sample_rows_bfloat16, rayinfer::bfloat16)
