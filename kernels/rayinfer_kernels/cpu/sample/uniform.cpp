// Philox4x32-10, a counter-based random generator (Salmon et al. 2011): the numbers that rows are drawn by.

#include <cstdint>

namespace rayinfer {
namespace {

constexpr int kRounds = 10;
constexpr uint32_t kMultipliers[2] = {0xD2511F53u, 0xCD9E8D57u};
constexpr uint32_t kKeySteps[2] = {0x9E3779B9u, 0xBB67AE85u};

// The first of the four words for the counter (low, high, 0, 0).
uint32_t first_word(uint32_t low, uint32_t high, uint64_t key) {
    uint32_t counter[4] = {low, high, 0, 0};
    uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    for (int round = 0; round < kRounds; ++round) {
        const uint64_t first = (uint64_t)kMultipliers[0] * counter[0], second = (uint64_t)kMultipliers[1] * counter[2];
        counter[0] = (uint32_t)(second >> 32) ^ counter[1] ^ keys[0];
        counter[1] = (uint32_t)second;
        counter[2] = (uint32_t)(first >> 32) ^ counter[3] ^ keys[1];
        counter[3] = (uint32_t)first;
        keys[0] += kKeySteps[0];
        keys[1] += kKeySteps[1];
    }
    return counter[0];
}

void uniform(const int64_t* seeds, const int64_t* positions, const int64_t* choices, double* numbers, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
        numbers[i] = first_word((uint32_t)positions[i], (uint32_t)choices[i], (uint64_t)seeds[i]) / 4294967296.0;
}

}  // namespace
}  // namespace rayinfer

// The same numbers whatever the model's type is.
#define RAYINFER_UNIFORM(name)                                                                                  \
    extern "C" __attribute__((visibility("default"))) void name(                                              \
        const int64_t* seeds, const int64_t* positions, const int64_t* choices, double* numbers, int64_t count) { \
        rayinfer::uniform(seeds, positions, choices, numbers, count);                                            \
    }

RAYINFER_UNIFORM(rayinfer_uniform_float32)
RAYINFER_UNIFORM(rayinfer_uniform_bfloat16)
