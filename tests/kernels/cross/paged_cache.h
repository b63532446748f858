// A paged cache in the layout of vnni_cache.py, and a step's requests that read it.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "entry_points.h"

struct CacheShape {
    int64_t num_blocks, num_kv_heads, block_size, head_dim;
    int64_t padded_dim() const { return rounded_up(head_dim, 16); }
};

// E is float, bfloat16 or int8_t. Unused slots hold NaN or, of eight bits, numbers whose scales are NaN.
template <class E>
struct PagedCache {
    static constexpr int64_t kNeighbors = std::is_same_v<E, bfloat16> ? 2 : 1;
    static constexpr bool kHasScales = std::is_same_v<E, int8_t>;

    CacheShape shape;
    std::vector<E> key, value;
    std::vector<float> key_scales, value_scales;

    explicit PagedCache(const CacheShape& of) : shape(of) {
        const int64_t slots = shape.num_blocks * shape.num_kv_heads * shape.block_size;
        key.resize((size_t)(slots * shape.padded_dim()));
        value.resize(key.size());
        if (kHasScales) key_scales.assign((size_t)slots, NAN), value_scales.assign((size_t)slots, NAN);
        for (int64_t slot = 0; slot < shape.num_blocks * shape.block_size; ++slot)
            for (int64_t head = 0; head < shape.num_kv_heads; ++head)
                for (int64_t d = 0; d < shape.padded_dim(); ++d)
                    key[key_at(slot, head, d)] = value[value_at(slot, head, d)] = unused(d);
    }

    E unused(int64_t channel) const {
        if (channel >= shape.head_dim) return {};
        if constexpr (kHasScales)
            return 77;
        else
            return to_number<E>(std::numeric_limits<float>::quiet_NaN());
    }
    int64_t first_slot(int64_t slot, int64_t head) const {
        return (slot / shape.block_size * shape.num_kv_heads + head) * shape.block_size;
    }
    size_t key_at(int64_t slot, int64_t head, int64_t d) const {
        const int64_t n = kNeighbors, word = d / n * shape.block_size + slot % shape.block_size;
        return (size_t)(first_slot(slot, head) * shape.padded_dim() + word * n + d % n);
    }
    size_t value_at(int64_t slot, int64_t head, int64_t d) const {
        const int64_t n = kNeighbors, token = slot % shape.block_size;
        return (size_t)(first_slot(slot, head) * shape.padded_dim() + (token / n * shape.padded_dim() + d) * n +
                        token % n);
    }
    size_t scale_at(int64_t slot, int64_t head) const {
        return (size_t)(first_slot(slot, head) + slot % shape.block_size);
    }

    static double number(E x) {
        if constexpr (kHasScales)
            return x;
        else
            return to_float(x);
    }
    double key_number(int64_t slot, int64_t head, int64_t d) const {
        return number(key[key_at(slot, head, d)]) * (kHasScales ? key_scales[scale_at(slot, head)] : 1.0f);
    }
    double value_number(int64_t slot, int64_t head, int64_t d) const {
        return number(value[value_at(slot, head, d)]) * (kHasScales ? value_scales[scale_at(slot, head)] : 1.0f);
    }
    float* key_scale_data() { return kHasScales ? key_scales.data() : nullptr; }
    float* value_scale_data() { return kHasScales ? value_scales.data() : nullptr; }

    // Stores [num_tokens, num_kv_heads, head_dim] of T.
    template <class T>
    void write(const T* keys, const T* values, const std::vector<int64_t>& slots, int num_threads = 1) {
        const int64_t stride = shape.num_kv_heads * shape.head_dim;
        kernel::write_kv<T>(keys, stride, shape.head_dim, values, stride, shape.head_dim, key.data(), value.data(),
                            key_scale_data(), value_scale_data(), shape.num_kv_heads, shape.block_size,
                            shape.padded_dim(), slots.data(), (int64_t)slots.size(), shape.head_dim, num_threads);
    }
};

// How many tokens a request has in all, and how many of them are the step's.
struct Request {
    int64_t length, num_new;
};

// A step's requests with blocks in a mixed order.
struct Step {
    std::vector<Request> requests;
    int64_t block_size, num_blocks, num_columns = 0;
    std::vector<int32_t> block_tables, cu_seqlens_q = {0}, seq_lens;

    Step(std::vector<Request> of, int64_t size) : requests(std::move(of)), block_size(size), num_blocks(1) {
        for (const Request& each : requests) num_columns = std::max(num_columns, blocks_of(each));
        for (const Request& each : requests) {
            cu_seqlens_q.push_back(cu_seqlens_q.back() + (int32_t)each.num_new);
            seq_lens.push_back((int32_t)each.length);
            for (int64_t i = 0; i < num_columns; ++i) block_tables.push_back(-1);
        }
        // Round by round one block for each request, from the last request on: block 0 stays unused.
        for (int64_t i = 0; i < num_columns; ++i)
            for (int64_t r = (int64_t)requests.size() - 1; r >= 0; --r)
                if (i < blocks_of(requests[(size_t)r]))
                    block_tables[(size_t)(r * num_columns + i)] = (int32_t)num_blocks++;
    }

    int64_t blocks_of(const Request& request) const { return rounded_up(request.length, block_size) / block_size; }
    int64_t num_tokens() const { return cu_seqlens_q.back(); }
    int64_t slot(size_t request, int64_t position) const {
        const int64_t block = block_tables[request * (size_t)num_columns + (size_t)(position / block_size)];
        return block * block_size + position % block_size;
    }
    // Of all tokens of all requests, or of the step's.
    std::vector<int64_t> slots(bool of_all) const {
        std::vector<int64_t> all;
        for (size_t r = 0; r < requests.size(); ++r)
            for (int64_t i = of_all ? 0 : requests[r].length - requests[r].num_new; i < requests[r].length; ++i)
                all.push_back(slot(r, i));
        return all;
    }
    // The step of one of its requests, over the same blocks.
    Step alone(size_t request) const {
        Step one = *this;
        const auto row = block_tables.begin() + (int64_t)request * num_columns;
        one.requests = {requests[request]};
        one.block_tables.assign(row, row + num_columns);
        one.cu_seqlens_q = {0, (int32_t)requests[request].num_new};
        one.seq_lens = {(int32_t)requests[request].length};
        return one;
    }
};
