// Products of weights of eight bits with rows as the model has them.

#include "panel_products.h"
#include "row_buffer.h"

namespace rayinfer {
namespace {

// One of each four neighbouring inputs.
template <int Part>
inline Float number(Word quads) {
    return __builtin_convertvector((Int)(quads << (24 - 8 * Part)) >> 24, Float);
}

inline void store_quads(float* to, Word quads) {
    store(to, number<0>(quads));
    store(to + kPanelWidth, number<1>(quads));
    store(to + 2 * kPanelWidth, number<2>(quads));
    store(to + 3 * kPanelWidth, number<3>(quads));
}

// Pairs; small integers lose nothing as bfloat16.
inline void store_quads(bfloat16* to, Word quads) {
    const Word first = (Word)number<0>(quads) >> 16 | (Word)number<1>(quads);
    const Word second = (Word)number<2>(quads) >> 16 | (Word)number<3>(quads);
    std::memcpy(to, &first, sizeof(first));
    std::memcpy(to + 2 * kPanelWidth, &second, sizeof(second));
}

// The panels in the form that float_products reads.
template <class E>
void widen(const int8_t* panels, int64_t num_quads, E* to) {
    constexpr int64_t per_word = 4 / sizeof(E);
    for (int64_t quad = 0; quad < num_quads; ++quad)
        for (int64_t column = 0; column < kPanelWidth; column += kWidth)
            store_quads(to + quad * 4 * kPanelWidth + column * per_word,
                        load_raw<Word>(panels + (quad * kPanelWidth + column) * 4));
}

}  // namespace

template <class T>
void int8_products(const Weight& weight, RowTile rows, int64_t panel, int64_t num_panels, float* sums) {
    using E = Plain<T>;
    const int64_t width = num_panels * kPanelWidth, num_inputs = padded_width(weight.format, weight.in_features);
    const int8_t* panels = (const int8_t*)weight.panels + panel * num_inputs * kPanelWidth;
    thread_local RowBuffer buffer;
    E* wide = buffer.rows<E>(num_inputs, width);
    widen(panels, num_panels * num_inputs / 4, wide);
    Weight floats = weight;
    floats.panels = (const uint8_t*)wide;
    floats.in_features = num_inputs;
    floats.format = std::is_same_v<E, float> ? Format::float32 : Format::bfloat16;
    float_products<E>(floats, rows, 0, num_panels, sums);
    const float* scales = weight.scales + panel * kPanelWidth;
    for (int64_t row = 0; row < rows.num_rows; ++row)
        for (int64_t column = 0; column < width; column += kWidth)
            store(sums + row * width + column, load(sums + row * width + column) * load(scales + column));
}

template void int8_products<float>(const Weight&, RowTile, int64_t, int64_t, float*);
template void int8_products<bfloat16>(const Weight&, RowTile, int64_t, int64_t, float*);

}  // namespace rayinfer
