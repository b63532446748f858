// Attention among the tokens of one text: every token sees all of them.
//
// Keys and values of a head are laid out as weights are, in panels, and multiplied by the products of linear layers. A
// text's results depend on nothing but the text.
#pragma once

#include <algorithm>

#include "core/thread_team.h"
#include "gemm/panel_products.h"
#include "gemm/row_buffer.h"

namespace rayinfer {

// What all texts have in common.
struct TextAttentionShape {
    int64_t num_heads, head_dim;
    float scale;
    // Added to the scores by the distance from key to query, -max_distance to max_distance and those beyond like these:
    // [num_heads, 2 x max_distance + 1]; null: nothing is.
    const float* position_bias;
    int64_t max_distance;
};

// Queries, keys and values behind one another in each row, of a text's tokens.
struct TextHeads {
    const float* rows;  // whose keys and values are read
    int64_t stride, length;
    Range asked;           // tokens that results are computed of
    const float* queries;  // rows of these, with the same stride
};

class TextAttention {
  public:
    // Computes one head of one text; `put(token, column, values, left)` takes a vector of results at a time.
    template <class Put>
    void run(const TextAttentionShape& shape, TextHeads text, int64_t head, const Put& put) {
        if (text.length == 0) return;
        begin(shape, text, head);
        for (int64_t first = text.asked.begin; first < text.asked.end; first += rows_at_once_) {
            const int64_t count = std::min(rows_at_once_, text.asked.end - first);
            attend(first, count);
            for (int64_t r = 0; r < count; ++r)
                for (int64_t c = 0; c < shape.head_dim; c += kWidth)
                    put(first + r, head * shape.head_dim + c, load(result(r, c)) * factors_[r], shape.head_dim - c);
        }
    }

  private:
    void begin(const TextAttentionShape& shape, TextHeads text, int64_t head);
    void attend(int64_t first, int64_t count);
    void weigh_row(int64_t row, const float* bias, int64_t count);
    const float* result(int64_t row, int64_t column) const;

    RowBuffer key_panels_, value_panels_, scores_, weights_, results_, bias_line_;
    Weight keys_{}, values_{};
    const float *queries_ = nullptr, *bias_ = nullptr;  // of the first token asked; of the text's first to the first key
    int64_t first_asked_ = 0, query_stride_ = 0, length_ = 0, weights_stride_ = 0, rows_at_once_ = 0, count_ = 0;
    float scale_ = 0;
    float factors_[kRowsPerBlock];  // 1 / the sum of a row's weights
};

}  // namespace rayinfer
