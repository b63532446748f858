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
    RowBuffer sums, heads, encoded, wide, picked_sums, picked_heads;
};

// Tokens that a layer computes, one after the other.
struct LayerTokens {
    int64_t count;
    float *sums, *heads;
};

template <class T>
class TextGroup {
  public:
    // By one thread, before a team's threads call `run`.
    TextGroup(const EncoderArgument& encoder, const TextsArgument& batch, Texts texts, GroupRows& rows)
        : encoder_(encoder), batch_(batch), texts_(texts) {
        const int64_t num_tokens = texts.num_tokens();
        const EncoderLayerArgument& layer = encoder.layers[0];
        int64_t widest_row = 0;
        for (const Weight* weight : {layer.qkv, layer.output, layer.up, layer.down})
            widest_row = std::max(widest_row, encoded_row_bytes<T>(weight->format, weight->in_features));
        tokens_ = {num_tokens, rows.sums.template rows<float>(num_tokens, encoder.hidden_size),
                   rows.heads.template rows<float>(num_tokens, heads_width())};
        if (batch.picks_tokens())
            picked_ = {texts.count, rows.picked_sums.template rows<float>(texts.count, encoder.hidden_size),
                       rows.picked_heads.template rows<float>(texts.count, heads_width())};
        wide_ = rows.wide.template rows<float>(num_tokens, std::max(query_width(), layer.down->in_features));
        // Two inputs: a product reads one while it fills the other.
        encoded_[0] = (uint8_t*)rows.encoded.at_least(2 * widest_row * num_tokens);
        encoded_[1] = encoded_[0] + widest_row * num_tokens;
    }

    void run(StageTeam team, TextAttention& attention) {
        load_embeddings(team);
        for (int64_t i = 0; i < encoder_.num_layers; ++i) {
            const EncoderLayerArgument& layer = encoder_.layers[i];
            const bool is_last = i + 1 == encoder_.num_layers, is_cut = is_last && batch_.picks_tokens();
            const LayerTokens& tokens = is_cut ? picked_ : tokens_;
            if (is_cut)
                project_picked(layer, team);
            else
                multiply({*layer.qkv, (const T*)layer.qkv_bias, Activation::none}, input_of(*layer.qkv, tokens, 0).rows,
                         all_panels(*layer.qkv), team, StoreInRows<float>{tokens.heads, heads_width()});
            attend(layer, tokens, team, attention);
            feed_forward(layer, tokens, team, !is_last);
        }
        if (batch_.pooling == Pooling::mean)
            store_means(team);
        else if (batch_.picks_tokens())
            store_results(picked_, texts_.starts - batch_.starts, team);
        else
            store_results(tokens_, texts_.starts[0], team);
    }

  private:
    int64_t query_width() const { return encoder_.attention.num_heads * encoder_.attention.head_dim; }
    int64_t heads_width() const { return 3 * query_width(); }
    float* sum(const LayerTokens& tokens, int64_t token) const { return tokens.sums + token * encoder_.hidden_size; }
    static Range all_panels(const Weight& weight) { return {0, weight.panels_per_half()}; }

    // The token of a text that is picked, among the text's.
    int64_t picked_of(int64_t text) const {
        return batch_.pooling == Pooling::first ? 0 : texts_.starts[text + 1] - texts_.starts[text] - 1;
    }

    InputRows<T> input_of(const Weight& weight, const LayerTokens& tokens, int which) const {
        const int64_t row_bytes = encoded_row_bytes<T>(weight.format, weight.in_features);
        return {{encoded_[which], row_bytes, tokens.count}, weight.format, weight.in_features};
    }

    template <class Each>
    void for_each(int64_t count, StageTeam& team, const Each& each) const {
        const int64_t num_units = team.num_units(count, kTokensPerUnit);
        team.share(num_units, [&](int64_t unit) {
            const Range tokens = ThreadRange{(int)unit, (int)num_units}.of(count);
            for (int64_t token = tokens.begin; token < tokens.end; ++token) each(token);
        });
    }

    void load_embeddings(StageTeam& team) {
        const InputRows<T> to = input_of(*encoder_.layers[0].qkv, tokens_, 0);
        for_each(tokens_.count, team, [&](int64_t token) {
            float* sums = sum(tokens_, token);
            const int64_t place = texts_.starts[0] + token;
            if (batch_.x) {
                const T* from = row_of(batch_.x, place);
                for_each_vector(encoder_.hidden_size,
                                [&](int64_t i, int64_t count) { store(sums + i, load(from + i, count), count); });
            } else {
                embed(place, sums);
            }
            to.encode(token, sums);
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

    void store_results(const LayerTokens& tokens, int64_t first_row, StageTeam& team) {
        for_each(tokens.count, team, [&](int64_t token) {
            const float* from = sum(tokens, token);
            T* to = (T*)row_of(batch_.out, first_row + token);
            for_each_vector(encoder_.hidden_size,
                            [&](int64_t i, int64_t count) { store(to + i, load(from + i, count), count); });
        });
    }

    void store_means(StageTeam& team) {
        team.share(texts_.count, [&](int64_t text) {
            const int64_t begin = texts_.starts[text] - texts_.starts[0], end = texts_.starts[text + 1] - texts_.starts[0];
            T* to = (T*)row_of(batch_.out, texts_.starts - batch_.starts + text);
            for_each_vector(encoder_.hidden_size, [&](int64_t i, int64_t count) {
                Float total = {};
                for (int64_t token = begin; token < end; ++token) total += load(sum(tokens_, token) + i, count);
                store(to + i, total / (float)(end - begin), count);
            });
        });
    }

    // Norms the sums in place and encodes them for the next product, if there is one.
    void norm_sums(const LayerTokens& tokens, const NormArgument& norm, const InputRows<T>* to, StageTeam& team) {
        for_each(tokens.count, team, [&](int64_t token) {
            float* sums = sum(tokens, token);
            layer_norm_row(sums, (const T*)norm.weight, (const T*)norm.bias, sums, encoder_.hidden_size, encoder_.eps);
            if (to) to->encode(token, sums);
        });
    }

    // Panels are the units, and parts of the rows too where panels are few.
    template <class Put>
    void multiply(const LinearLayer<T>& layer, EncodedRows rows, Range panels, StageTeam& team, const Put& put) const {
        const int64_t panel_units = team.num_units(panels.size(), kPanelsAtOnce);
        const int64_t row_units = panel_units < team.num_threads() ? team.num_units(rows.num_rows, kRowsAtOnce) : 1;
        team.share(panel_units * row_units, [&](int64_t unit) {
            const Range some = ThreadRange{(int)(unit / row_units), (int)panel_units}.of(panels.size());
            const Range tokens = ThreadRange{(int)(unit % row_units), (int)row_units}.of(rows.num_rows);
            layer.run(rows, tokens, {panels.begin + some.begin, panels.begin + some.end}, put, team.num_threads() > 1);
        });
    }

    // Rows of numbers go to where the next product reads them; those of fewer bits wait until all of a row are there.
    template <class Run>
    void fill(const InputRows<T>& to, StageTeam& team, const Run& run) {
        if (to.accepts_floats()) return run(to.numbers());
        run(StoreInRows<float>{wide_, to.width});
        for_each(to.rows.num_rows, team, [&](int64_t token) { to.encode(token, wide_ + token * to.width); });
    }

    // The last layer's keys and values of all tokens, and sums and queries of the picked ones.
    void project_picked(const EncoderLayerArgument& layer, StageTeam& team) {
        const LinearLayer<T> qkv{*layer.qkv, (const T*)layer.qkv_bias, Activation::none};
        const InputRows<T> all = input_of(*layer.qkv, tokens_, 0), picked = input_of(*layer.qkv, picked_, 1);
        const int64_t row_bytes = all.rows.row_bytes, width = encoder_.hidden_size;
        for_each(texts_.count, team, [&](int64_t text) {
            const int64_t token = texts_.starts[text] - texts_.starts[0] + picked_of(text);
            std::copy_n(sum(tokens_, token), width, sum(picked_, text));
            std::copy_n(encoded_[0] + token * row_bytes, row_bytes, encoded_[1] + text * row_bytes);
        });
        // A panel of both queries and keys is computed for both.
        multiply(qkv, all.rows, {query_width() / kPanelWidth, layer.qkv->panels_per_half()}, team,
                 StoreInRows<float>{tokens_.heads, heads_width()});
        multiply(qkv, picked.rows, {0, (query_width() + kPanelWidth - 1) / kPanelWidth}, team,
                 StoreInRows<float>{picked_.heads, heads_width()});
    }

    void attend(const EncoderLayerArgument& layer, const LayerTokens& tokens, StageTeam& team,
                TextAttention& attention) {
        const InputRows<T> attended = input_of(*layer.output, tokens, 1);
        fill(attended, team, [&](auto put) { attend_heads(tokens, team, attention, put); });
        multiply({*layer.output, (const T*)layer.output_bias, Activation::none}, attended.rows,
                 all_panels(*layer.output), team, AddToRows{tokens.sums, encoder_.hidden_size});
        const InputRows<T> next = input_of(*layer.up, tokens, 0);
        norm_sums(tokens, layer.attention_norm, &next, team);
    }

    template <class Put>
    void attend_heads(const LayerTokens& tokens, StageTeam& team, TextAttention& attention, const Put& put) {
        const int64_t num_heads = encoder_.attention.num_heads;
        const bool is_cut = &tokens == &picked_;
        team.share(texts_.count * num_heads, [&](int64_t unit) {
            const int64_t text = unit / num_heads, first = texts_.starts[text] - texts_.starts[0];
            const int64_t length = texts_.starts[text + 1] - texts_.starts[text];
            const Range asked = is_cut ? Range{picked_of(text), picked_of(text) + 1} : Range{0, length};
            const int64_t first_row = is_cut ? text : first;
            const TextHeads heads = {tokens_.heads + first * heads_width(), heads_width(), length, asked,
                                     tokens.heads + first_row * heads_width()};
            attention.run(encoder_.attention, heads, unit % num_heads,
                          [&](int64_t token, int64_t column, Float x, int64_t left) {
                              put(first_row + token - asked.begin, column, x, left);
                          });
        });
    }

    void feed_forward(const EncoderLayerArgument& layer, const LayerTokens& tokens, StageTeam& team, bool has_next) {
        const InputRows<T> normed = input_of(*layer.up, tokens, 0), inner = input_of(*layer.down, tokens, 1);
        fill(inner, team, [&](auto put) {
            multiply({*layer.up, (const T*)layer.up_bias, (Activation)encoder_.activation}, normed.rows,
                     all_panels(*layer.up), team, put);
        });
        multiply({*layer.down, (const T*)layer.down_bias, Activation::none}, inner.rows, all_panels(*layer.down), team,
                 AddToRows{tokens.sums, encoder_.hidden_size});
        const InputRows<T> next = input_of(*layer.qkv, tokens, 0);
        norm_sums(tokens, layer.feed_forward_norm, has_next ? &next : nullptr, team);
    }

    static constexpr int64_t kTokensPerUnit = 4;

    const EncoderArgument& encoder_;
    const TextsArgument& batch_;
    const Texts texts_;
    LayerTokens tokens_{}, picked_{};
    float* wide_;
    uint8_t* encoded_[2];
};

}  // namespace rayinfer
