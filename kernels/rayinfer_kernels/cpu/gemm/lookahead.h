// Panels that tiles share are read from memory while others are multiplied: what comes next is prefetched meanwhile.
#pragma once

#include <algorithm>

#include "core/fetch_ahead.h"
#include "gemm/panel_products.h"

namespace rayinfer {

// Lines to fetch in each round of a loop: with few tiles and wide vectors more than one, or not all that comes next would be
// there in time.
constexpr int64_t kMostLinesAhead = kSimd == 16 ? 2 : 1;

struct Ahead {
    const char* at;
    int64_t step;  // bytes for each round

    void fetch_round() {
        fetch<kLine>(at);
        if (kMostLinesAhead > 1 && step > kLine) fetch<kLine>(at + kLine);
        at += step;
    }
};

// Bytes of neighboring panels, as many of each.
struct PanelBytes {
    const void* data;
    int64_t stride, size, count;
};

// Walks through what will be read next as evenly as the rounds of the loops allow.
class Lookahead {
  public:
    Lookahead(PanelBytes next, int64_t num_rounds)
        : next_(next), total_(next.size * next.count),
          step_(std::min(kMostLinesAhead * kLine, total_ / std::max<int64_t>(1, num_rounds) + 1)) {}

    Ahead next(int64_t num_rounds) {
        const char* data = (const char*)next_.data;
        if (done_ >= total_) return {data, 0};
        const Ahead ahead = {data + done_ / next_.size * next_.stride + done_ % next_.size, step_};
        done_ += num_rounds * step_;
        return ahead;
    }

  private:
    PanelBytes next_;
    int64_t total_, step_, done_ = 0;
};

}  // namespace rayinfer
