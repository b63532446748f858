// The greatest number of each row and where it stands: what greedy decoding makes of logits.

#include <algorithm>

#include "core/lanes.h"
#include "core/thread_team.h"

namespace rayinfer {
namespace {

// The first of the greatest; if some number is NaN, so is the value, and the index is any.
template <class T>
void argmax(const T* row, int64_t width, float* value, int64_t* index) {
    Float most = splat(-kInfinity);
    Int where = {}, spoilt = {};
    const Int lanes = lane_numbers();
    int64_t i = 0;
    for (; i + kWidth <= width; i += kWidth) {
        const Float x = load(row + i);
        const Int is_more = x > most;
        most = is_more ? x : most;
        where = is_more ? lanes + (int32_t)i : where;
        spoilt |= x != x;
    }
    *value = -kInfinity;
    *index = 0;
    bool is_spoilt = false;
    auto update = [&](float x, int64_t at) {
        is_spoilt |= x != x;
        if (x > *value || (x == *value && at < *index)) {
            *value = x;
            *index = at;
        }
    };
    for (int lane = 0; lane < kWidth; ++lane) {
        is_spoilt |= spoilt[lane] != 0;
        update(most[lane], where[lane]);
    }
    if (i < width) {
        const Float rest = load(row + i, width - i);
        for (int64_t lane = 0; i + lane < width; ++lane) update(rest[lane], i + lane);
    }
    if (is_spoilt) *value = std::numeric_limits<float>::quiet_NaN();
}

}  // namespace
}  // namespace rayinfer

#define RAYINFER_ARGMAX(name, T)                                                                                 \
    extern "C" __attribute__((visibility("default"))) void name(const void* rows, int64_t stride, float* values,  \
                                                                int64_t* indices, int64_t num_rows, int64_t width, \
                                                                int num_threads) {                                \
        const int team = rayinfer::team_size(num_rows, 2, num_threads);                                              \
        _Pragma("omp parallel for schedule(static) num_threads(team)") for (int64_t row = 0; row < num_rows; ++row) \
            rayinfer::argmax((const T*)rows + row * stride, width, values + row, indices + row);       \
    }

RAYINFER_ARGMAX(rayinfer_argmax_float32, float)
RAYINFER_ARGMAX(rayinfer_argmax_bfloat16, rayinfer::bfloat16)
