// Passed from Python by pointer, as cpu/encoder_stack.py has them. Norms and biases are of the model's type.
#pragma once

#include "encoder/text_attention.h"

namespace rayinfer {

struct NormArgument {
    const void *weight, *bias;  // [hidden_size]
};

struct EncoderLayerArgument {
    const Weight *qkv, *output, *up, *down;                  // of one shape and format in all layers
    const void *qkv_bias, *output_bias, *up_bias, *down_bias;  // null: none
    NormArgument attention_norm, feed_forward_norm;          // of the sums behind each part
};

// Tables of rows, whose sum is normed; those of types and positions may be null.
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

enum class Pooling : int32_t { none, mean, first, last };  // first and last: a text's token

struct TextsArgument {
    const void* x;  // [num_tokens, hidden_size]; null: the tokens' embeddings
    const int64_t *token_ids, *token_types, *positions;  // [num_tokens] each, rows of the tables
    void* out;              // [num_tokens, hidden_size], with a pooling [num_texts, hidden_size]
    const int32_t* starts;  // [num_texts + 1]
    int64_t num_texts;
    Pooling pooling;

    // Whether nothing but one token of each text is read.
    bool picks_tokens() const { return pooling == Pooling::first || pooling == Pooling::last; }
};

}  // namespace rayinfer
