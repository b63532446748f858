// Keys and values of a step's tokens into the paged cache.

#include "attention/attention.h"
#include "core/thread_team.h"

namespace rayinfer {
namespace {

template <class X, class E>
void write_kv(Heads<X> key, Heads<X> value, const Cache<E>& cache, const int64_t* slot_mapping, int64_t num_tokens,
              int64_t head_dim, int num_threads) {
    const int64_t num_rows = num_tokens * cache.num_kv_heads;
    const int team = team_size(num_rows * head_dim, kElementsPerThread, num_threads);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t token = row / cache.num_kv_heads, head = row % cache.num_kv_heads;
        cache.write(slot_mapping[token], head, key.at(token, head), value.at(token, head), head_dim);
    }
}

}  // namespace
}  // namespace rayinfer

// A cache without scales holds the model's own type.
#define RAYINFER_WRITE_KV(name, T)                                                                                     \
    extern "C" __attribute__((visibility("default"))) void name(                                                       \
        const void* key_from, int64_t key_token_stride, int64_t key_head_stride, const void* value_from,               \
        int64_t value_token_stride, int64_t value_head_stride, void* key, void* value, float* key_scales,              \
        float* value_scales, int64_t num_kv_heads, int64_t block_size, int64_t padded_dim, const int64_t* slot_mapping,       \
        int64_t num_tokens, int64_t head_dim, int num_threads) {                                                       \
        using namespace rayinfer;                                                                                      \
        auto run = [&](auto* keys, auto* values) {                                                                     \
            using E = std::remove_pointer_t<decltype(keys)>;                                                           \
            write_kv<T, E>({(const T*)key_from, key_token_stride, key_head_stride},                                    \
                           {(const T*)value_from, value_token_stride, value_head_stride},                              \
                           {keys, values, key_scales, value_scales, num_kv_heads, block_size, padded_dim}, slot_mapping,      \
                           num_tokens, head_dim, num_threads);                                                         \
        };                                                                                                             \
        if (key_scales != nullptr) return run((int8_t*)key, (int8_t*)value);                                           \
        run((T*)key, (T*)value);                                                                                       \
    }

RAYINFER_WRITE_KV(rayinfer_write_kv_float32, float)
RAYINFER_WRITE_KV(rayinfer_write_kv_bfloat16, rayinfer::bfloat16)
