// Random numbers, bit masks and the choice of tokens.

#include <algorithm>
#include <memory>
#include <numeric>

#include "checks.h"
#include "entry_points.h"

namespace {

// Philox4x32-10 (Salmon et al. 2011): the first of the four words for the counter (low, high, 0, 0).
uint32_t philox(uint32_t low, uint32_t high, uint64_t key) {
    uint32_t words[4] = {low, high, 0, 0}, first = (uint32_t)key, second = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; ++round, first += 0x9E3779B9u, second += 0xBB67AE85u) {
        const uint64_t a = 0xD2511F53ull * words[0], b = 0xCD9E8D57ull * words[2];
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ words[1] ^ first, (uint32_t)b,
                                  (uint32_t)(a >> 32) ^ words[3] ^ second, (uint32_t)a};
        std::copy_n(next, 4, words);
    }
    return words[0];
}

void test_uniform() {
    check(philox(0, 0, 0) == 0x6627e8d5u, "the published answer of Philox");
    Generator generator(1);
    std::vector<int64_t> seeds, positions, choices;
    for (int i = 0; i < 50; ++i) {
        seeds.push_back((int64_t)generator.word());
        positions.push_back(generator.integer(0, 1 << 20));
        choices.push_back(generator.integer(0, 64));
    }
    std::vector<double> numbers(50);
    kernel::uniform<float>(seeds.data(), positions.data(), choices.data(), numbers.data(), 50);
    bool are_right = true;
    for (size_t i = 0; i < 50; ++i)
        are_right &=
            numbers[i] == philox((uint32_t)positions[i], (uint32_t)choices[i], (uint64_t)seeds[i]) / 4294967296.0;
    check(are_right, "uniform numbers");
}

void test_masks(int64_t width) {
    constexpr int64_t num_rows = 4;
    Generator generator((uint64_t)width);
    const int64_t num_words = (width + 31) / 32;
    std::vector<uint32_t> masks;
    for (int64_t i = 0; i < 2 * num_words; ++i) masks.push_back(i % 3 == 0 ? 0xffffffffu : (uint32_t)generator.word());
    auto rows = generator.numbers<float>(num_rows * width);
    auto expected = rows;
    const int64_t lines[] = {3, 1};
    for (int64_t i = 0; i < 2; ++i)
        for (int64_t c = 0; c < width; ++c)
            if (!(masks[(size_t)(i * num_words + c / 32)] >> (c % 32) & 1))
                expected[(size_t)(lines[i] * width + c)] = -INFINITY;
    kernel::mask_rows<float>(rows.data(), width, lines, masks.data(), num_words, 2, width, 2);
    check_same_bits("masks of width " + std::to_string(width), rows.data(), expected.data(), num_rows * width);
}

struct Settings {
    double temperature;
    int64_t top_k;
    double top_p, min_p;
};

// A row's tokens with what each weighs when it is drawn: 0 for those that are not.
std::vector<double> weights_of(const std::vector<double>& logits, const Settings& settings) {
    const int64_t width = (int64_t)logits.size();
    std::vector<double> weights;
    const double best = *std::max_element(logits.begin(), logits.end());
    for (double each : logits) weights.push_back(std::exp((each - best) / settings.temperature));
    std::vector<int64_t> order((size_t)width);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logits[(size_t)a] < logits[(size_t)b]; });
    for (int64_t i = 0; i < width - settings.top_k; ++i) weights[(size_t)order[(size_t)i]] = 0.0;
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    double below = 0.0;
    for (int64_t i = 0; i + 1 < width; ++i) {
        double& weight = weights[(size_t)order[(size_t)i]];
        below += weight;
        if (settings.top_p < 1.0 && below <= (1.0 - settings.top_p) * total) weight = 0.0;
    }
    for (double& each : weights)
        if (each < settings.min_p) each = 0.0;
    return weights;
}

// Logits no two of which are equal, in T neither.
template <class T>
std::vector<T> distinct_logits(int64_t width, Generator& generator) {
    std::vector<T> logits;
    for (int64_t i = 0; i < width; ++i) logits.push_back(to_number<T>((float)(i - width / 2) / 32.0f));
    for (int64_t i = width - 1; i > 0; --i) std::swap(logits[(size_t)i], logits[(size_t)generator.integer(0, i)]);
    return logits;
}

// Each row draws from the middle of one token's share.
template <class T>
void test_draws(int64_t width, const Settings& settings, bool is_masked) {
    constexpr int64_t num_rows = 12;
    Generator generator((uint64_t)width + 5);
    const int64_t num_words = (width + 31) / 32;
    std::vector<uint32_t> mask((size_t)num_words);
    for (uint32_t& each : mask) each = (uint32_t)generator.word() | 1u;
    std::vector<T> rows;
    std::vector<double> uniform;
    std::vector<int64_t> expected, mask_of((size_t)num_rows, is_masked ? 0 : -1);
    for (int64_t r = 0; r < num_rows; ++r) {
        const auto logits = distinct_logits<T>(width, generator);
        rows.insert(rows.end(), logits.begin(), logits.end());
        std::vector<double> allowed;
        for (int64_t c = 0; c < width; ++c)
            allowed.push_back(!is_masked || mask[(size_t)(c / 32)] >> (c % 32) & 1 ? to_float(logits[(size_t)c])
                                                                                   : -INFINITY);
        const auto weights = weights_of(allowed, settings);
        const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
        double before = 0.0, target = generator.unit() * total;
        int64_t token = 0;
        while (before + weights[(size_t)token] <= target || weights[(size_t)token] < 1e-4 * total)
            before += weights[(size_t)token++];
        expected.push_back(token);
        uniform.push_back((before + weights[(size_t)token] / 2) / total);
    }
    const auto is_drawn = std::make_unique<bool[]>((size_t)num_rows);
    std::fill_n(is_drawn.get(), num_rows, true);
    const std::vector<double> temperature((size_t)num_rows, settings.temperature),
        top_p((size_t)num_rows, settings.top_p);
    const std::vector<double> min_p((size_t)num_rows, settings.min_p);
    const std::vector<int64_t> top_k((size_t)num_rows, settings.top_k);
    const RowSettings argument = {is_drawn.get(), temperature.data(), top_p.data(),
                                  min_p.data(),   uniform.data(),     top_k.data()};
    std::vector<float> values((size_t)num_rows);
    for (int num_threads : {1, 2}) {
        std::vector<int64_t> tokens((size_t)num_rows);
        kernel::sample_rows<T>(rows.data(), width, mask_of.data(), mask.data(), num_words, &argument, values.data(),
                               tokens.data(), num_rows, width, num_threads);
        check(tokens == expected, std::string("draws ") + type_name<T> + " of " + std::to_string(width) + ", top-k " +
                                      std::to_string(settings.top_k) + (is_masked ? ", masked" : ""));
    }
}

template <class T>
void test_type() {
    for (int64_t width : {33, 200, 250})
        for (bool is_masked : {false, true}) {
            test_draws<T>(width, {1.0, width, 1.0, 0.0}, is_masked);
            test_draws<T>(width, {0.7, width, 1.0, 0.05}, is_masked);
            test_draws<T>(width, {1.3, 5, 1.0, 0.0}, is_masked);
            test_draws<T>(width, {1.0, width, 0.8, 0.0}, is_masked);
            test_draws<T>(width, {0.9, 20, 0.6, 0.1}, is_masked);
        }
}

}  // namespace

void test_sampling() {
    test_uniform();
    for (int64_t width : {5, 32, 64, 77, 130}) test_masks(width);
    test_type<float>();
    test_type<bfloat16>();
    test_draws<float>(2000, {2.0, 2000, 1.0, 0.0}, true);
    test_draws<float>(2000, {2.0, 300, 0.9, 0.0}, false);
}
