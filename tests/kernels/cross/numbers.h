// Numbers of the model's type, and a fixed pseudo-random generator of inputs.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

struct bfloat16 {
    uint16_t bits;
};

template <class To, class From>
To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

inline float to_float(float x) { return x; }
inline float to_float(bfloat16 x) { return bits_as<float>((uint32_t)x.bits << 16); }

// To the nearest number of T, ties to even.
template <class T>
T to_number(float x) {
    if constexpr (std::is_same_v<T, float>) {
        return x;
    } else {
        const uint32_t bits = bits_as<uint32_t>(x);
        return {(uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
    }
}

template <class T>
constexpr const char* type_name = std::is_same_v<T, float> ? "float32" : "bfloat16";

// Relative error of a result that is rounded to T once.
template <class T>
constexpr double kRounding = std::is_same_v<T, float> ? 0x1p-24 : 0x1p-8;

// SplitMix64 (Steele et al. 2014).
class Generator {
  public:
    explicit Generator(uint64_t seed) : state_(seed) {}

    uint64_t word() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
    int64_t integer(int64_t low, int64_t high) { return low + (int64_t)(word() % (uint64_t)(high - low + 1)); }
    double unit() { return (double)(word() >> 11) * 0x1p-53; }
    // About normal: the sum of four uniform numbers, of variance 1.
    float normal() { return (float)((unit() + unit() + unit() + unit() - 2.0) * 1.7320508); }

    template <class T>
    std::vector<T> numbers(int64_t count, float size = 1.0f) {
        std::vector<T> all((size_t)count);
        for (T& each : all) each = to_number<T>(normal() * size);
        return all;
    }

  private:
    uint64_t state_;
};

inline int64_t rounded_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }
