// One linear layer as an operation of its own: rows of the model's type in and out.

#include "gemm/linear.h"
#include "gemm/model_rows.h"

namespace rayinfer {
namespace {

constexpr int64_t kMostCachedBytes = 16 << 20;  // of results: more leave a third level cache before anything reads them

// Puts results into rows by non-temporal stores, past the caches: lines that are written whole need not be read first.
template <class T>
struct StreamIntoRows {
    T* out;
    int64_t stride;

    static bool can_store(const T* out, int64_t stride, int64_t num_rows) {
        const int64_t row_bytes = stride * (int64_t)sizeof(T);
        return row_bytes * num_rows > kMostCachedBytes && ((uintptr_t)out | (uintptr_t)row_bytes) % kLine == 0;
    }
    void operator()(int64_t row, int64_t column, Float x, int64_t left) const {
        T* to = out + row * stride + column;
        left >= kWidth ? stream(to, x) : store(to, x, left);
    }
    void fetch(Range, Range) const {}
};

template <class T>
void linear(const ModelRows<T>& x, LinearLayer<T> layer, T* out, int num_threads) {
    thread_local RowBuffer encoded, widened, products;
    const EncodedRows rows = encoded_buffer(x, layer.weight.format, encoded);
    float* scratch = widened.rows<float>(num_threads, x.width);
    thread_local StageMemory kept;
    StageMemory& memory = kept;  // the calling thread's, for all threads of the team
    memory.begin(num_threads);
    const LowRankRows<T>& low_rank = layer.low_rank;
    layer.low_rank.products = products.rows<float>(x.num_rows, low_rank.stride);
    const bool is_encoded = rows.data == (const uint8_t*)x.data;
#pragma omp parallel num_threads(num_threads)
    {
        const ThreadRange thread = this_thread();
        if (!is_encoded) encode_rows(x, layer.weight.format, rows, thread, scratch + thread.index * x.width);
        if (!low_rank.is_empty()) {
            const Range range = thread.of(x.num_rows);
            for (int64_t row = range.begin; row < range.end; ++row)
                low_rank.shrink(row, x.data + row * x.stride, x.width);
        }
        if (!is_encoded || !low_rank.is_empty()) {
#pragma omp barrier
        }
        StageTeam team(memory, thread);
        const int64_t stride = layer.weight.out_features;  // the region's end waits for all threads
        if (StreamIntoRows<T>::can_store(out, stride, x.num_rows)) {
            layer.run(rows, team, StreamIntoRows<T>{out, stride});
            finish_streams();
        } else {
            layer.run(rows, team, StoreInRows<T>{out, stride});
        }
    }
}

}  // namespace
}  // namespace rayinfer

#define RAYINFER_LINEAR(name, T)                                                                                  \
    extern "C" __attribute__((visibility("default"))) void name(                                                  \
        const void* x, int64_t x_stride, const rayinfer::Weight* weight, const void* bias, int32_t activation,    \
        const rayinfer::LowRankAdapter* adapters, const int32_t* slots, int64_t low_rank_width, void* out,        \
        int64_t num_rows, int num_threads) {                                                                      \
        using namespace rayinfer;                                                                                 \
        linear<T>({(const T*)x, x_stride, num_rows, weight->in_features},                                         \
                  {*weight, (const T*)bias, (Activation)activation, {adapters, slots, nullptr, low_rank_width}},  \
                  (T*)out, num_threads);                                                                          \
    }

RAYINFER_LINEAR(rayinfer_linear_float32, float)
RAYINFER_LINEAR(rayinfer_linear_bfloat16, rayinfer::bfloat16)
