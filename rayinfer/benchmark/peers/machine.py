"""Machine of a comparison: kind of processor, usable cores, instruction sets, and memory read bandwidth."""

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

BUFFER_BYTES = 512 * 2**20  # far more than any cache holds
PASSES = 3
# The flags that decide which kernels a program can run.
KERNEL_FLAGS = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16")

PROC_CPUINFO = Path("/proc/cpuinfo")
# By vendor, family and model of CPUID, up to the last model: the kind of processor.
PROCESSOR_KINDS: tuple[tuple[str, int, range, str], ...] = (
    ("AuthenticAMD", 23, range(0x00, 0x30), "zen1"),
    ("AuthenticAMD", 23, range(0x30, 0x100), "zen2"),
    ("AuthenticAMD", 25, range(0x00, 0x10), "zen3"),
    ("AuthenticAMD", 25, range(0x10, 0x20), "zen4"),
    ("AuthenticAMD", 25, range(0x20, 0x60), "zen3"),
    ("AuthenticAMD", 25, range(0x60, 0x100), "zen4"),
    ("AuthenticAMD", 26, range(0x00, 0x100), "zen5"),
    ("GenuineIntel", 6, range(63, 64), "haswell"),
    ("GenuineIntel", 6, range(79, 80), "broadwell"),
    ("GenuineIntel", 6, range(85, 86), "skylake-server"),  # Cascade Lake and Cooper Lake, too
    ("GenuineIntel", 6, range(106, 109), "icelake-server"),
    ("GenuineIntel", 6, range(143, 144), "sapphire-rapids"),
    ("GenuineIntel", 6, range(207, 208), "emerald-rapids"),
    ("GenuineIntel", 6, range(173, 175), "granite-rapids"),
)


def processor_kind(cpuinfo: Path = PROC_CPUINFO) -> str:
    """Return the kind of processor, for names of files: its generation where known, else its numbers."""
    try:
        lines = cpuinfo.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return platform.machine()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if not {"vendor_id", "cpu family", "model"} <= fields.keys():
        return platform.machine()
    vendor, family, model = fields["vendor_id"], int(fields["cpu family"]), int(fields["model"])
    for known_vendor, known_family, models, kind in PROCESSOR_KINDS:
        if (vendor, family) == (known_vendor, known_family) and model in models:
            return kind
    return f"{vendor.lower()}-{family}-{model}"


def usable_cpus() -> tuple[int, ...]:
    """Return the processors that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def cpu_flags() -> frozenset[str]:
    """Return the processor's instruction sets, as Linux names them; empty where they are not listed."""
    try:
        lines = PROC_CPUINFO.read_text().splitlines()
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
