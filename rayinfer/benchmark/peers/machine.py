"""Present capacity of the machine: usable cores, instruction sets, and memory read bandwidth."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

BUFFER_BYTES = 512 * 2**20  # far more than any cache holds
PASSES = 3
# The flags that decide which kernels a program can run.
KERNEL_FLAGS = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16")


def usable_cpus() -> tuple[int, ...]:
    """Return the processors that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def cpu_flags() -> frozenset[str]:
    """Return the processor's instruction sets, as Linux names them; empty where they are not listed."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


def memory_read_gb_s(num_threads: int, num_bytes: int = BUFFER_BYTES) -> float:
    """Read a buffer with all cores at once; returns GB a second, in the best of a few passes."""
    parts = np.array_split(np.ones(num_bytes // 4, dtype=np.int32), num_threads)
    with ThreadPoolExecutor(num_threads) as pool:
        seconds = []
        for _ in range(PASSES):
            started = time.perf_counter()
            list(pool.map(np.max, parts))  # one vector instruction per load, without Python's lock
            seconds.append(time.perf_counter() - started)
    return num_bytes / min(seconds) / 1e9
