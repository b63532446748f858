// Activation functions of feed-forward layers, a register's values at a time.
#pragma once

#include "core/lanes.h"

namespace rayinfer {

// 1 / (1 + e^-x); 0 where that is less than any normal float.
inline Float sigmoid(Float x) {
    const Float result = reciprocal(1.0f + bounded_exp(-x));
    return x < -87.0f ? splat(0.0f) : result;
}

inline Float silu(Float x) { return x * sigmoid(x); }

inline Float relu(Float x) { return x < 0.0f ? splat(0.0f) : x; }

// x (1 + tanh(u)) / 2 is x / (1 + e^-2u), which keeps its digits where tanh comes close to -1.
inline Float gelu_tanh(Float x) { return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x)); }

// (1 - erf(|x| / sqrt 2)) / 2: e^(-x^2 / 2) times a polynomial in t = 1 / (1 + |x| / sqrt 8), fitted to a relative error of
// 4e-8.
inline Float normal_tail(Float x) {
    const Float t = 1.0f / (1.0f + 0.353553391f * absolute(x));
    Float p = splat(0.5f * -0.0593870021f);
    p = p * t + 0.5f * 0.286126584f;
    p = p * t + 0.5f * -0.490411699f;
    p = p * t + 0.5f * 0.281739295f;
    p = p * t + 0.5f * -0.0291526075f;
    p = p * t + 0.5f * 0.203754216f;
    p = p * t + 0.5f * 0.242834702f;
    p = p * t + 0.5f * 0.282412142f;
    p = p * t + 0.5f * 0.282084316f;
    return exp_of_negative(-0.5f * x * x) * (p * t);
}

// x (1 + erf(x / sqrt 2)) / 2
inline Float gelu(Float x) {
    const Float tail = normal_tail(x);
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

}  // namespace rayinfer
