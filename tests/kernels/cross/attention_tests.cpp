// The cache, and attention over it.

#include <algorithm>

#include "checks.h"
#include "paged_cache.h"

namespace {

struct AttentionCase {
    int64_t num_heads, num_kv_heads, head_dim, block_size, window = 0;
    float softcap = 0.0f;
    bool has_bias = false, has_sinks = false;

    std::string name() const {
        return std::to_string(num_heads) + "/" + std::to_string(num_kv_heads) + " heads of " +
               std::to_string(head_dim) + ", blocks of " + std::to_string(block_size) + ", window " +
               std::to_string(window) + (softcap > 0 ? ", softcap" : "") + (has_bias ? ", bias" : "") +
               (has_sinks ? ", sinks" : "");
    }
};

constexpr int64_t kNumDistances = 40;

template <class T, class E>
struct Attention {
    AttentionCase of;
    Step step;
    PagedCache<E> cache;
    std::vector<T> query;
    std::vector<float> bias, sinks;
    float scale;

    Attention(const AttentionCase& attention_case, const std::vector<Request>& requests, uint64_t seed)
        : of(attention_case),
          step(requests, of.block_size),
          cache({step.num_blocks, of.num_kv_heads, of.block_size, of.head_dim}),
          scale(1.0f / std::sqrt((float)of.head_dim)) {
        Generator generator(seed);
        const auto slots = step.slots(true);
        const int64_t count = (int64_t)slots.size() * of.num_kv_heads * of.head_dim;
        const auto keys = generator.numbers<T>(count), values = generator.numbers<T>(count);
        cache.write(keys.data(), values.data(), slots);
        query = generator.numbers<T>(step.num_tokens() * of.num_heads * of.head_dim, 2.0f);
        bias = generator.numbers<float>(of.num_heads * kNumDistances);
        sinks = generator.numbers<float>(of.num_heads);
    }

    int64_t row_width() const { return of.num_heads * of.head_dim; }

    std::vector<T> run(const Step& some, int64_t first_token, int num_threads) {
        std::vector<T> out((size_t)(some.num_tokens() * row_width()));
        kernel::paged_attention<T>(&query[(size_t)(first_token * row_width())], row_width(), of.head_dim, out.data(),
                                   cache.key.data(), cache.value.data(), cache.key_scale_data(),
                                   cache.value_scale_data(), of.num_kv_heads, of.block_size, cache.shape.padded_dim(),
                                   some.block_tables.data(), some.num_columns, some.cu_seqlens_q.data(),
                                   some.seq_lens.data(), (int64_t)some.requests.size(), of.num_heads, of.head_dim,
                                   scale, of.window, of.softcap, of.has_bias ? bias.data() : nullptr,
                                   of.has_bias ? kNumDistances : 0, of.has_sinks ? sinks.data() : nullptr, num_threads);
        return out;
    }

    // A score, and what it may be off by.
    Expected score(const T* row, size_t request, int64_t head, int64_t position, int64_t token) const {
        const int64_t slot = step.slot(request, token), kv_head = head / (of.num_heads / of.num_kv_heads);
        double sum = 0.0, size = 0.0;
        for (int64_t d = 0; d < of.head_dim; ++d) {
            const double product = to_float(row[d]) * cache.key_number(slot, kv_head, d);
            sum += product, size += std::fabs(product);
        }
        sum *= scale, size *= scale;
        if (of.softcap > 0) sum = of.softcap * std::tanh(sum / of.softcap);
        if (of.has_bias) sum += bias[(size_t)(head * kNumDistances + std::min(position - token, kNumDistances - 1))];
        return {sum, 30 * 0x1p-24 * (size + std::fabs(sum) + of.softcap)};
    }

    void expect_row(const T* row, size_t request, int64_t head, int64_t position,
                    std::vector<Expected>& expected) const {
        const int64_t first = of.window ? std::max<int64_t>(0, position - of.window + 1) : 0;
        std::vector<Expected> scores;
        double most = of.has_sinks ? sinks[(size_t)head] : -INFINITY, error = 0.0;
        for (int64_t token = first; token <= position; ++token) {
            scores.push_back(score(row, request, head, position, token));
            most = std::max(most, scores.back().value);
            error = std::max(error, scores.back().tolerance);
        }
        double total = of.has_sinks ? std::exp(sinks[(size_t)head] - most) : 0.0;
        for (const Expected& each : scores) total += std::exp(each.value - most);
        const int64_t kv_head = head / (of.num_heads / of.num_kv_heads);
        // Weights of the model's type are rounded where pairs are multiplied.
        const double relative = 2 * error + 1e-5 + (std::is_same_v<T, float> ? 0.0 : 0x1p-8);
        for (int64_t d = 0; d < of.head_dim; ++d) {
            double sum = 0.0, size = 0.0;
            for (int64_t token = first; token <= position; ++token) {
                const double weight = std::exp(scores[(size_t)(token - first)].value - most) / total;
                const double product = weight * cache.value_number(step.slot(request, token), kv_head, d);
                sum += product, size += std::fabs(product);
            }
            expected.push_back({sum, relative * size + kRounding<T> * std::fabs(sum)});
        }
    }

    std::vector<Expected> expected() const {
        std::vector<Expected> all;
        for (size_t r = 0; r < step.requests.size(); ++r)
            for (int64_t i = 0; i < step.requests[r].num_new; ++i)
                for (int64_t head = 0; head < of.num_heads; ++head) {
                    const T* row = &query[(size_t)((step.cu_seqlens_q[r] + i) * row_width() + head * of.head_dim)];
                    expect_row(row, r, head, step.requests[r].length - step.requests[r].num_new + i, all);
                }
        return all;
    }

    void check_all(const std::string& what) {
        const std::vector<T> all = run(step, 0, 1), again = run(step, 0, 2);
        check_near(what, all.data(), expected());
        check_same_bits(what + ", two threads", again.data(), all.data(), (int64_t)all.size());
        for (size_t r = 0; r < step.requests.size(); ++r)
            for (int num_threads : {1, 2}) {
                const std::vector<T> one = run(step.alone(r), step.cu_seqlens_q[r], num_threads);
                check_same_bits(what + ", request " + std::to_string(r) + " alone", one.data(),
                                &all[(size_t)(step.cu_seqlens_q[r] * row_width())], (int64_t)one.size());
            }
    }
};

const AttentionCase kCases[] = {{4, 2, 64, 16},
                                {2, 2, 40, 8, 0, 0.0f, false, true},
                                {3, 1, 80, 32, 50},
                                {6, 2, 128, 64, 0, 20.0f},
                                {8, 1, 16, 24, 17, 0.0f, true, false},
                                {2, 1, 24, 128, 0, 5.0f, true, true}};

// A value that is no number shows in the rows that see its token, and in no other.
template <class T, class E>
void test_value_that_is_no_number(int64_t window) {
    constexpr int64_t length = 45, spoilt = 21;
    Attention<T, E> attention({4, 2, 64, 16, window}, {{length, length}}, 99);
    const std::vector<T> before = attention.run(attention.step, 0, 1);
    const int64_t slot = attention.step.slot(0, spoilt);
    for (int64_t head = 0; head < 2; ++head)
        if constexpr (PagedCache<E>::kHasScales) {
            attention.cache.value_scales[attention.cache.scale_at(slot, head)] = NAN;
        } else {
            attention.cache.value[attention.cache.value_at(slot, head, 7)] = to_number<E>(NAN);
        }
    const std::vector<T> after = attention.run(attention.step, 0, 1);
    bool are_same = true, are_nan = true;
    for (int64_t token = 0; token < length; ++token) {
        const size_t at = (size_t)(token * attention.row_width());
        const bool sees = token >= spoilt && (window == 0 || token - spoilt < window);
        if (sees)
            are_nan &= std::isnan(to_float(after[at + 7]));
        else
            are_same &= std::memcmp(&before[at], &after[at], (size_t)attention.row_width() * sizeof(T)) == 0;
    }
    check(are_same && are_nan, std::string("a value that is no number, ") + type_name<T>);
}

template <class T, class E>
void test_type() {
    uint64_t seed = 0;
    for (const AttentionCase& each : kCases) {
        const std::string what =
            std::string("attention ") + type_name<T> + (PagedCache<E>::kHasScales ? " int8 " : " ");
        const std::vector<Request> requests = {{100, 33}, {1, 1}, {65, 1}, {17, 17}, {300, 2}, {64, 1}, {31, 5}};
        Attention<T, E>(each, requests, ++seed).check_all(what + each.name());
    }
    Attention<T, E>({4, 2, 32, 16}, {{700, 1}}, ++seed).check_all("attention to a long context");
    for (int64_t window : {0, 10}) test_value_that_is_no_number<T, E>(window);
}

// What is in the cache, of channels and slots that were written and of all others.
template <class T, class E>
void test_written(const CacheShape& shape) {
    Generator generator(3);
    PagedCache<E> cache(shape), once(shape);
    std::vector<int64_t> slots;
    for (int64_t slot = 0; slot < shape.num_blocks * shape.block_size; ++slot)
        if (slot % 3 == 1) slots.insert(slots.begin(), slot);
    const int64_t count = (int64_t)slots.size() * shape.num_kv_heads * shape.head_dim;
    const auto keys = generator.numbers<T>(count), values = generator.numbers<T>(count);
    auto expected = [&](const std::vector<T>& from, size_t token, int64_t head, int64_t d, float scale) -> E {
        const T x = from[((int64_t)token * shape.num_kv_heads + head) * shape.head_dim + d];
        if constexpr (PagedCache<E>::kHasScales)
            return (int8_t)std::nearbyint(to_float(x) / scale);
        else
            return (void)scale, x;
    };
    auto scale_of = [&](const std::vector<T>& from, size_t token, int64_t head) {
        float most = 0.0f;
        for (int64_t d = 0; d < shape.head_dim; ++d)
            most = std::max(
                most, std::fabs(to_float(from[((int64_t)token * shape.num_kv_heads + head) * shape.head_dim + d])));
        return most / 127.0f;
    };
    for (size_t token = 0; token < slots.size(); ++token)
        for (int64_t head = 0; head < shape.num_kv_heads; ++head) {
            const float key_scale = scale_of(keys, token, head), value_scale = scale_of(values, token, head);
            if (PagedCache<E>::kHasScales) {
                once.key_scales[once.scale_at(slots[token], head)] = key_scale;
                once.value_scales[once.scale_at(slots[token], head)] = value_scale;
            }
            for (int64_t d = 0; d < shape.head_dim; ++d) {
                once.key[once.key_at(slots[token], head, d)] = expected(keys, token, head, d, key_scale);
                once.value[once.value_at(slots[token], head, d)] = expected(values, token, head, d, value_scale);
            }
        }
    cache.write(keys.data(), values.data(), slots, 2);
    auto are_same = [](const auto& a, const auto& b) {
        return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    const std::string what = std::string("cache ") + type_name<T> + ", heads of " + std::to_string(shape.head_dim);
    check(are_same(cache.key, once.key) && are_same(cache.value, once.value), what);
    check(are_same(cache.key_scales, once.key_scales) && are_same(cache.value_scales, once.value_scales),
          what + ", scales");
}

}  // namespace

void test_cache() {
    for (const CacheShape& shape : {CacheShape{3, 2, 16, 64}, {2, 3, 8, 40}, {2, 1, 32, 80}, {3, 2, 8, 17}}) {
        test_written<float, float>(shape);
        test_written<bfloat16, bfloat16>(shape);
        test_written<float, int8_t>(shape);
        test_written<bfloat16, int8_t>(shape);
    }
}

void test_attention() {
    test_type<float, float>();
    test_type<bfloat16, bfloat16>();
    test_type<float, int8_t>();
    test_type<bfloat16, int8_t>();
}
