"""Kernel paths that this processor runs, read from the kernel's list of its features: no compiler is asked."""

import platform
from collections.abc import Collection
from pathlib import Path

_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_ARMV8_2 = frozenset({"asimd", "atomics", "crc32", "asimdrdm"})

# Linux's names of the features that each path uses, the best path of a machine first.
NEEDED_FLAGS: dict[str, frozenset[str]] = {
    "avx512-bf16": _AVX512 | {"avx512_vnni", "avx512_bf16"},
    "avx512-vnni": _AVX512 | {"avx512_vnni"},
    "avx512": _AVX512,
    "avx2-vnni": _AVX2 | {"avx_vnni"},
    "avx2": _AVX2,
    "neon-bf16": _ARMV8_2 | {"asimddp", "bf16"},
    "neon-dotprod": _ARMV8_2 | {"asimddp"},
    "portable": frozenset(),
}

# Kernel paths by machine, in Python's words, in the same order; `portable` is what all processors of a machine run.
MACHINE_PATHS: dict[str, tuple[str, ...]] = {
    "x86_64": tuple(path for path in NEEDED_FLAGS if not path.startswith("neon")),
    "aarch64": tuple(path for path in NEEDED_FLAGS if not path.startswith("avx")),
}


def runnable_paths(flags: Collection[str]) -> list[str]:
    """Return the kernel paths that a processor with these features runs, the best first."""
    return [path for path, needed in NEEDED_FLAGS.items() if needed <= set(flags)]


def processor_flags() -> frozenset[str] | None:
    """Return this processor's features in Linux's words; None on other systems and machines than MACHINE_PATHS has."""
    if platform.system() != "Linux" or platform.machine() not in MACHINE_PATHS:
        return None
    return frozenset(cpu_features().partition(":")[2].split())


def cpu_features() -> str:
    """Return the line of /proc/cpuinfo that has the features of the first processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
