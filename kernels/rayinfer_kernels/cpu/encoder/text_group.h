// All layers of an encoder over some whole texts, by a team of threads that may be a single one.
//
// The hidden states stay in float32 from the embedding on. A stage ends with its last unit of work (`StageTeam`).
#pragma once

#include "core/stage_team.h"
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
};

template <class T>
class TextGroup {
  public:
    // By one thread, before a team's threads call `run`.
    TextGroup(const EncoderArgument& encoder, const TextsArgument& batch, Texts texts, GroupRows& rows)
        : encoder_(encoder), batch_(batch), texts_(texts), num_tokens_(texts.num_tokens()) {
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
    }

    void run(StageTeam team, TextAttention& attention) {
        load_embeddings(team);
        for (int64_t i = 0; i < encoder_.num_layers; ++i) {
            attend(encoder_.layers[i], team, attention);
            feed_forward(encoder_.layers[i], team, i + 1 < encoder_.num_layers);
        }
        if (batch_.are_pooled)
            store_means(team);
        else
            store_results(team);
    }

  private:
    int64_t query_width() const { return encoder_.attention.num_heads * encoder_.attention.head_dim; }
    int64_t heads_width() const { return 3 * query_width(); }
    float* sum(int64_t token) const { return sums_ + token * encoder_.hidden_size; }

    InputRows<T> input_of(const Weight& weight, int which) const {
        const int64_t row_bytes = encoded_row_bytes<T>(weight.format, weight.in_features);
        return {{encoded_[which], row_bytes, num_tokens_}, weight.format, weight.in_features};
    }

    template <class Each>
    void for_each_token(StageTeam& team, const Each& each) const {
        const int64_t num_units = team.num_units(num_tokens_, kTokensPerUnit);
        team.share(num_units, [&](int64_t unit) {
            const Range tokens = ThreadRange{(int)unit, (int)num_units}.of(num_tokens_);
            for (int64_t token = tokens.begin; token < tokens.end; ++token) each(token);
        });
    }

    void load_embeddings(StageTeam& team) {
        const InputRows<T> to = input_of(*encoder_.layers[0].qkv, 0);
        for_each_token(team, [&](int64_t token) {
            const int64_t place = texts_.starts[0] + token;
            if (batch_.x) {
                const T* from = row_of(batch_.x, place);
                for_each_vector(encoder_.hidden_size,
                                [&](int64_t i, int64_t count) { store(sum(token) + i, load(from + i, count), count); });
            } else {
                embed(place, sum(token));
            }
            to.encode(token, sum(token));
        });
    }

    void embed(int64_t place, float* to) const {
        const EmbeddingsArgument& tables = encoder_.embeddings;
        const T* token = row_of(tables.tokens, batch_.token_ids[place]);
        const T* type = tables.types ? row_of(tables.types, batch_.token_types[place]) : nullptr;
        const T* position = tables.positions ? row_of(tables.positions, batch_.positions[place]) : nullptr;
        for_each_vector(encoder_.hidden_size, [&](int64_t i, int64_t count) {
            Float x = load(token + i, count);
            if (type) x += load(type + i, count);
            if (position) x += load(position + i, count);
            store(to + i, x, count);
        });
        layer_norm_row(to, (const T*)tables.norm.weight, (const T*)tables.norm.bias, to, encoder_.hidden_size,
                       encoder_.eps);
    }

    const T* row_of(const void* table, int64_t row) const { return (const T*)table + row * encoder_.hidden_size; }

    void store_results(StageTeam& team) {
        for_each_token(team, [&](int64_t token) {
            T* to = (T*)row_of(batch_.out, texts_.starts[0] + token);
            for_each_vector(encoder_.hidden_size,
                            [&](int64_t i, int64_t count) { store(to + i, load(sum(token) + i, count), count); });
        });
    }

    void store_means(StageTeam& team) {
        team.share(texts_.count, [&](int64_t text) {
            const int64_t begin = texts_.starts[text] - texts_.starts[0], end = texts_.starts[text + 1] - texts_.starts[0];
            T* to = (T*)row_of(batch_.out, texts_.starts - batch_.starts + text);
            for_each_vector(encoder_.hidden_size, [&](int64_t i, int64_t count) {
                Float total = {};
                for (int64_t token = begin; token < end; ++token) total += load(sum(token) + i, count);
                store(to + i, total / (float)(end - begin), count);
            });
        });
    }

    // Norms the sums in place and encodes them for the next product, if there is one.
    void norm_sums(const NormArgument& norm, const InputRows<T>* to, StageTeam& team) {
        for_each_token(team, [&](int64_t token) {
            layer_norm_row(sum(token), (const T*)norm.weight, (const T*)norm.bias, sum(token), encoder_.hidden_size,
                           encoder_.eps);
            if (to) to->encode(token, sum(token));
        });
    }

    // Panels are the units, and parts of the rows too where panels are few.
    template <class Put>
    void multiply(const LinearLayer<T>& layer, EncodedRows rows, StageTeam& team, const Put& put) const {
        const int64_t num_panels = layer.weight.panels_per_half();
        const int64_t panel_units = team.num_units(num_panels, kPanelsAtOnce);
        const int64_t row_units = panel_units < team.num_threads() ? team.num_units(num_tokens_, kRowsAtOnce) : 1;
        team.share(panel_units * row_units, [&](int64_t unit) {
            const Range panels = ThreadRange{(int)(unit / row_units), (int)panel_units}.of(num_panels);
            const Range tokens = ThreadRange{(int)(unit % row_units), (int)row_units}.of(num_tokens_);
            layer.run(rows, tokens, panels, put);
        });
    }

    // Rows of numbers go to where the next product reads them; those of fewer bits wait until all of a row are there.
    template <class Run>
    void fill(const InputRows<T>& to, StageTeam& team, const Run& run) {
        if (to.accepts_floats()) return run(to.numbers());
        run(StoreInRows<float>{wide_, to.width});
        for_each_token(team, [&](int64_t token) { to.encode(token, wide_ + token * to.width); });
    }

    void attend(const EncoderLayerArgument& layer, StageTeam& team, TextAttention& attention) {
        const InputRows<T> normed = input_of(*layer.qkv, 0), attended = input_of(*layer.output, 1);
        multiply({*layer.qkv, (const T*)layer.qkv_bias, Activation::none}, normed.rows, team,
                 StoreInRows<float>{heads_, heads_width()});
        fill(attended, team, [&](auto put) { attend_heads(team, attention, put); });
        multiply({*layer.output, (const T*)layer.output_bias, Activation::none}, attended.rows, team,
                 AddToRows{sums_, encoder_.hidden_size});
        const InputRows<T> next = input_of(*layer.up, 0);
        norm_sums(layer.attention_norm, &next, team);
    }

    template <class Put>
    void attend_heads(StageTeam& team, TextAttention& attention, const Put& put) {
        const int64_t num_heads = encoder_.attention.num_heads;
        team.share(texts_.count * num_heads, [&](int64_t unit) {
            const int64_t text = unit / num_heads, first = texts_.starts[text] - texts_.starts[0];
            const TextHeads heads = {heads_ + first * heads_width(), heads_width(),
                                     texts_.starts[text + 1] - texts_.starts[text]};
            attention.run(
                encoder_.attention, heads, unit % num_heads,
                [&](int64_t token, int64_t column, Float x, int64_t left) { put(first + token, column, x, left); });
        });
    }

    void feed_forward(const EncoderLayerArgument& layer, StageTeam& team, bool has_next) {
        const InputRows<T> normed = input_of(*layer.up, 0), inner = input_of(*layer.down, 1);
        fill(inner, team, [&](auto put) {
            multiply({*layer.up, (const T*)layer.up_bias, (Activation)encoder_.activation}, normed.rows, team, put);
        });
        multiply({*layer.down, (const T*)layer.down_bias, Activation::none}, inner.rows, team,
                 AddToRows{sums_, encoder_.hidden_size});
        const InputRows<T> next = input_of(*layer.qkv, 0);
        norm_sums(layer.feed_forward_norm, has_next ? &next : nullptr, team);
    }

    static constexpr int64_t kTokensPerUnit = 4;

    const EncoderArgument& encoder_;
    const TextsArgument& batch_;
    const Texts texts_;
    const int64_t num_tokens_;
    float *sums_, *heads_, *wide_;
    uint8_t* encoded_[2];
};

}  // namespace rayinfer
