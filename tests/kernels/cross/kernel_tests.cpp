// Tests of the kernels without Python: entry points are called with pseudo-random inputs, and results are compared with
// plain references in double, and with themselves for other batches and numbers of threads.
//
// Usage: kernel_tests [GROUP...]; by default all groups.

#include <algorithm>
#include <cstdlib>

#include "checks.h"
#include "entry_points.h"

Counts& counts() {
    static Counts all;
    return all;
}

void report_failure(const std::string& what, const std::string& how) {
    constexpr int64_t most = 40;
    if (++counts().failures <= most) std::printf("FAILED %s: %s\n", what.c_str(), how.c_str());
}

void test_peak_rate() {
    for (int32_t kind : {0, 1, 2})
        for (int num_threads : {1, 2}) {
            const double once = rayinfer_multiply_in_registers(kind, 10, num_threads);
            const double twice = rayinfer_multiply_in_registers(kind, 20, num_threads);
            check(once > 0 && twice == 2 * once, "peak rate of kind " + std::to_string(kind));
        }
}

int main(int num_arguments, char** arguments) {
    const struct {
        const char* name;
        void (*run)();
    } groups[] = {{"linear", test_linear},           {"quantized", test_quantized}, {"groups", test_groups},
                  {"low-rank", test_low_rank},       {"cache", test_cache},         {"attention", test_attention},
                  {"elementwise", test_elementwise}, {"sampling", test_sampling},   {"experts", test_experts},
                  {"layer-stack", test_layer_stack}, {"encoder", test_encoder},     {"peak-rate", test_peak_rate}};
    const std::vector<std::string> chosen(arguments + 1, arguments + num_arguments);
    int64_t num_run = 0;
    for (const auto& group : groups) {
        if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), group.name) == chosen.end()) continue;
        ++num_run;
        const Counts before = counts();
        group.run();
        std::printf("%s: %lld checks, %lld failed\n", group.name, (long long)(counts().checks - before.checks),
                    (long long)(counts().failures - before.failures));
        std::fflush(stdout);
    }
    const bool all_known = num_run == (int64_t)(chosen.empty() ? std::size(groups) : chosen.size());
    if (!all_known) std::printf("there is no such group\n");
    return counts().failures == 0 && counts().checks > 0 && all_known ? EXIT_SUCCESS : EXIT_FAILURE;
}
