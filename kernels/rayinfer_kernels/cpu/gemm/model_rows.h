// Rows of the model's own type, and how a team of threads encodes them for a product.
#pragma once

#include "gemm/linear.h"
#include "gemm/row_buffer.h"

namespace rayinfer {

template <class T>
struct ModelRows {
    const T* data;
    int64_t stride, num_rows, width;

    // Whether a product can read them as they are.
    bool are_encoded(Format format) const {
        return std::is_same_v<T, Plain<T>> && !is_dynamic(format) && padded_width(format, width) == width &&
               stride * (int64_t)sizeof(T) % 4 == 0 && (uintptr_t)data % 4 == 0;
    }
};

// The rows themselves, or memory of `buffer` for `encode_rows` to fill.
template <class T>
EncodedRows encoded_buffer(const ModelRows<T>& x, Format format, RowBuffer& buffer) {
    if (x.are_encoded(format)) return {(const uint8_t*)x.data, x.stride * (int64_t)sizeof(T), x.num_rows};
    const int64_t row_bytes = encoded_row_bytes<T>(format, x.width);
    return {(const uint8_t*)buffer.at_least(row_bytes * x.num_rows), row_bytes, x.num_rows};
}

// Encodes one thread's range of the rows; `scratch` holds a row.
template <class T>
void encode_rows(const ModelRows<T>& x, Format format, EncodedRows rows, ThreadRange thread, float* scratch) {
    const Range range = thread.of(x.num_rows);
    for (int64_t row = range.begin; row < range.end; ++row) {
        for (int64_t i = 0; i < x.width; i += kWidth)
            store(scratch + i, load(x.data + row * x.stride + i, x.width - i), x.width - i);
        encode_row<T>(format, scratch, x.width, (uint8_t*)rows.data + row * rows.row_bytes);
    }
}

}  // namespace rayinfer
