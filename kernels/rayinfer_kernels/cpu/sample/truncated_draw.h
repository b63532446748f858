// A token drawn among those that top-k and top-p keep, by the rules of transformers' TopKLogitsWarper and
// TopPLogitsWarper. Nothing is sorted: a cut that surely keeps enough leaves few candidates, and partitions of these
// find the border.
#pragma once

#include <functional>
#include <vector>

#include "sample/full_draw.h"

namespace rayinfer {

constexpr double kRounding = 0x1p-24;       // a mass this close to top_p has reached it, as it has in float32
constexpr double kBelowOne = 1.0 - 0x1p-40;  // keeps the best token however small top_p is
constexpr int64_t kGroup = 64;              // columns whose greatest score helps to find a cut for top-k
constexpr int64_t kFew = 16;                // so many candidates are sorted

struct Candidate {
    float score, weight;  // over the temperature; e^(score - the best score)
    int32_t column;
};

// What is kept: scores above the threshold, and of those that equal it all but the first `num_banned`.
struct Border {
    float threshold;
    int64_t num_banned;
};

struct Truncation {
    int64_t top_k;
    double top_p;
};

// A score that at least top_k scores reach: the k-th best of groups' greatest; -inf if there are too few groups.
template <class T>
float cut_for_top_k(const Row<T>& row, const Weights& weights, int64_t top_k) {
    thread_local std::vector<float> greatest;
    greatest.clear();
    for (int64_t begin = 0; begin < row.width; begin += kGroup) {
        Float most = splat(-kInfinity);
        row.visit(begin, std::min(begin + kGroup, row.width), [&](int64_t, Float x) { most = larger(x, most); });
        float group = -kInfinity;
        for (int64_t lane = 0; lane < kWidth; ++lane) group = std::max(group, most[lane]);
        greatest.push_back(group);
    }
    if (top_k > (int64_t)greatest.size()) return -kInfinity;
    std::nth_element(greatest.begin(), greatest.begin() + (top_k - 1), greatest.end(), std::greater<float>());
    return weights.scaled(splat(greatest[top_k - 1]))[0];
}

// All tokens, in the order of the vocabulary, whose score and weight reach the given ones and whose weight is not 0.
template <class T>
void collect(const Row<T>& row, const Weights& weights, float least_score, float least_weight,
             std::vector<Candidate>& found) {
    found.clear();
    row.visit(0, row.width, [&](int64_t i, Float x) {
        const Float scores = weights.scaled(x), values = weights.of_scaled(scores);
        const Int are_kept = (scores >= least_score) & (values >= least_weight) & (values > 0.0f);
        if (!any_lane(are_kept)) return;
        for (int64_t lane = 0; lane < kWidth; ++lane) {
            if (are_kept[lane]) found.push_back({scores[lane], values[lane], (int32_t)(i + lane)});
        }
    });
}

inline double mass_of(const Candidate* begin, const Candidate* end) {
    double mass = 0.0;
    for (const Candidate* each = begin; each < end; ++each) mass += each->weight;
    return mass;
}

// The lowest scores whose mass together with `below` is at most `target` are banned; of equal scores the lower columns.
inline Border border_of(Candidate* begin, Candidate* end, double below, double target) {
    uint64_t state = 0;
    while (end - begin > kFew) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const float pivot = begin[(state >> 33) % (uint64_t)(end - begin)].score;
        Candidate* equal = std::partition(begin, end, [=](const Candidate& each) { return each.score < pivot; });
        Candidate* above = std::partition(equal, end, [=](const Candidate& each) { return each.score == pivot; });
        const double mass = mass_of(begin, equal), mass_of_equal = mass_of(equal, above);
        if (below + mass > target) {
            end = equal;
        } else if (below + mass + mass_of_equal > target || above == end) {
            below += mass;
            begin = equal, end = above;
            break;
        } else {
            below += mass + mass_of_equal;
            begin = above;
        }
    }
    std::sort(begin, end, [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
    Border border = {begin->score, 0};
    for (Candidate* each = begin;; ++each) {
        if (each->score != border.threshold) border = {each->score, 0};
        below += each->weight;
        if (below > target || each + 1 == end) return border;
        ++border.num_banned;
    }
}

// The first candidate that the border and min-p leave whose cumulated weight exceeds `uniform` of their sum.
inline int64_t drawn_candidate(const std::vector<Candidate>& candidates, const Border& border, float min_p,
                               double uniform) {
    const auto visit_kept = [&](auto visit) {
        int64_t num_tied = 0;
        for (const Candidate& each : candidates) {
            if (each.score < border.threshold || each.weight < min_p) continue;
            if (each.score == border.threshold && num_tied++ < border.num_banned) continue;
            if (visit(each)) return;
        }
    };
    double total = 0.0, sum = 0.0;
    int64_t column = 0;
    visit_kept([&](const Candidate& each) { return total += each.weight, false; });
    visit_kept([&](const Candidate& each) { return column = each.column, (sum += each.weight) > uniform * total; });
    return column;
}

// The row's best is finite; `min_p` is left out of `weights`, for it counts last.
template <class T>
int64_t drawn_from_likeliest(const Row<T>& row, const Weights& weights, const Truncation& truncation, float min_p,
                             double uniform) {
    thread_local std::vector<Candidate> candidates, parted;
    const bool has_top_k = truncation.top_k < row.width, has_top_p = truncation.top_p < 1.0;
    const double share = has_top_p ? std::min(1.0 - truncation.top_p + kRounding, kBelowOne) : 0.0;
    Border border = {-kInfinity, 0};
    double total = 0.0;
    if (has_top_k) {
        collect(row, weights, cut_for_top_k(row, weights, truncation.top_k), 0.0f, candidates);
        if (truncation.top_k < (int64_t)candidates.size()) {
            parted = candidates;
            const auto kth = parted.begin() + (truncation.top_k - 1);
            std::nth_element(parted.begin(), kth, parted.end(),
                             [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
            border.threshold = kth->score;
            const auto is_below = [&](const Candidate& each) { return each.score < border.threshold; };
            candidates.erase(std::remove_if(candidates.begin(), candidates.end(), is_below), candidates.end());
        }
        total = mass_of(candidates.data(), candidates.data() + candidates.size());
    } else {
        for (int64_t begin = 0; begin < row.width; begin += kBlock) total += block_sum(row, weights, begin);
        // All that is lighter than this has a mass below the share of the total that is banned.
        const double least_weight = 0.5 * share * total / (double)row.width;
        collect(row, weights, -kInfinity, (float)std::min(least_weight, 1.0), candidates);
    }
    if (has_top_p) {
        parted = candidates;
        const double collected = mass_of(parted.data(), parted.data() + parted.size());
        border = border_of(parted.data(), parted.data() + parted.size(), total - collected, share * total);
    }
    return drawn_candidate(candidates, border, min_p, uniform);
}

}  // namespace rayinfer
