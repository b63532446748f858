// Products with one weight after the other, as a model's layers make them: for timing, so nothing reads the results.

#include <cstring>

#include "gemm/linear.h"
#include "gemm/row_buffer.h"

namespace rayinfer {
namespace {

template <class T>
void multiply_chain(const Weight* const* weights, int64_t num_weights, int64_t num_rows, int num_threads) {
    int64_t row_bytes = 0, width = 0;
    for (int64_t i = 0; i < num_weights; ++i) {
        row_bytes = std::max(row_bytes, encoded_row_bytes<T>(weights[i]->format, weights[i]->in_features));
        width = std::max(width, weights[i]->out_features);
    }
    RowBuffer zeros, results;
    const uint8_t* rows = (const uint8_t*)std::memset(zeros.at_least(row_bytes * num_rows), 0, (size_t)(row_bytes * num_rows));
    const StoreInRows<float> put{results.rows<float>(num_rows, width), width};
    StageMemory memory;
    memory.begin(num_threads);
#pragma omp parallel num_threads(num_threads)
    {
        StageTeam team(memory, this_thread());
        for (int64_t i = 0; i < num_weights; ++i) {
            const LinearLayer<T> layer{*weights[i], nullptr, Activation::none};
            layer.run({rows, encoded_row_bytes<T>(weights[i]->format, weights[i]->in_features), num_rows}, team, put);
            team.wait();
        }
    }
}

}  // namespace
}  // namespace rayinfer

#define RAYINFER_MULTIPLY_CHAIN(name, T)                                                                  \
    extern "C" __attribute__((visibility("default"))) void name(                                          \
        const rayinfer::Weight* const* weights, int64_t num_weights, int64_t num_rows, int num_threads) { \
        rayinfer::multiply_chain<T>(weights, num_weights, num_rows, num_threads);                         \
    }

RAYINFER_MULTIPLY_CHAIN(rayinfer_multiply_chain_float32, float)
RAYINFER_MULTIPLY_CHAIN(rayinfer_multiply_chain_bfloat16, rayinfer::bfloat16)
