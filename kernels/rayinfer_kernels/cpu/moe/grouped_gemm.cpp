// Linear layers of which each has its own rows of one input: the experts of a mixture.
//
// Their weights lie one behind the other, [num_groups] times what one of them takes; groups without rows are not read.

#include <vector>

#include "gemm/model_rows.h"

namespace rayinfer {
namespace {

constexpr int64_t kRowsPerTask = 16 * kRowsAtOnce;  // enough to make up for reading the panels again

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

Weight weight_of(const Weight& first, int64_t group) {
    Weight weight = first;
    weight.panels += group * first.num_panels() * panel_bytes(first.format, first.in_features);
    if (first.scales) weight.scales += group * first.num_panels() * kPanelWidth;
    if (first.sums) weight.sums += group * first.num_panels() * kPanelWidth;
    return weight;
}

template <class T>
void grouped_gemm(const ModelRows<T>& x, const Weight& first, const int32_t* group_starts, int64_t num_groups, T* out,
                    int num_threads) {
    thread_local RowBuffer encoded, widened;
    const EncodedRows rows = encoded_buffer(x, first.format, encoded);
    float* scratch = widened.rows<float>(num_threads, x.width);
    const std::vector<GroupRows> tasks = tasks_of(group_starts, num_groups);
    const int64_t num_units = first.panels_per_half(), units_per_task = first.is_gated ? 1 : kPanelsAtOnce;
    const int64_t tasks_per_group = (num_units + units_per_task - 1) / units_per_task;
#pragma omp parallel num_threads(num_threads)
    {
        const ThreadRange thread = this_thread();
        if (rows.data != (const uint8_t*)x.data) encode_rows(x, first.format, rows, thread, scratch + thread.index * x.width);
#pragma omp barrier
        // Groups differ in size, so tasks are scheduled dynamically.
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < (int64_t)tasks.size() * tasks_per_group; ++i) {
            const GroupRows task = tasks[i / tasks_per_group];
            const int64_t unit = i % tasks_per_group * units_per_task;
            const Weight weight = weight_of(first, task.group);
            LinearLayer<T>{weight, nullptr, Activation::none}.run(
                rows, task.rows, {unit, std::min(unit + units_per_task, num_units)},
                StoreInRows<T>{out, weight.out_features}, num_threads > 1);
        }
    }
}

}  // namespace
}  // namespace rayinfer

#define RAYINFER_GROUPED_GEMM(name, T)                                                                           \
    extern "C" __attribute__((visibility("default"))) void name(                                                   \
        const void* x, int64_t x_stride, const rayinfer::Weight* first, const int32_t* group_starts,               \
        int64_t num_groups, void* out, int64_t num_rows, int num_threads) {                                        \
        using namespace rayinfer;                                                                                  \
        grouped_gemm<T>({(const T*)x, x_stride, num_rows, first->in_features}, *first, group_starts, num_groups, \
                          (T*)out, num_threads);                                                                   \
    }

RAYINFER_GROUPED_GEMM(rayinfer_grouped_gemm_float32, float)
RAYINFER_GROUPED_GEMM(rayinfer_grouped_gemm_bfloat16, rayinfer::bfloat16)
