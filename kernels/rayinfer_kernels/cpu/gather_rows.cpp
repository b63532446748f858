// Rows of a packed weight: an embedding that is also the output head lies in panels.

#include <algorithm>

#include "core/thread_team.h"
#include "gemm/weight.h"

namespace rayinfer {
namespace {

constexpr int64_t kRowsPerThread = 16;  // fewer are not worth waking a thread

constexpr int64_t kWordBytes = 4;

// Words of N neighboring numbers along the inputs, of which the same ones of all 32 outputs follow one another.
template <int N, class Number, class T, class Change>
void gather_row(const Number* words, int64_t width, T* out, Change change) {
    for (int64_t i = 0; i < width; ++i) out[i] = change(words[i / N * kPanelWidth * N + i % N]);
}

// Each word lies in a cache line of its own, which the processor would not fetch by itself in time.
void fetch_row(const uint8_t* words, int64_t num_words) {
    for (int64_t i = 0; i < num_words; ++i) __builtin_prefetch(words + i * kPanelWidth * kWordBytes, 0, 3);
}

inline void round_into(float x, float* to) { *to = x; }
inline void round_into(float x, bfloat16* to) {
    bfloat16 numbers[kWidth];
    store(numbers, splat(x));
    *to = numbers[0];
}

template <class T>
void gather_rows(const Weight& weight, const int64_t* indices, int64_t num_rows, T* out, int num_threads) {
    const int64_t width = weight.in_features, bytes = panel_bytes(weight.format, width);
    auto words_of = [&](int64_t output) {
        return weight.panels + output / kPanelWidth * bytes + output % kPanelWidth * kWordBytes;
    };
    const int team = team_size(num_rows, kRowsPerThread, num_threads);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t row = 0; row < num_rows; ++row) {
        const uint8_t* words = words_of(indices[row]);
        T* to = out + row * width;
        if (row + 1 < num_rows) fetch_row(words_of(indices[row + 1]), bytes / kPanelWidth / kWordBytes);
        if (weight.format == Format::float32 || weight.format == Format::bfloat16) {
            gather_row<kWordBytes / sizeof(T)>((const T*)words, width, to, [](T x) { return x; });
        } else {
            const float scale = weight.scales[indices[row]];
            gather_row<kWordBytes>((const int8_t*)words, width, to, [scale](int8_t x) {
                T rounded;
                round_into((float)x * scale, &rounded);
                return rounded;
            });
        }
    }
}

}  // namespace
}  // namespace rayinfer

// The weight's own type is T, or it has eight bits.
#define RAYINFER_GATHER_ROWS(name, T)                                                                              \
    extern "C" __attribute__((visibility("default"))) void name(                                                 \
        const rayinfer::Weight* weight, const int64_t* indices, int64_t num_rows, void* out, int num_threads) {  \
        rayinfer::gather_rows<T>(*weight, indices, num_rows, (T*)out, num_threads);                                \
    }

RAYINFER_GATHER_ROWS(rayinfer_gather_rows_float32, float)
RAYINFER_GATHER_ROWS(rayinfer_gather_rows_bfloat16, rayinfer::bfloat16)
