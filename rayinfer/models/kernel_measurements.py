"""Measurements of the CPU kernels on this machine, kept in a file for later processes."""

import contextlib
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import xxhash

import rayinfer_kernels
from rayinfer.startup_steps import startup_step

VERSION = 3
LARGEST = 1e9  # beyond it nothing is measured


class KernelMeasurements:
    """Measured numbers by name, of this processor, these kernels, this process's threads and numbers of one type."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        machine = f"{_processor()};{torch.__version__};{rayinfer_kernels.cpu_kernels_status().detail};{VERSION}"
        self._file = folder / f"{xxhash.xxh3_64_hexdigest(machine.encode())}.json"
        self._prefix = f"{str(dtype).removeprefix('torch.')} {torch.get_num_threads()} threads"
        self._numbers = self._read()
        self._is_changed = False

    def find(self, name: str, measure: Callable[[], float]) -> float:
        """Return what an earlier process has measured, or `measure` now."""
        key = f"{self._prefix} {name}"
        if key not in self._numbers:
            with startup_step("timing kernels"):
                self._numbers[key] = round(measure(), 3)
            self._is_changed = True
        return self._numbers[key]

    def save(self) -> None:
        """Write what was measured; a folder that cannot be written is measured for again."""
        if not self._is_changed:
            return
        unfinished = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(self._read() | self._numbers, indent=1), encoding="utf-8")
            unfinished.replace(self._file)
        except OSError:
            pass
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def _read(self) -> dict[str, float]:
        try:
            numbers: Any = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(numbers, dict):
            return {}
        return {
            name: float(number)
            for name, number in numbers.items()
            if isinstance(number, int | float) and abs(number) < LARGEST
        }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
