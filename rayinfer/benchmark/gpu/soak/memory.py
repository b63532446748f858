"""Memory that a process holds, on the GPU and on the host."""

import gc
from dataclasses import dataclass
from pathlib import Path

import torch

from rayinfer.engine.loop.engine import Engine
from rayinfer.protocols import Sleep, Wake

ALLOCATED_SLACK_BYTES = 16 << 20  # workspaces that libraries take when they need them first
DEVICE_SLACK_BYTES = 128 << 20  # the allocator takes memory in pieces of a few MiB, and other processes come and go
HOST_SLACK_BYTES = 1 << 30
WORKSPACE_BYTES = 160 << 20  # what cuBLAS keeps, allocated by torch, when an engine is gone


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryReading:
    """Memory in use while there is nothing to do."""

    elapsed_s: float
    allocated_bytes: int  # by torch's tensors, on the device
    device_used_bytes: int  # by all processes on the device
    host_resident_bytes: int

    def leaks_against(self, before: "MemoryReading") -> list[str]:
        """List memory that has grown beyond the allowance for libraries."""
        limits = {
            "allocated_bytes": ALLOCATED_SLACK_BYTES,
            "device_used_bytes": DEVICE_SLACK_BYTES,
            "host_resident_bytes": HOST_SLACK_BYTES,
        }
        growths = {name: getattr(self, name) - getattr(before, name) for name in limits}
        return [
            f"{name} grew by {growth >> 20} MiB, from {getattr(before, name) >> 20} MiB"
            for name, growth in growths.items()
            if growth > limits[name]
        ]


def settle(engine: Engine) -> None:
    """Bring an idle engine into the state in which it wakes up: cached prefixes and old graphs are gone."""
    engine.control(Sleep(1))
    engine.control(Wake())


def read_memory(elapsed_s: float) -> MemoryReading:
    """Collect garbage and read."""
    gc.collect()
    allocated = device_used = 0
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        allocated = torch.cuda.memory_allocated()
        free, total = torch.cuda.mem_get_info()
        device_used = total - free
    return MemoryReading(
        elapsed_s=round(elapsed_s, 1),
        allocated_bytes=allocated,
        device_used_bytes=device_used,
        host_resident_bytes=_resident_bytes(),
    )


def _resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0
