// All layers of an encoder over some whole texts, by a team of threads that may be a single one.
//
// The hidden states stay in float32 from the embedding on. Threads of a team wait for each other between two stages; a
// single thread never waits, so that a thread which lost its core delays no other.
#pragma once

#include "core/thread_team.h"
#include "encoder/encoder_arguments.h"
#include "encoder/text_attention.h"
#include "gemm/input_rows.h"
#include "row_norms.h"

namespace rayinfer {

// Texts one after the other, the first of whose tokens is `starts[0]`.
struct Texts {
    const int32_t* starts;  // [count + 1]
    int64_t count;
    int64_t num_tokens() const { return starts[count] - starts[0]; }
};

// Memory that a group's team shares.
struct GroupRows {
    RowBuffer sums, heads, encoded, wide;
    WorkStealingQueue units;
};

template <class T>
class TextGroup {
  public:
    // By one thread of the team, before the others call `run`.
    TextGroup(const EncoderArgument& encoder, Texts texts, GroupRows& rows, int num_threads)
        : encoder_(encoder), texts_(texts), units_(rows.units), num_tokens_(texts.num_tokens()) {
        const EncoderLayerArgument& layer = encoder.layers[0];
        int64_t widest_row = 0;
        for (const Weight* weight : {layer.qkv, layer.output, layer.up, layer.down})
            widest_row = std::max(widest_row, encoded_row_bytes<T>(weight->format, weight->in_features));
        sums_ = rows.sums.template rows<float>(num_tokens_, encoder.hidden_size);
        heads_ = rows.heads.template rows<float>(num_tokens_, heads_width());
        wide_ = rows.wide.template rows<float>(num_tokens_, std::max(query_width(), layer.down->in_features));
        // Two inputs: a product reads one while it fills the other.
        encoded_[0] = (uint8_t*)rows.encoded.at_least(2 * widest_row * num_tokens_);
        encoded_[1] = encoded_[0] + widest_row * num_tokens_;
        units_.begin(num_threads);
    }

    void run(const T* x, T* out, ThreadRange thread, TextAttention& attention) {
        load_embeddings(x, thread);
        for (int64_t i = 0; i < encoder_.num_layers; ++i) {
            attend(encoder_.layers[i], 5 * i, thread, attention);
            feed_forward(encoder_.layers[i], 5 * i + 3, thread, i + 1 < encoder_.num_layers);
        }
        store_results(out, thread);
    }

  private:
    int64_t query_width() const { return encoder_.attention.num_heads * encoder_.attention.head_dim; }
    int64_t heads_width() const { return 3 * query_width(); }
    float* sum(int64_t token) const { return sums_ + token * encoder_.hidden_size; }

    static void wait(ThreadRange thread) {
        if (thread.count == 1) return;
#pragma omp barrier
    }

    InputRows<T> input_of(const Weight& weight, int which) const {
        const int64_t row_bytes = encoded_row_bytes<T>(weight.format, weight.in_features);
        return {{encoded_[which], row_bytes, num_tokens_}, weight.format, weight.in_features};
    }

    void load_embeddings(const T* x, ThreadRange thread) {
        const Range tokens = thread.of(num_tokens_);
        const InputRows<T> to = input_of(*encoder_.layers[0].qkv, 0);
        for (int64_t token = tokens.begin; token < tokens.end; ++token) {
            const T* from = x + (texts_.starts[0] + token) * encoder_.hidden_size;
            for_each_vector(encoder_.hidden_size,
                            [&](int64_t i, int64_t count) { store(sum(token) + i, load(from + i, count), count); });
            to.encode(token, sum(token));
        }
        wait(thread);
    }

    void store_results(T* out, ThreadRange thread) {
        const Range tokens = thread.of(num_tokens_);
        for (int64_t token = tokens.begin; token < tokens.end; ++token) {
            T* to = out + (texts_.starts[0] + token) * encoder_.hidden_size;
            for_each_vector(encoder_.hidden_size,
                            [&](int64_t i, int64_t count) { store(to + i, load(sum(token) + i, count), count); });
        }
    }

    void encode(const float* rows, const InputRows<T>& to, ThreadRange thread) {
        const Range tokens = thread.of(num_tokens_);
        for (int64_t token = tokens.begin; token < tokens.end; ++token) to.encode(token, rows + token * to.width);
        wait(thread);
    }

    // Norms the sums in place and encodes them for the next product, if there is one.
    void norm_sums(const NormArgument& norm, const InputRows<T>* to, ThreadRange thread) {
        const Range tokens = thread.of(num_tokens_);
        for (int64_t token = tokens.begin; token < tokens.end; ++token) {
            layer_norm_row(sum(token), (const T*)norm.weight, (const T*)norm.bias, sum(token), encoder_.hidden_size,
                           encoder_.eps);
            if (to) to->encode(token, sum(token));
        }
        wait(thread);
    }

    LinearLayer<T> linear(const Weight* weight, const void* bias, Activation activation = Activation::none) const {
        return {*weight, (const T*)bias, activation};
    }

    // Rows of numbers go to where the next product reads them; those of fewer bits are kept until all of a row are there.
    template <class Run>
    void fill(const InputRows<T>& to, ThreadRange thread, const Run& run) {
        if (to.accepts_floats()) {
            run(to.numbers());
            return wait(thread);
        }
        run(StoreInRows<float>{wide_, to.width});
        wait(thread);
        encode(wide_, to, thread);
    }

    void attend(const EncoderLayerArgument& layer, uint32_t round, ThreadRange thread, TextAttention& attention) {
        const InputRows<T> normed = input_of(*layer.qkv, 0), attended = input_of(*layer.output, 1);
        linear(layer.qkv, layer.qkv_bias)
            .run(normed.rows, units_, round, thread, StoreInRows<float>{heads_, heads_width()});
        wait(thread);
        fill(attended, thread, [&](auto put) { attend_heads(round + 1, thread, attention, put); });
        linear(layer.output, layer.output_bias)
            .run(attended.rows, units_, round + 2, thread, AddToRows{sums_, encoder_.hidden_size});
        wait(thread);
        const InputRows<T> next = input_of(*layer.up, 0);
        norm_sums(layer.attention_norm, &next, thread);
    }

    template <class Put>
    void attend_heads(uint32_t round, ThreadRange thread, TextAttention& attention, const Put& put) {
        const int64_t num_heads = encoder_.attention.num_heads;
        for (;;) {
            const Range taken = units_.next(round, thread, texts_.count * num_heads, 1);
            if (taken.size() == 0) return;
            const int64_t text = taken.begin / num_heads, first = texts_.starts[text] - texts_.starts[0];
            const TextHeads heads = {heads_ + first * heads_width(), heads_width(),
                                     texts_.starts[text + 1] - texts_.starts[text]};
            attention.run(encoder_.attention, heads, taken.begin % num_heads,
                          [&](int64_t token, int64_t column, Float x, int64_t left) { put(first + token, column, x, left); });
        }
    }

    void feed_forward(const EncoderLayerArgument& layer, uint32_t round, ThreadRange thread, bool has_next) {
        const InputRows<T> normed = input_of(*layer.up, 0), inner = input_of(*layer.down, 1);
        fill(inner, thread, [&](auto put) {
            linear(layer.up, layer.up_bias, (Activation)encoder_.activation).run(normed.rows, units_, round, thread, put);
        });
        linear(layer.down, layer.down_bias)
            .run(inner.rows, units_, round + 1, thread, AddToRows{sums_, encoder_.hidden_size});
        wait(thread);
        const InputRows<T> next = input_of(*layer.qkv, 0);
        norm_sums(layer.feed_forward_norm, has_next ? &next : nullptr, thread);
    }

    const EncoderArgument& encoder_;
    const Texts texts_;
    WorkStealingQueue& units_;
    const int64_t num_tokens_;
    float *sums_, *heads_, *wide_;
    uint8_t* encoded_[2];
};

}  // namespace rayinfer
