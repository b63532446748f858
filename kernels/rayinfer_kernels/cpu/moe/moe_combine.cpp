// Weighted sums of a few chosen rows: what a token gets from the experts it went to.
//
// Each sum is taken in the order of the token's choices, so its bits do not depend on the batch.

#include <algorithm>

#include "core/lanes.h"
#include "core/thread_team.h"

namespace rayinfer {
namespace {

template <class T>
void moe_combine(const T* rows, const int64_t* indices, const float* weights, T* out, int64_t num_tokens,
                  int64_t num_choices, int64_t width, int num_threads) {
    const int team = team_size(num_tokens * num_choices * width, kElementsPerThread, num_threads);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t token = 0; token < num_tokens; ++token)
        for (int64_t i = 0; i < width; i += kWidth) {
            Float sum = splat(0.0f);
            for (int64_t choice = token * num_choices; choice < (token + 1) * num_choices; ++choice)
                sum += load(rows + indices[choice] * width + i, width - i) * weights[choice];
            store(out + token * width + i, sum, width - i);
        }
}

}  // namespace
}  // namespace rayinfer

#define RAYINFER_MOE_COMBINE(name, T)                                                                                \
    extern "C" __attribute__((visibility("default"))) void name(                                                      \
        const void* rows, const int64_t* indices, const float* weights, void* out, int64_t num_tokens,                \
        int64_t num_choices, int64_t width, int num_threads) {                                                        \
        rayinfer::moe_combine<T>((const T*)rows, indices, weights, (T*)out, num_tokens, num_choices, width,          \
                                  num_threads);                                                                       \
    }

RAYINFER_MOE_COMBINE(rayinfer_moe_combine_float32, float)
RAYINFER_MOE_COMBINE(rayinfer_moe_combine_bfloat16, rayinfer::bfloat16)
