// Products of encoded rows with one panel or two neighbouring panels of a weight: a file for each kind of format.
//
// `sums` [num_rows, num_panels x 32] becomes the whole product in float32. Every sum is taken in an order that depends on
// the weight alone, so a row's result is the same bits whatever rows it is computed with.
#pragma once

#include "encoded_rows.h"

namespace rayinfer {

constexpr int64_t kPanelsAtOnce = 2;
constexpr int64_t kRowsPerBlock = 96;  // so few that their sums stay in a cache

struct RowTile {
    const uint8_t* rows;  // encoded for the weight's format
    int64_t row_bytes;    // from one to the next
    int64_t num_rows;
};

// These take up to kRowsPerBlock rows.
template <class T>
void float_products(const Weight& weight, RowTile tile, int64_t panel, int64_t num_panels, float* sums);
// These take up to kRowsAtOnce rows.
template <class T>
void int8_products(const Weight& weight, RowTile tile, int64_t panel, int64_t num_panels, float* sums);
void int8_dynamic_products(const Weight& weight, RowTile tile, int64_t panel, int64_t num_panels, float* sums);
void int4_dynamic_products(const Weight& weight, RowTile tile, int64_t panel, int64_t num_panels, float* sums);

// Calls `multiply(tile, sums)` for all rows, in tiles as even as can be.
template <class Multiply>
inline void for_each_tile(RowTile rows, int64_t num_panels, float* sums, const Multiply& multiply) {
    const int64_t num_tiles = (rows.num_rows + kRowsAtOnce - 1) / kRowsAtOnce;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
        const int64_t begin = rows.num_rows * tile / num_tiles, end = rows.num_rows * (tile + 1) / num_tiles;
        multiply(RowTile{rows.rows + begin * rows.row_bytes, rows.row_bytes, end - begin},
                 sums + begin * num_panels * kPanelWidth);
    }
}

// Up to kRowsPerBlock rows.
template <class T>
inline void panel_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums) {
    if (weight.format == Format::float32 || weight.format == Format::bfloat16)
        return float_products<T>(weight, rows, panel, num_panels, sums);
    for_each_tile(rows, num_panels, sums, [&](RowTile tile, float* to) {
        switch (weight.format) {
            case Format::int8: return int8_products<T>(weight, tile, panel, num_panels, to);
            case Format::int8_dynamic: return int8_dynamic_products(weight, tile, panel, num_panels, to);
            default: return int4_dynamic_products(weight, tile, panel, num_panels, to);
        }
    });
}

}  // namespace rayinfer
