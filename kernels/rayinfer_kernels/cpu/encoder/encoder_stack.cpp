// All layers of an encoder as one operation.
//
// Threads take groups of whole texts from one queue, each running all layers of its group without waiting for another.
// Where that would leave threads without work, as with a single text, all of them share the stages of one group.

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <vector>

#include "encoder/text_group.h"
#include "gemm/model_rows.h"

namespace rayinfer {
namespace {

// Tokens of a group: fewer would read the weights too often, and more leave the second level cache.
constexpr int64_t kFewestTokens = 32;
constexpr int64_t kMostTokens = 96;
constexpr int64_t kGroupsPerThread = 2;  // of what is left: the last groups are small, so that threads end together
constexpr double kWorstBalance = 1.3;  // of the longest group's time over an equal share, for groups of their own

struct ThreadMemory {
    GroupRows rows;
    TextAttention attention;
};

// What is kept from step to step.
struct EncoderMemory {
    std::vector<std::unique_ptr<ThreadMemory>> threads;
    std::vector<Range> groups;  // of texts
    StageMemory stages;

    void prepare(int num_threads) {
        while ((int)threads.size() < num_threads) threads.push_back(std::make_unique<ThreadMemory>());
    }
};

// Cuts neighbors into groups of similar sizes, the largest first.
void cut_groups(Texts texts, int num_threads, std::vector<Range>& groups) {
    auto tokens_of = [&](Range group) { return texts.starts[group.end] - texts.starts[group.begin]; };
    int64_t enough = 0;
    groups.clear();
    for (int64_t text = 0; text < texts.count; ++text) {
        if (groups.empty() || tokens_of(groups.back()) >= enough) {
            const int64_t left = texts.starts[texts.count] - texts.starts[text];
            enough = std::clamp(left / (num_threads * kGroupsPerThread), kFewestTokens, kMostTokens);
            groups.push_back({text, text});
        }
        groups.back().end = text + 1;
    }
    std::stable_sort(groups.begin(), groups.end(), [&](Range a, Range b) { return tokens_of(a) > tokens_of(b); });
}

bool are_balanced(Texts texts, int num_threads, const std::vector<Range>& groups) {
    if (groups.empty() || num_threads == 1) return true;
    const int64_t longest = texts.starts[groups[0].end] - texts.starts[groups[0].begin];
    const double per_thread = (double)texts.num_tokens() / num_threads;
    return (int64_t)groups.size() >= num_threads && (double)longest <= kWorstBalance * per_thread;
}

template <class T>
void run_encoder(const EncoderArgument& encoder, const TextsArgument& texts, int num_threads) {
    thread_local EncoderMemory kept;
    EncoderMemory& memory = kept;  // the calling thread's, for all threads of the team
    memory.prepare(num_threads);
    const Texts all = {texts.starts, texts.num_texts};
    cut_groups(all, num_threads, memory.groups);
    if (all.num_tokens() == 0 && texts.pooling == Pooling::none) return;
    if (!are_balanced(all, num_threads, memory.groups)) {
        TextGroup<T> group(encoder, texts, all, memory.threads[0]->rows);
        memory.stages.begin(num_threads);
#pragma omp parallel num_threads(num_threads)
        {
            const ThreadRange thread = this_thread();
            group.run(StageTeam(memory.stages, thread), memory.threads[thread.index]->attention);
        }
        return;
    }
    std::atomic<size_t> next{0};
#pragma omp parallel num_threads(num_threads)
    {
        ThreadMemory& own = *memory.threads[this_thread().index];
        for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < memory.groups.size();) {
            const Range group = memory.groups[i];
            TextGroup<T>(encoder, texts, {all.starts + group.begin, group.size()}, own.rows).run(StageTeam(), own.attention);
        }
    }
}

}  // namespace
}  // namespace rayinfer

#define RAYINFER_RUN_ENCODER(name, T)                                                                              \
    extern "C" __attribute__((visibility("default"))) void name(                                                   \
        const rayinfer::EncoderArgument* encoder, const rayinfer::TextsArgument* texts, int num_threads) {         \
        rayinfer::run_encoder<T>(*encoder, *texts, num_threads);                                                   \
    }

RAYINFER_RUN_ENCODER(rayinfer_run_encoder_float32, float)
RAYINFER_RUN_ENCODER(rayinfer_run_encoder_bfloat16, rayinfer::bfloat16)
