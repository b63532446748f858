// Linear layers of which each has its own rows of one input: the experts of a mixture.
//
// Weights as in packed_linear.h, [num_groups, num_panels, in_features / kPerWord, 32] words; groups without rows are not read.

#include <vector>

#include "packed_linear.h"

namespace rayinfer {
namespace {

constexpr int64_t kRowsPerTask = 16 * kRowsAtOnce;  // enough to make up for reading the panels again
constexpr int64_t kPanelsPerTask = 2;

struct GroupRows {
    int64_t group;
    Range rows;
};

std::vector<GroupRows> tasks_of(const int32_t* group_starts, int64_t num_groups) {
    std::vector<GroupRows> tasks;
    for (int64_t group = 0; group < num_groups; ++group)
        for (int64_t row = group_starts[group]; row < group_starts[group + 1]; row += kRowsPerTask)
            tasks.push_back({group, {row, std::min<int64_t>(row + kRowsPerTask, group_starts[group + 1])}});
    return tasks;
}

template <class T>
void grouped_linear(const PackedLinear<T>& first, const int32_t* group_starts, int64_t num_groups, int num_threads) {
    const std::vector<GroupRows> tasks = tasks_of(group_starts, num_groups);
    const int64_t num_panels = first.num_panels();
    const int64_t panel_tasks = (num_panels + kPanelsPerTask - 1) / kPanelsPerTask;
    // Groups differ in size, so threads take what comes next.
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
    for (int64_t i = 0; i < (int64_t)tasks.size() * panel_tasks; ++i) {
        const GroupRows task = tasks[i / panel_tasks];
        const int64_t panel = i % panel_tasks * kPanelsPerTask;
        PackedLinear<T> layer = first;
        layer.panels += task.group * num_panels * first.num_words() * kPanelWidth;
        layer.run(task.rows, {panel, std::min(panel + kPanelsPerTask, num_panels)});
    }
}

}  // namespace
}  // namespace rayinfer

#define RAYINFER_GROUPED_LINEAR(name, T)                                                                              \
    extern "C" __attribute__((visibility("default"))) void name(                                                      \
        const void* x, int64_t x_stride, const void* panels, const int32_t* group_starts, int64_t num_groups,         \
        void* out, int64_t in_features, int64_t out_features, int num_threads) {                                      \
        rayinfer::grouped_linear<T>({(const T*)x, x_stride, (const uint32_t*)panels, nullptr, (T*)out, in_features,   \
                                     out_features},                                                                   \
                                    group_starts, num_groups, num_threads);                                           \
    }

RAYINFER_GROUPED_LINEAR(rayinfer_grouped_linear_float32, float)
RAYINFER_GROUPED_LINEAR(rayinfer_grouped_linear_bfloat16, rayinfer::bfloat16)
