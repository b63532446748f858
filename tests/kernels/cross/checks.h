// Comparisons of results, counted by the program.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "numbers.h"

struct Counts {
    int64_t checks = 0, failures = 0;
};

Counts& counts();
void report_failure(const std::string& what, const std::string& how);
inline void check(bool holds, const std::string& what) {
    ++counts().checks;
    if (!holds) report_failure(what, "does not hold");
}

// An expected result, and how far from it a result may be.
struct Expected {
    double value, tolerance;
};

template <class T>
void check_near(const std::string& what, const T* results, const std::vector<Expected>& expected) {
    ++counts().checks;
    for (size_t i = 0; i < expected.size(); ++i) {
        const double result = to_float(results[i]), distance = std::fabs(result - expected[i].value);
        if (distance <= expected[i].tolerance) continue;
        char text[200];
        std::snprintf(text, sizeof(text), "at %zu: %.9g, expected %.9g within %.3g", i, result, expected[i].value,
                      expected[i].tolerance);
        return report_failure(what, text);
    }
}

template <class T>
void check_same_bits(const std::string& what, const T* results, const T* others, int64_t count) {
    ++counts().checks;
    for (int64_t i = 0; i < count; ++i) {
        if (std::memcmp(results + i, others + i, sizeof(T)) == 0) continue;
        char text[200];
        std::snprintf(text, sizeof(text), "bits differ at %lld: %.9g and %.9g", (long long)i,
                      (double)to_float(results[i]), (double)to_float(others[i]));
        return report_failure(what, text);
    }
}

// Groups of tests; each counts its checks.
void test_linear();
void test_quantized();
void test_groups();
void test_low_rank();
void test_cache();
void test_attention();
void test_elementwise();
void test_sampling();
void test_experts();
void test_layer_stack();
void test_encoder();
void test_peak_rate();
