// Entry points of the kernels, with the structures that Python passes to them by pointer.
#pragma once

#include <cstdint>
#include <type_traits>

#include "numbers.h"

enum class Format : int32_t {
    float32 = 0,
    bfloat16 = 1,
    int8 = 2,
    int8_dynamic = 3,
    int4_dynamic = 4,
    int4_groups = 6,
    int8_groups = 7,
    float8_groups = 8,
    table4_groups = 9,
};

enum class Activation : int32_t { none = 0, silu = 1, gelu_tanh = 2, gelu = 3, relu = 4 };

struct Weight {
    const uint8_t* panels;
    const float* scales;
    const int32_t* sums;
    int64_t in_features, out_features;
    Format format;
    int32_t is_gated, has_offsets, group_size;
    const float* table;
    int32_t prefetch_few_rows, prefetch_more_rows;
};

struct LowRankPart {
    const void *a, *b;
    int64_t rank, begin, end;
    float scale;
    int32_t is_second_half;
};

struct LowRankAdapter {
    const LowRankPart* parts;
    int64_t num_parts;
};

struct RowSettings {
    const bool* is_drawn;
    const double *temperature, *top_p, *min_p, *uniform;
    const int64_t* top_k;
};

struct LayerArgument {
    const void *attention_norm, *feed_forward_norm, *query_norm, *key_norm;
    const Weight *qkv, *output, *gate_up, *down;
    const void *qkv_bias, *output_bias, *gate_up_bias, *down_bias;
    void *key, *value;
    float *key_scales, *value_scales;
    const LowRankAdapter *qkv_adapters, *output_adapters, *gate_up_adapters, *down_adapters;
    int64_t window, is_rotated;
};

struct StackArgument {
    const LayerArgument* layers;
    const void *last_norm, *cos, *sin;
    int64_t num_layers, hidden_size, num_heads, num_kv_heads, head_dim, rotary_dim, block_size, padded_dim;
    float eps, scale, softcap;
    int32_t activation;
};

struct StepArgument {
    const void* x;
    void* out;
    const int64_t *positions, *slot_mapping;
    const int32_t *cu_seqlens_q, *seq_lens, *block_tables, *adapter_slots, *cu_outputs;
    int64_t block_table_stride, num_tokens, num_requests, num_outputs, low_rank_width;
};

struct NormArgument {
    const void *weight, *bias;
};

struct EncoderLayerArgument {
    const Weight *qkv, *output, *up, *down;
    const void *qkv_bias, *output_bias, *up_bias, *down_bias;
    NormArgument attention_norm, feed_forward_norm;
};

struct TextAttentionShape {
    int64_t num_heads, head_dim;
    float scale;
    const float* position_bias;
    int64_t max_distance;
};

struct EmbeddingsArgument {
    const void *tokens, *types, *positions;
    NormArgument norm;
};

struct EncoderArgument {
    const EncoderLayerArgument* layers;
    int64_t num_layers, hidden_size;
    TextAttentionShape attention;
    float eps;
    int32_t activation;
    EmbeddingsArgument embeddings;
};

struct TextsArgument {
    const void* x;
    const int64_t *token_ids, *token_types, *positions;
    void* out;
    const int32_t* starts;
    int64_t num_texts;
    int32_t pooling;  // 0: none, 1: mean, 2: first token, 3: last token
};

// Declares both types' functions, and kernel::NAME<T> for that of a type.
#define ENTRY_POINT(name, ...)                                                                           \
    extern "C" void rayinfer_##name##_float32(__VA_ARGS__);                                              \
    extern "C" void rayinfer_##name##_bfloat16(__VA_ARGS__);                                             \
    namespace kernel {                                                                                   \
    template <class T>                                                                                   \
    const auto name = std::is_same_v<T, float> ? rayinfer_##name##_float32 : rayinfer_##name##_bfloat16; \
    }

// Memory of a cache: key, value, key_scales, value_scales, num_kv_heads, block_size, padded_dim.
#define CACHE_PARAMETERS void*, void*, float*, float*, int64_t, int64_t, int64_t
#define HEADS_PARAMETERS const void*, int64_t, int64_t

ENTRY_POINT(linear, const void* x, int64_t stride, const Weight* weight, const void* bias, int32_t activation,
            const LowRankAdapter* adapters, const int32_t* slots, int64_t low_rank_width, void* out, int64_t num_rows,
            int num_threads)
ENTRY_POINT(grouped_gemm, const void* x, int64_t stride, const Weight* first, const int32_t* starts, int64_t num_groups,
            void* out, int64_t num_rows, int num_threads)
ENTRY_POINT(moe_combine, const void* rows, const int64_t* indices, const float* weights, void* out, int64_t num_tokens,
            int64_t num_choices, int64_t width, int num_threads)
ENTRY_POINT(gather_rows, const Weight* weight, const int64_t* indices, int64_t num_rows, void* out, int num_threads)
ENTRY_POINT(write_kv, HEADS_PARAMETERS, HEADS_PARAMETERS, CACHE_PARAMETERS, const int64_t* slot_mapping,
            int64_t num_tokens, int64_t head_dim, int num_threads)
ENTRY_POINT(paged_attention, HEADS_PARAMETERS, void* out, CACHE_PARAMETERS, const int32_t* block_tables,
            int64_t block_table_stride, const int32_t* cu_seqlens_q, const int32_t* seq_lens, int64_t num_requests,
            int64_t num_heads, int64_t head_dim, float scale, int64_t window, float softcap, const float* position_bias,
            int64_t num_distances, const float* sinks, int num_threads)
ENTRY_POINT(rms_norm, const void* x, int64_t inner_count, int64_t outer_stride, int64_t inner_stride, void* residual,
            const void* weight, void* out, int64_t num_rows, int64_t width, float eps, int unit_offset, int num_threads)
ENTRY_POINT(layer_norm, const void* x, int64_t stride, const void* weight, const void* bias, void* out,
            int64_t num_rows, int64_t width, float eps, int num_threads)
ENTRY_POINT(rotary_embedding, const void* x, int64_t num_heads, int64_t token_stride, int64_t head_stride,
            const void* cos, const void* sin, void* out, int64_t num_tokens, int64_t head_dim, int num_threads)
ENTRY_POINT(silu_and_mul, const void* x, int64_t stride, void* out, int64_t num_rows, int64_t width, int num_threads)
ENTRY_POINT(gelu_tanh_and_mul, const void* x, int64_t stride, void* out, int64_t num_rows, int64_t width,
            int num_threads)
ENTRY_POINT(gelu_tanh, const void* x, int64_t stride, void* out, int64_t num_rows, int64_t width, int num_threads)
ENTRY_POINT(gelu, const void* x, int64_t stride, void* out, int64_t num_rows, int64_t width, int num_threads)
ENTRY_POINT(argmax, const void* rows, int64_t stride, float* values, int64_t* indices, int64_t num_rows, int64_t width,
            int num_threads)
ENTRY_POINT(mask_rows, float* rows, int64_t stride, const int64_t* lines, const uint32_t* masks, int64_t mask_stride,
            int64_t num_lines, int64_t width, int num_threads)
ENTRY_POINT(sample_rows, const void* rows, int64_t stride, const int64_t* mask_of, const uint32_t* masks,
            int64_t mask_stride, const RowSettings* settings, float* values, int64_t* indices, int64_t num_rows,
            int64_t width, int num_threads)
ENTRY_POINT(uniform, const int64_t* seeds, const int64_t* positions, const int64_t* choices, double* numbers,
            int64_t count)
ENTRY_POINT(run_layers, const StackArgument* stack, const StepArgument* step, int num_threads)
ENTRY_POINT(run_encoder, const EncoderArgument* encoder, const TextsArgument* texts, int num_threads)

extern "C" double rayinfer_multiply_in_registers(int32_t kind, int64_t num_rounds, int num_threads);
