// Pins each thread of the caller's team to a core of its own.

#include <omp.h>

#include <cstdint>

#if defined(__linux__)
#include <sched.h>
#endif

// The caller itself stays where it is. Without cores (null) the others may run where the caller may.
extern "C" __attribute__((visibility("default"))) void rayinfer_pin_threads(const int32_t* cores, int num_threads) {
#if defined(__linux__)
    cpu_set_t callers;
    if (sched_getaffinity(0, sizeof(callers), &callers) != 0) return;
#pragma omp parallel num_threads(num_threads)
    {
        const int thread = omp_get_thread_num();
        cpu_set_t allowed = callers;
        if (cores != nullptr) {
            CPU_ZERO(&allowed);
            CPU_SET(cores[thread], &allowed);
        }
        if (thread > 0) sched_setaffinity(0, sizeof(allowed), &allowed);
    }
#else
    (void)cores, (void)num_threads;
#endif
}
