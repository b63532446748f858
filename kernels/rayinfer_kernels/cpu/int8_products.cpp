// Products with weights of eight bits, by rows of the model's type or by rows of eight bits.

#include <cstdlib>

#include "panel_products.h"

namespace rayinfer {

void quantize_row(const float*, int64_t, int64_t, bool, void*) { std::abort(); }

template <class T>
void int8_products(const Weight&, RowTile, int64_t, int64_t, float*) {
    std::abort();
}

void int8_dynamic_products(const Weight&, RowTile, int64_t, int64_t, float*) { std::abort(); }
void int4_dynamic_products(const Weight&, RowTile, int64_t, int64_t, float*) { std::abort(); }

template void int8_products<float>(const Weight&, RowTile, int64_t, int64_t, float*);
template void int8_products<bfloat16>(const Weight&, RowTile, int64_t, int64_t, float*);

}  // namespace rayinfer
