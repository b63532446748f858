// Bit masks of rows: what a grammar forbids becomes -inf.

#include "core/lanes.h"
#include "core/thread_team.h"

namespace rayinfer {
namespace {

constexpr int64_t kBits = 32;

// Column c of a row is kept if bit c % 32 of word c / 32 is set.
void mask_row(float* row, const uint32_t* words, int64_t width) {
    const Float never = splat(-kInfinity);
    const Int lanes = lane_numbers();
    for (int64_t begin = 0; begin < width; begin += kBits) {
        const uint32_t word = words[begin / kBits];
        if (word == 0xffffffffu) continue;
        const int64_t end = begin + kBits < width ? begin + kBits : width;
        for (int64_t i = begin; i < end; i += kWidth) {
            const Int bits = (Int)((Word{} + (word >> (i - begin))) >> (Word)lanes) & 1;
            store(row + i, bits != 0 ? load(row + i, end - i) : never, end - i);
        }
    }
}

}  // namespace
}  // namespace rayinfer

// Scores are of float32 whatever the model's type is.
#define RAYINFER_MASK_ROWS(name)                                                                                   \
    extern "C" __attribute__((visibility("default"))) void name(                                                 \
        float* rows, int64_t stride, const int64_t* lines, const uint32_t* masks, int64_t mask_stride,           \
        int64_t num_lines, int64_t width, int num_threads) {                                                     \
        const int team = rayinfer::team_size(num_lines, 2, num_threads);                                           \
        _Pragma("omp parallel for schedule(static) num_threads(team)") for (int64_t i = 0; i < num_lines; ++i)    \
            rayinfer::mask_row(rows + lines[i] * stride, masks + i * mask_stride, width);                          \
    }

RAYINFER_MASK_ROWS(rayinfer_mask_rows_float32)
RAYINFER_MASK_ROWS(rayinfer_mask_rows_bfloat16)
