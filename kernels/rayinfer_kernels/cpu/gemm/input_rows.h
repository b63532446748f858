// The input of a linear layer between two stages of a stack.
#pragma once

#include "gemm/linear.h"

namespace rayinfer {

// The rows of one product's input, filled by the stage before it.
template <class T>
struct InputRows {
    EncodedRows rows;
    Format format;
    int64_t width;

    // Whether unencoded numbers can be stored one by one.
    bool accepts_floats() const { return !is_dynamic(format) && padded_width(format, width) == width; }
    StoreInRows<Plain<T>> numbers() const { return {(Plain<T>*)rows.data, rows.row_bytes / (int64_t)sizeof(Plain<T>)}; }
    void encode(int64_t row, const float* from) const {
        encode_row<T>(format, from, width, (uint8_t*)rows.data + row * rows.row_bytes);
    }
};

}  // namespace rayinfer
