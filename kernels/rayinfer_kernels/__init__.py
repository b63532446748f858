"""Tensor operations with one public interface, `ops`, each with a plain-torch reference."""

from rayinfer_kernels.cpu.build import KERNEL_PATHS, KernelBuildFailed
from rayinfer_kernels.selection import (
    CpuKernelsStatus,
    configure,
    configure_gpu,
    cpu_kernels_status,
    gpu_workspace_bytes,
    has_kernels,
    is_batch_invariant,
    measure_peak_rate,
    pin_threads,
    prebuilt_kernel_paths,
    runnable_kernel_paths,
    time_products,
)

__all__ = [
    "KERNEL_PATHS",
    "CpuKernelsStatus",
    "KernelBuildFailed",
    "configure",
    "configure_gpu",
    "cpu_kernels_status",
    "gpu_workspace_bytes",
    "has_kernels",
    "is_batch_invariant",
    "measure_peak_rate",
    "pin_threads",
    "prebuilt_kernel_paths",
    "runnable_kernel_paths",
    "time_products",
]
