// Products of encoded rows with one panel or two neighboring panels of a weight: a file for each kind of format.
//
// `sums` [num_rows, num_panels x 32] becomes the whole product in float32. Every sum is taken in an order that depends on
// the weight alone, so a row's result is the same bits whatever rows it is computed with.
#pragma once

#include "gemm/encoded_rows.h"

namespace rayinfer {

constexpr int64_t kPanelsAtOnce = 2;
constexpr int64_t kRowsPerBlock = 96;  // so few that they and their sums stay in the second level cache

// At most kRowsPerBlock.
struct RowTile {
    const uint8_t* rows;  // encoded for the weight's format
    int64_t row_bytes;    // from one to the next
    int64_t num_rows;
};

template <class T>
void float_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums);
// The same of some inputs only, whose panels lie one after the other; `continues` adds to the sums of the inputs before.
template <class T>
void add_float_products(RowTile rows, const T* panels, int64_t num_panels, int64_t num_inputs, bool continues, float* sums);
template <class T>
void int8_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums);
template <class T>
void group_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums);
void int8_dynamic_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums);
void int4_dynamic_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums);

template <class T>
inline void panel_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums) {
    switch (weight.format) {
        case Format::float32:
        case Format::bfloat16: return float_products<T>(weight, rows, panel, num_panels, sums);
        case Format::int8: return int8_products<T>(weight, rows, panel, num_panels, sums);
        case Format::int8_dynamic: return int8_dynamic_products(weight, rows, panel, num_panels, sums);
        case Format::int4_dynamic: return int4_dynamic_products(weight, rows, panel, num_panels, sums);
        default: return group_products<T>(weight, rows, panel, num_panels, sums);
    }
}

}  // namespace rayinfer
