// Norms, gates and rotations: whatever lies between the matrix products.
//
// Each computes in float32 and rounds to the tensors' type exactly where the torch reference does.

#include <cmath>

#include "activations.h"
#include "core/thread_team.h"
#include "row_norms.h"

namespace rayinfer {
namespace {

// Rows that lie regularly on two levels, as the heads of a strided view do.
template <class T>
struct Rows {
    T* data;
    int64_t inner_count, outer_stride, inner_stride;
    T* operator[](int64_t row) const {
        return data + row / inner_count * outer_stride + row % inner_count * inner_stride;
    }
};

// With an offset the weight is 1 + what is stored, and the product is rounded once.
template <class T>
void rms_norm_row(const T* x, T* residual, const T* weight, T* out, int64_t width, float eps, bool unit_offset) {
    if (residual)
        for_each_vector(width, [=](int64_t i, int64_t count) {
            store(residual + i, load(x + i, count) + load(residual + i, count), count);
        });
    const T* from = residual ? residual : x;
    const float squares = sum_of_row(width, [=](int64_t i, int64_t count) {
        const Float value = load(from + i, count);
        return value * value;
    });
    const float factor = 1.0f / std::sqrt(squares / (float)width + eps);
    for_each_vector(width, [=](int64_t i, int64_t count) {
        const Float normed = load(from + i, count) * factor, scale = load(weight + i, count);
        store(out + i, unit_offset ? normed * (1.0f + scale) : rounded_to<T>(normed) * scale, count);
    });
}

template <class T, Float (*activation)(Float)>
void activate_row(const T* x, T* out, int64_t width) {
    for_each_vector(width, [=](int64_t i, int64_t count) { store(out + i, activation(load(x + i, count)), count); });
}

template <class T, Float (*activation)(Float)>
void gate_row(const T* x, T* out, int64_t width) {
    for_each_vector(width, [=](int64_t i, int64_t count) {
        const Float gate = load(x + i, count), up = load(x + width + i, count);
        store(out + i, rounded_to<T>(activation(gate)) * up, count);
    });
}

// Half-split pairs: channel i is rotated with channel i + head_dim / 2.
template <class T>
void rotate_row(const T* x, const T* cos, const T* sin, T* out, int64_t head_dim) {
    const int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i += kWidth) {
        const int64_t left = half - i;
        const Float first = load(x + i, left), second = load(x + half + i, left);
        const Float rotated_first = rounded_to<T>(first * load(cos + i, left)) -
                                   rounded_to<T>(second * load(sin + i, left));
        const Float rotated_second = rounded_to<T>(second * load(cos + half + i, left)) +
                                    rounded_to<T>(first * load(sin + half + i, left));
        store(out + i, rotated_first, left);
        store(out + half + i, rotated_second, left);
    }
}

template <class T>
void rms_norm(Rows<const T> x, T* residual, const T* weight, T* out, int64_t num_rows, int64_t width, float eps,
              bool unit_offset, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(team_size(num_rows* width, kElementsPerThread, num_threads))
    for (int64_t row = 0; row < num_rows; ++row)
        rms_norm_row(x[row], residual ? residual + row * width : nullptr, weight, out + row * width, width, eps,
                     unit_offset);
}

template <class T>
void layer_norm(const T* x, int64_t stride, const T* weight, const T* bias, T* out, int64_t num_rows, int64_t width,
                float eps, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(team_size(num_rows* width, kElementsPerThread, num_threads))
    for (int64_t row = 0; row < num_rows; ++row)
        layer_norm_row(x + row * stride, weight, bias, out + row * width, width, eps);
}

template <class T, void (*change_row)(const T*, T*, int64_t)>
void change_rows(const T* x, int64_t stride, T* out, int64_t num_rows, int64_t width, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(team_size(num_rows* width, kElementsPerThread, num_threads))
    for (int64_t row = 0; row < num_rows; ++row) change_row(x + row * stride, out + row * width, width);
}

template <class T>
void rotate(Rows<const T> x, const T* cos, const T* sin, T* out, int64_t num_rows, int64_t head_dim, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(team_size(num_rows* head_dim, kElementsPerThread, num_threads))
    for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t angle = row / x.inner_count * head_dim;
        rotate_row(x[row], cos + angle, sin + angle, out + row * head_dim, head_dim);
    }
}

}  // namespace
}  // namespace rayinfer

#define RAYINFER_CHANGE_ROWS(name, type, T, change_row)                                                                \
    extern "C" __attribute__((visibility("default"))) void rayinfer_##name##_##type(                                   \
        const void* x, int64_t stride, void* out, int64_t num_rows, int64_t width, int num_threads) {                  \
        using namespace rayinfer;                                                                                      \
        change_rows<T, change_row>((const T*)x, stride, (T*)out, num_rows, width, num_threads);                        \
    }

#define RAYINFER_ELEMENTWISE(type, T)                                                                                  \
    RAYINFER_CHANGE_ROWS(silu_and_mul, type, T, (gate_row<T, silu>))                                                   \
    RAYINFER_CHANGE_ROWS(gelu_tanh_and_mul, type, T, (gate_row<T, gelu_tanh>))                                         \
    RAYINFER_CHANGE_ROWS(gelu_tanh, type, T, (activate_row<T, gelu_tanh>))                                             \
    RAYINFER_CHANGE_ROWS(gelu, type, T, (activate_row<T, gelu>))                                                       \
    extern "C" __attribute__((visibility("default"))) void rayinfer_layer_norm_##type(const void* x, int64_t stride, const void* weight, const void* bias,     \
                                               void* out, int64_t num_rows, int64_t width, float eps,                  \
                                               int num_threads) {                                                      \
        rayinfer::layer_norm<T>((const T*)x, stride, (const T*)weight, (const T*)bias, (T*)out, num_rows, width, eps,  \
                                num_threads);                                                                          \
    }                                                                                                                  \
    extern "C" __attribute__((visibility("default"))) void rayinfer_rms_norm_##type(const void* x, int64_t inner_count, int64_t outer_stride,                 \
                                             int64_t inner_stride, void* residual, const void* weight, void* out,      \
                                             int64_t num_rows, int64_t width, float eps, int unit_offset,              \
                                             int num_threads) {                                                        \
        rayinfer::rms_norm<T>({(const T*)x, inner_count, outer_stride, inner_stride}, (T*)residual, (const T*)weight,  \
                              (T*)out, num_rows, width, eps, unit_offset, num_threads);                                \
    }                                                                                                                  \
    extern "C" __attribute__((visibility("default"))) void rayinfer_rotary_embedding_##type(const void* x, int64_t num_heads, int64_t token_stride,           \
                                                     int64_t head_stride, const void* cos, const void* sin, void* out, \
                                                     int64_t num_tokens, int64_t head_dim, int num_threads) {          \
        rayinfer::rotate<T>({(const T*)x, num_heads, token_stride, head_stride}, (const T*)cos, (const T*)sin,         \
                            (T*)out, num_tokens * num_heads, head_dim, num_threads);                                   \
    }

RAYINFER_ELEMENTWISE(float32, float)
RAYINFER_ELEMENTWISE(bfloat16, rayinfer::bfloat16)
