"""Limits of the devices that engines run on: measured ones, and those of data sheets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

import rayinfer_kernels
from rayinfer.benchmark.peers.machine import memory_read_gb_s
from rayinfer.config import cache_folder
from rayinfer.errors import ConfigError
from rayinfer.kv_cache.host_memory import available_host_bytes

GB = 10**9
USABLE = 0.975 * 2**30  # of a GB as cards are sold: the driver keeps some
CPU = "cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """One engine's devices: sums where it has several."""

    name: str
    memory_bytes: float
    read_bytes_per_s: float
    operations_per_s: float  # of bfloat16 products: multiplications and additions
    eight_bit_operations_per_s: float
    basis: str  # the origin of the rates
    is_cpu: bool = False
    num_devices: int = 1

    def times(self, num_devices: int) -> "Hardware":
        """Return the limits of several of these devices."""
        if num_devices == 1:
            return self
        return replace(
            self,
            memory_bytes=self.memory_bytes * num_devices,
            read_bytes_per_s=self.read_bytes_per_s * num_devices,
            operations_per_s=self.operations_per_s * num_devices,
            eight_bit_operations_per_s=self.eight_bit_operations_per_s * num_devices,
            basis=f"{num_devices} times: {self.basis}; communication between them is not counted",
            num_devices=num_devices,
        )


# Of an H100 SXM, measured: kernels/benchmarks/results/gpu-h100.json. Its data sheet has 3.35 TB/s and 989 TFLOP/s.
MEASURED_READ, MEASURED_OPERATIONS = 3015.146282489555 * GB, 782040.671330185 * GB
READ_SHARE = MEASURED_READ / (3350 * GB)
OPERATIONS_SHARE = MEASURED_OPERATIONS / (989_000 * GB)


def _from_data_sheet(name: str, memory_gb: float, read_gb_s: float, tflops: float, *, has_fp8: bool) -> Hardware:
    operations = tflops * 1000 * GB * OPERATIONS_SHARE
    return Hardware(
        name=name,
        memory_bytes=memory_gb * USABLE,
        read_bytes_per_s=read_gb_s * GB * READ_SHARE,
        operations_per_s=operations,
        eight_bit_operations_per_s=operations * (2 if has_fp8 else 1),
        basis=f"data sheet, times an H100's share of its own ({READ_SHARE:.0%}, products {OPERATIONS_SHARE:.0%})",
    )


CARDS: Mapping[str, Hardware] = MappingProxyType(
    {
        "H100": Hardware(
            name="H100",
            memory_bytes=80 * USABLE,
            read_bytes_per_s=MEASURED_READ,
            operations_per_s=MEASURED_OPERATIONS,
            eight_bit_operations_per_s=2 * MEASURED_OPERATIONS,
            basis="measured on an H100 80GB HBM3",
        ),
        "H200": _from_data_sheet("H200", 141, 4800, 989, has_fp8=True),
        "A100-80GB": _from_data_sheet("A100-80GB", 80, 2039, 312, has_fp8=False),
        "A100-40GB": _from_data_sheet("A100-40GB", 40, 1555, 312, has_fp8=False),
        "L40S": _from_data_sheet("L40S", 48, 864, 362, has_fp8=True),
        "L4": _from_data_sheet("L4", 24, 300, 121, has_fp8=True),
    }
)


def find_card(
    name: str,
    memory_gb: float | None = None,
    bandwidth_gb_s: float | None = None,
    tflops: float | None = None,
) -> Hardware:
    """Return a card's limits, given ones in place of known ones; raises ConfigError if a limit is unknown."""
    known = next((card for key, card in CARDS.items() if key.lower() == name.lower()), None)
    given = {"--memory-gb": memory_gb, "--bandwidth-gb-s": bandwidth_gb_s, "--tflops": tflops}
    if known is None and None in given.values():
        lacking = ", ".join(option for option, value in given.items() if value is None)
        raise ConfigError(f"the card {name!r} is unknown: give {lacking}, or one of {CPU}, {', '.join(CARDS)}")
    if known is None or memory_gb or bandwidth_gb_s or tflops:
        basis = "as given" if known is None else f"as given, else {known.basis}"
        known = known or CARDS["H100"]
        operations = tflops * 1000 * GB if tflops else known.operations_per_s
        return replace(
            known,
            name=name,
            memory_bytes=memory_gb * USABLE if memory_gb else known.memory_bytes,
            read_bytes_per_s=bandwidth_gb_s * GB if bandwidth_gb_s else known.read_bytes_per_s,
            operations_per_s=operations,
            eight_bit_operations_per_s=operations * known.eight_bit_operations_per_s / known.operations_per_s,
            basis=basis,
        )
    return known


def measure_cpu(num_threads: int | None = None) -> Hardware:
    """Measure this machine's memory bandwidth and the peak rates of its kernels, for some seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or before)
    try:
        rayinfer_kernels.configure(cache_folder() / "kernels", is_required=True)
        rates = {dtype: rayinfer_kernels.measure_peak_rate(dtype) for dtype in (torch.bfloat16, torch.int8)}
        read = memory_read_gb_s(torch.get_num_threads()) * GB
    except rayinfer_kernels.KernelBuildFailed as error:
        raise ConfigError(f"this processor cannot be measured without the CPU kernels: {error}") from None
    finally:
        torch.set_num_threads(before)
    kernels = rayinfer_kernels.cpu_kernels_status().path
    return Hardware(
        name=f"{CPU} ({num_threads or before} threads, {kernels})",
        memory_bytes=available_host_bytes(),
        read_bytes_per_s=read,
        operations_per_s=rates[torch.bfloat16],
        eight_bit_operations_per_s=rates[torch.int8],
        basis="measured here, now",
        is_cpu=True,
    )
