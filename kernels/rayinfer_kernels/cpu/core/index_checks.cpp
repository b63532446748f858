// Whether indices stay within what they point into: asked before a kernel follows them.

#include <algorithm>
#include <cstdint>

// Every one of `numbers` is in [0, limit).
extern "C" __attribute__((visibility("default"))) int32_t rayinfer_are_within(const int64_t* numbers, int64_t count,
                                                                              int64_t limit) {
    bool are_within = true;
    for (int64_t i = 0; i < count; ++i) are_within &= (uint64_t)numbers[i] < (uint64_t)limit;
    return are_within;
}

// Groups follow one another from row 0 to the last.
extern "C" __attribute__((visibility("default"))) int32_t rayinfer_starts_cover(const int32_t* starts, int64_t num_groups,
                                                                                int64_t num_rows) {
    return starts[0] == 0 && starts[num_groups] == num_rows && std::is_sorted(starts, starts + num_groups + 1);
}

// The first request whose new tokens are not among the step's, or whose context has a block that is not in the pool;
// -1: there is none. Blocks that end before what `window` lets its tokens see are not looked at; 0: no window.
extern "C" __attribute__((visibility("default"))) int64_t rayinfer_first_misfit(
    const int32_t* block_tables, int64_t num_columns, const int32_t* cu_seqlens_q, const int32_t* seq_lens,
    int64_t num_requests, int64_t num_tokens, int64_t block_size, int64_t num_blocks, int64_t window) {
    for (int64_t request = 0; request < num_requests; ++request) {
        const int64_t begin = cu_seqlens_q[request], end = cu_seqlens_q[request + 1], length = seq_lens[request];
        if (begin < 0 || end < begin || end > num_tokens || length < end - begin) return request;
        if (end == begin) continue;
        const int64_t first = window ? std::max<int64_t>(0, length - (end - begin) + 1 - window) / block_size : 0;
        const int64_t count = (length + block_size - 1) / block_size;
        if (count > num_columns) return request;
        const int32_t* table = block_tables + request * num_columns;
        for (int64_t i = first; i < count; ++i)
            if (table[i] < 0 || table[i] >= num_blocks) return request;
    }
    return -1;
}
