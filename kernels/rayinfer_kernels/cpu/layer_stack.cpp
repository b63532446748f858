// All layers of a decoder in one parallel region: attention and a gated feed-forward, each behind an RMS norm.
//
// The running sum of each token stays in float32 from its embedding to the last norm. Threads share the rows, panels or
// tiles of attention of one stage after the other; a stage ends with its last unit (`StageTeam`).

#include <cmath>
#include <memory>

#include "attention/attention.h"
#include "core/stage_team.h"
#include "gemm/input_rows.h"
#include "gemm/model_rows.h"

namespace rayinfer {

// Passed from Python by pointer, as cpu/layer_stack.py has them. Norms and biases are of the model's type.
struct LayerArgument {
    const void *attention_norm, *feed_forward_norm;  // [hidden_size]
    const void *query_norm, *key_norm;               // [head_dim]; null: none
    const Weight *qkv, *output, *gate_up, *down;
    const void *qkv_bias, *output_bias, *gate_up_bias, *down_bias;  // null: none
    void *key, *value;                                              // the layer's cache
    float *key_scales, *value_scales;                               // null: the cache is of the model's type
    const LowRankAdapter *qkv_adapters, *output_adapters, *gate_up_adapters, *down_adapters;  // by slot; null: none
    int64_t window;                                                                           // 0: none
    int64_t is_rotated;                                                                       // 0: without rotary positions
};

struct StackArgument {
    const LayerArgument* layers;
    const void* last_norm;
    const void *cos, *sin;  // [max_positions, rotary_dim]
    int64_t num_layers, hidden_size, num_heads, num_kv_heads, head_dim, rotary_dim, block_size, padded_dim;
    float eps, scale, softcap;
    int32_t activation;
};

struct StepArgument {
    const void* x;  // [num_tokens, hidden_size]
    void* out;      // [num_outputs, hidden_size], the last norm of their sums
    const int64_t *positions, *slot_mapping;
    const int32_t *cu_seqlens_q, *seq_lens, *block_tables;
    const int32_t* adapter_slots;  // [num_tokens], -1: none; null: no token has an adapter
    const int32_t* cu_outputs;     // [num_requests + 1], numbers of each request's last tokens; null: all are outputs
    int64_t block_table_stride, num_tokens, num_requests, num_outputs, low_rank_width;
};

namespace {

template <class T>
void rms_norm(const float* x, const T* weight, int64_t width, float eps, float* out) {
    Float squares = splat(0.0f);
    for (int64_t i = 0; i < width; i += kWidth) {
        const Float value = load(x + i, width - i);
        squares += value * value;
    }
    const float factor = 1.0f / std::sqrt(sum_of(squares) / (float)width + eps);
    for (int64_t i = 0; i < width; i += kWidth)
        store(out + i, load(x + i, width - i) * factor * load(weight + i, width - i), width - i);
}

// Tokens that a layer computes, one after the other.
struct LayerTokens {
    int64_t count;
    float *sums, *query;
    int64_t query_stride;
    const int32_t* adapter_slots;  // null: none has an adapter
};

// Half-split pairs: channel i is rotated with channel i + dim / 2.
template <class T>
void rotate(float* x, const T* cos, const T* sin, int64_t dim) {
    const int64_t half = dim / 2;
    for (int64_t i = 0; i < half; i += kWidth) {
        const int64_t left = half - i;
        const Float first = load(x + i, left), second = load(x + half + i, left);
        store(x + i, first * load(cos + i, left) - second * load(sin + i, left), left);
        store(x + half + i, second * load(cos + half + i, left) + first * load(sin + half + i, left), left);
    }
}

// What a step needs beside the model; kept from step to step.
template <class E>
struct Workspace {
    struct WindowTiles {
        int64_t window;
        bool is_cut;  // for this step
        AttentionTiles tiles;
    };

    RowBuffer sums, heads, encoded, wide, scratch, low_rank, output_sums, output_query;
    std::vector<int64_t> output_lines;  // the outputs among the step's tokens
    std::vector<int32_t> output_slots;
    AttentionTiles output_tiles;
    std::vector<std::unique_ptr<TileWorker<E>>> workers;
    std::vector<std::unique_ptr<WindowTiles>> tiles;  // of each window that a layer has
    StageMemory stages;
};

template <class T, class E>
class LayerStack {
  public:
    LayerStack(const StackArgument& stack, const StepArgument& step, Workspace<E>& workspace, int num_threads)
        : stack_(stack), step_(step), workspace_(workspace) {
        int64_t widest_row = 0, widest = stack.hidden_size;
        for (int64_t i = 0; i < stack.num_layers; ++i) {
            const LayerArgument& layer = stack.layers[i];
            for (const Weight* weight : {layer.qkv, layer.output, layer.gate_up, layer.down})
                widest_row = std::max(widest_row, encoded_row_bytes<T>(weight->format, weight->in_features));
            widest = std::max(widest, layer.gate_up->out_features);
        }
        widest = std::max(widest, query_width());
        float* sums = workspace.sums.template rows<float>(step.num_tokens, stack.hidden_size);
        float* heads = workspace.heads.template rows<float>(step.num_tokens, heads_width());
        tokens_ = outputs_ = {step.num_tokens, sums, heads, heads_width(), step.adapter_slots};
        // Two inputs: a product reads one while it fills the other.
        encoded_[0] = (uint8_t*)workspace.encoded.at_least(2 * widest_row * step.num_tokens);
        encoded_[1] = encoded_[0] + widest_row * step.num_tokens;
        wide_ = workspace.wide.template rows<float>(step.num_tokens, widest);
        low_rank_ = workspace.low_rank.template rows<float>(step.num_tokens, step.low_rank_width);
        scratch_width_ = rounded_up(stack.hidden_size, kWidth);
        scratch_ = workspace.scratch.template rows<float>(num_threads, scratch_width_);
        while ((int)workspace.workers.size() < num_threads)
            workspace.workers.push_back(std::make_unique<TileWorker<E>>());
        cut_tiles(num_threads);
        if (step.cu_outputs != nullptr) find_outputs(num_threads);
        workspace.stages.begin(num_threads);
    }

    void run(ThreadRange thread) {
        StageTeam team(workspace_.stages, thread);
        load_embeddings(team);
        for (int64_t i = 0; i < stack_.num_layers; ++i) {
            const LayerArgument& layer = stack_.layers[i];
            write_heads(layer, team);
            // Nothing reads the last layer's results of other tokens.
            const bool is_cut = i + 1 == stack_.num_layers && step_.cu_outputs != nullptr;
            if (is_cut) keep_outputs(team);
            const LayerTokens& tokens = is_cut ? outputs_ : tokens_;
            if (tokens.count == 0) return;
            attend(layer, tokens, is_cut ? workspace_.output_tiles : tiles_for(layer.window).tiles, team);
            feed_forward(layer, tokens, team);
        }
        norm_results(team);
    }

  private:
    int64_t query_width() const { return stack_.num_heads * stack_.head_dim; }
    int64_t kv_width() const { return stack_.num_kv_heads * stack_.head_dim; }
    int64_t heads_width() const { return query_width() + 2 * kv_width(); }
    float* scratch(ThreadRange thread) const { return scratch_ + thread.index * scratch_width_; }

    template <class Each>
    void for_each(int64_t count, StageTeam& team, const Each& each) const {
        const int64_t size = (count - 1) / (kTokenUnitsPerThread * team.num_threads()) + 1;
        const int64_t num_units = team.num_units(count, size);
        team.share(num_units, [&](int64_t unit) {
            const Range tokens = ThreadRange{(int)unit, (int)num_units}.of(count);
            for (int64_t token = tokens.begin; token < tokens.end; ++token) each(token);
        });
    }

    template <class Put>
    void multiply(const LinearLayer<T>& layer, const EncodedRows& rows, StageTeam& team, const Put& put) const {
        layer.run(rows, team, put);
        team.wait();
    }

    InputRows<T> input_of(const Weight& weight, const LayerTokens& tokens, int which) const {
        const int64_t row_bytes = encoded_row_bytes<T>(weight.format, weight.in_features);
        return {{encoded_[which], row_bytes, tokens.count}, weight.format, weight.in_features};
    }

    LowRankRows<T> terms_of(const LowRankAdapter* adapters, const LayerTokens& tokens) const {
        return {adapters, tokens.adapter_slots, low_rank_, step_.low_rank_width};
    }

    void cut_tiles(int num_threads) {
        for (auto& each : workspace_.tiles) each->is_cut = false;
        for (int64_t i = 0; i < stack_.num_layers; ++i) {
            auto& each = tiles_for(stack_.layers[i].window);
            if (each.is_cut) continue;
            each.is_cut = true;
            each.tiles.cut(attention_step(step_.cu_seqlens_q, each.window), num_threads);
        }
    }

    AttentionStep attention_step(const int32_t* cu_seqlens_q, int64_t window) const {
        return {step_.block_tables, step_.block_table_stride, cu_seqlens_q,    step_.seq_lens,    step_.num_requests,
                stack_.num_heads,   stack_.num_kv_heads,      stack_.head_dim, stack_.block_size, window};
    }

    // Outputs are tokens of their own to the last layer's attention: the last ones of their requests.
    void find_outputs(int num_threads) {
        Workspace<E>& to = workspace_;
        to.output_lines.clear();
        to.output_slots.clear();
        for (int64_t request = 0; request < step_.num_requests; ++request) {
            const int64_t end = step_.cu_seqlens_q[request + 1];
            for (int64_t i = step_.cu_outputs[request] - step_.cu_outputs[request + 1]; i < 0; ++i) {
                to.output_lines.push_back(end + i);
                if (step_.adapter_slots != nullptr) to.output_slots.push_back(step_.adapter_slots[end + i]);
            }
        }
        outputs_ = {step_.num_outputs, to.output_sums.template rows<float>(step_.num_outputs, stack_.hidden_size),
                    to.output_query.template rows<float>(step_.num_outputs, query_width()), query_width(),
                    step_.adapter_slots == nullptr ? nullptr : to.output_slots.data()};
        to.output_tiles.cut(attention_step(step_.cu_outputs, stack_.layers[stack_.num_layers - 1].window), num_threads);
    }

    void keep_outputs(StageTeam& team) {
        if (outputs_.count == 0) return;
        for_each(outputs_.count, team, [&](int64_t output) {
            const int64_t line = workspace_.output_lines[output];
            std::copy_n(tokens_.sums + line * stack_.hidden_size, stack_.hidden_size,
                        outputs_.sums + output * stack_.hidden_size);
            std::copy_n(tokens_.query + line * tokens_.query_stride, query_width(),
                        outputs_.query + output * outputs_.query_stride);
        });
    }

    typename Workspace<E>::WindowTiles& tiles_for(int64_t window) const {
        for (auto& each : workspace_.tiles)
            if (each->window == window) return *each;
        workspace_.tiles.push_back(std::make_unique<typename Workspace<E>::WindowTiles>());
        workspace_.tiles.back()->window = window;
        return *workspace_.tiles.back();
    }

    void load_embeddings(StageTeam& team) {
        for_each(tokens_.count, team, [&](int64_t token) {
            const T* from = (const T*)step_.x + token * stack_.hidden_size;
            float* to = tokens_.sums + token * stack_.hidden_size;
            for (int64_t i = 0; i < stack_.hidden_size; i += kWidth)
                store(to + i, load(from + i, stack_.hidden_size - i), stack_.hidden_size - i);
        });
    }

    void norm_sums(const LayerTokens& tokens, const void* weight, const InputRows<T>& to,
                   const LowRankRows<T>& low_rank, StageTeam& team) {
        float* normed = scratch(team.thread());
        for_each(tokens.count, team, [&](int64_t token) {
            const float* sums = tokens.sums + token * stack_.hidden_size;
            rms_norm(sums, (const T*)weight, stack_.hidden_size, stack_.eps, normed);
            low_rank.shrink(token, normed, stack_.hidden_size);
            to.encode(token, normed);
        });
    }

    void encode(const float* rows, const InputRows<T>& to, const LowRankRows<T>& low_rank, StageTeam& team) {
        for_each(to.rows.num_rows, team, [&](int64_t token) {
            low_rank.shrink(token, rows + token * to.width, to.width);
            to.encode(token, rows + token * to.width);
        });
    }

    // Low-rank products of rows that the stage before has stored as numbers.
    void shrink(const InputRows<T>& from, const LowRankRows<T>& low_rank, StageTeam& team) {
        if (low_rank.is_empty()) return;
        const StoreInRows<Plain<T>> numbers = from.numbers();
        for_each(from.rows.num_rows, team, [&](int64_t token) {
            low_rank.shrink(token, numbers.out + token * numbers.stride, from.width);
        });
    }

    // Queries of the step's tokens, and their keys and values into the cache.
    void write_heads(const LayerArgument& layer, StageTeam& team) {
        const InputRows<T> normed = input_of(*layer.qkv, tokens_, 0);
        const LowRankRows<T> terms = terms_of(layer.qkv_adapters, tokens_);
        norm_sums(tokens_, layer.attention_norm, normed, terms, team);
        multiply({*layer.qkv, (const T*)layer.qkv_bias, Activation::none, terms}, normed.rows, team,
                 StoreInRows<float>{tokens_.query, tokens_.query_stride});
        const Cache<E> cache = cache_of(layer);
        for_each(tokens_.count, team, [&](int64_t token) { prepare_heads(layer, cache, token); });
    }

    void attend(const LayerArgument& layer, const LayerTokens& tokens, AttentionTiles& tiles, StageTeam& team) {
        const InputRows<T> attended = input_of(*layer.output, tokens, 1);
        const LowRankRows<T> terms = terms_of(layer.output_adapters, tokens);
        if (attended.accepts_floats()) {
            attend_to_cache(layer, tokens, tiles, attended.numbers(), team);
            shrink(attended, terms, team);
        } else {
            attend_to_cache(layer, tokens, tiles, StoreInRows<float>{wide_, query_width()}, team);
            encode(wide_, attended, terms, team);
        }
        multiply({*layer.output, (const T*)layer.output_bias, Activation::none, terms}, attended.rows, team,
                 AddToRows{tokens.sums, stack_.hidden_size});
    }

    template <class Put>
    void attend_to_cache(const LayerArgument& layer, const LayerTokens& tokens, AttentionTiles& tiles,
                         const Put& put_rows, StageTeam& team) {
        const AttentionLayer<E> attention{cache_of(layer), stack_.scale, stack_.softcap, nullptr, 0, nullptr};
        const Heads<float> query{tokens.query, tokens.query_stride, stack_.head_dim};
        workspace_.workers[team.thread().index]->run(attention, query, tiles, team,
                                                     PutHeads<Put>{put_rows, stack_.head_dim});
        team.wait();
    }

    Cache<E> cache_of(const LayerArgument& layer) const {
        return {(E*)layer.key,       (E*)layer.value,   layer.key_scales, layer.value_scales,
                stack_.num_kv_heads, stack_.block_size, stack_.padded_dim};
    }

    // Norms over heads, rotation, and the new key and value into the cache.
    void prepare_heads(const LayerArgument& layer, const Cache<E>& cache, int64_t token) {
        const int64_t dim = stack_.head_dim, num_prepared = stack_.num_heads + stack_.num_kv_heads;
        float* row = tokens_.query + token * tokens_.query_stride;
        for (int64_t t = token; t < std::min(token + 2, step_.num_tokens); ++t)  // the next one's meanwhile, too
            for (int64_t head = 0; head < stack_.num_kv_heads; ++head) cache.fetch(step_.slot_mapping[t], head);
        const int64_t angle = step_.positions[token] * stack_.rotary_dim;
        for (int64_t head = 0; head < num_prepared; ++head) {
            float* at = row + head * dim;
            const void* norm = head < stack_.num_heads ? layer.query_norm : layer.key_norm;
            if (norm != nullptr) rms_norm(at, (const T*)norm, dim, stack_.eps, at);
            if (layer.is_rotated)
                rotate(at, (const T*)stack_.cos + angle, (const T*)stack_.sin + angle, stack_.rotary_dim);
        }
        const float *key = row + query_width(), *value = key + kv_width();
        for (int64_t head = 0; head < stack_.num_kv_heads; ++head)
            cache.write(step_.slot_mapping[token], head, key + head * dim, value + head * dim, dim);
    }

    void feed_forward(const LayerArgument& layer, const LayerTokens& tokens, StageTeam& team) {
        const InputRows<T> normed = input_of(*layer.gate_up, tokens, 0), gated = input_of(*layer.down, tokens, 1);
        const LowRankRows<T> gate_up_terms = terms_of(layer.gate_up_adapters, tokens);
        const LowRankRows<T> down_terms = terms_of(layer.down_adapters, tokens);
        norm_sums(tokens, layer.feed_forward_norm, normed, gate_up_terms, team);
        const LinearLayer<T> gate_up{*layer.gate_up, (const T*)layer.gate_up_bias, (Activation)stack_.activation,
                                     gate_up_terms};
        if (gated.accepts_floats()) {
            multiply(gate_up, normed.rows, team, gated.numbers());
            shrink(gated, down_terms, team);
        } else {
            multiply(gate_up, normed.rows, team, StoreInRows<float>{wide_, gated.width});
            encode(wide_, gated, down_terms, team);
        }
        multiply({*layer.down, (const T*)layer.down_bias, Activation::none, down_terms}, gated.rows, team,
                 AddToRows{tokens.sums, stack_.hidden_size});
    }

    void norm_results(StageTeam& team) {
        const int64_t width = stack_.hidden_size;
        float* normed = scratch(team.thread());
        for_each(outputs_.count, team, [&](int64_t token) {
            rms_norm(outputs_.sums + token * width, (const T*)stack_.last_norm, width, stack_.eps, normed);
            for (int64_t i = 0; i < width; i += kWidth)
                store((T*)step_.out + token * width + i, load(normed + i, width - i), width - i);
        });
    }

    static constexpr int64_t kTokenUnitsPerThread = 4;  // of a stage over tokens: threads end together

    const StackArgument& stack_;
    const StepArgument& step_;
    Workspace<E>& workspace_;
    LayerTokens tokens_, outputs_;
    float *wide_, *scratch_, *low_rank_;
    uint8_t* encoded_[2];
    int64_t scratch_width_;
};

template <class T, class E>
void run_layers(const StackArgument& stack, const StepArgument& step, int num_threads) {
    thread_local Workspace<E> workspace;
    LayerStack<T, E> layers(stack, step, workspace, num_threads);
#pragma omp parallel num_threads(num_threads)
    layers.run(this_thread());
}

}  // namespace
}  // namespace rayinfer

#define RAYINFER_RUN_LAYERS(name, T)                                                                              \
    extern "C" __attribute__((visibility("default"))) void name(                                                  \
        const rayinfer::StackArgument* stack, const rayinfer::StepArgument* step, int num_threads) {              \
        using namespace rayinfer;                                                                                 \
        if (stack->layers[0].key_scales != nullptr) return run_layers<T, int8_t>(*stack, *step, num_threads);     \
        run_layers<T, T>(*stack, *step, num_threads);                                                             \
    }

RAYINFER_RUN_LAYERS(rayinfer_run_layers_float32, float)
RAYINFER_RUN_LAYERS(rayinfer_run_layers_bfloat16, rayinfer::bfloat16)
