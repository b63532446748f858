#include "attention/attention.h"
#include "gemm/linear.h"

namespace rayinfer {
namespace {

template <class T, class E>
void attend(const AttentionStep& step, const AttentionLayer<E>& layer, Heads<T> query, T* out, int num_threads) {
    AttentionTiles tiles;
    tiles.cut(step, num_threads);
    StageMemory memory;
    memory.begin(num_threads);
    const StoreInRows<T> rows{out, step.num_heads * step.head_dim};
    const PutHeads<StoreInRows<T>> put{rows, step.head_dim};
#pragma omp parallel num_threads(num_threads)
    {
        StageTeam team(memory, this_thread());
        TileWorker<E>().run(layer, query, tiles, team, put);  // the region's end waits for all threads
    }
}

}  // namespace
}  // namespace rayinfer

// A cache without scales holds the queries' own type.
#define RAYINFER_PAGED_ATTENTION(name, T)                                                                              \
    extern "C" __attribute__((visibility("default"))) void name(                                                       \
        const void* query, int64_t query_token_stride, int64_t query_head_stride, void* out, void* key, void* value,   \
        float* key_scales, float* value_scales, int64_t num_kv_heads, int64_t block_size, int64_t padded_dim,          \
        const int32_t* block_tables, int64_t block_table_stride, const int32_t* cu_seqlens_q,                          \
        const int32_t* seq_lens, int64_t num_requests, int64_t num_heads, int64_t head_dim, float scale,        \
        int64_t window, float softcap, const float* position_bias, int64_t num_distances, const float* sinks,          \
        int num_threads) {                                                                                             \
        using namespace rayinfer;                                                                                      \
        const AttentionStep step{block_tables, block_table_stride, cu_seqlens_q, seq_lens, num_requests,        \
                                 num_heads,    num_kv_heads,       head_dim,     block_size,      window};             \
        const Heads<T> heads{(const T*)query, query_token_stride, query_head_stride};                                  \
        auto run = [&](auto* keys, auto* values) {                                                                     \
            using E = std::remove_pointer_t<decltype(keys)>;                                                           \
            const Cache<E> cache{keys, values, key_scales, value_scales, num_kv_heads, block_size, padded_dim};        \
            const AttentionLayer<E> layer{cache, scale, softcap, position_bias, num_distances, sinks};                 \
            attend<T, E>(step, layer, heads, (T*)out, num_threads);                                                    \
        };                                                                                                             \
        if (key_scales != nullptr) return run((int8_t*)key, (int8_t*)value);                                           \
        run((T*)key, (T*)value);                                                                                       \
    }

RAYINFER_PAGED_ATTENTION(rayinfer_paged_attention_float32, float)
RAYINFER_PAGED_ATTENTION(rayinfer_paged_attention_bfloat16, rayinfer::bfloat16)
