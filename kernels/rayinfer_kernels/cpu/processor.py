"""Kernel paths that this processor runs, read from the kernel's list of its features: no compiler is asked."""

import platform
from collections.abc import Collection
from pathlib import Path

_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

# Linux's names of the features that each path uses, the best path first.
NEEDED_FLAGS: dict[str, frozenset[str]] = {
    "avx512-bf16": _AVX512 | {"avx512_vnni", "avx512_bf16"},
    "avx512-vnni": _AVX512 | {"avx512_vnni"},
    "avx512": _AVX512,
    "avx2-vnni": _AVX2 | {"avx_vnni"},
    "avx2": _AVX2,
    "portable": frozenset(),
}


def runnable_paths(flags: Collection[str]) -> list[str]:
    """Return the kernel paths that an x86-64 processor with these features runs, the best first."""
    return [path for path, needed in NEEDED_FLAGS.items() if needed <= set(flags)]


def processor_flags() -> frozenset[str] | None:
    """Return this processor's features in Linux's words; None on other systems and processors than x86-64 ones."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return None
    return frozenset(cpu_features().partition(":")[2].split())


def cpu_features() -> str:
    """Return the line of /proc/cpuinfo that has the features of the first processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
