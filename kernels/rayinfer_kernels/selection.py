"""Selection of implementations: made once per process by `configure` and looked up by device and type."""

import ctypes
import importlib
import logging
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from rayinfer_kernels import reference
from rayinfer_kernels.cpu.arguments import check_weight
from rayinfer_kernels.cpu.build import CompilerSettings, CpuLibrary, KernelBuildFailed, build_cpu_library
from rayinfer_kernels.cpu.kernels import CpuKernels
from rayinfer_kernels.cpu.prebuilt import PrebuiltKernels
from rayinfer_kernels.cpu.processor import MACHINE_PATHS, runnable_paths
from rayinfer_kernels.implementation import Implementation
from rayinfer_kernels.packed_weight import PackedWeight

ANY_TYPE = torch.float32  # for operations on other things than the model's numbers

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CpuKernelsStatus:
    """Status of the compiled kernels, with the library's path or the reason that they are not in use."""

    is_active: bool
    detail: str
    path: str = "torch"  # the kernel path in use, a name of KERNEL_PATHS
    is_prebuilt: bool = False

    @property
    def name(self) -> str:
        """Return the kernel path, with its origin where it was not compiled here."""
        return f"prebuilt {self.path}" if self.is_prebuilt else self.path


@dataclass(slots=True)
class _Selection:
    status: CpuKernelsStatus
    library: ctypes.CDLL | None = None
    table: dict[tuple[str, torch.dtype], Implementation] = field(default_factory=dict)


# The process has one: which library is loaded is a fact of the process, not of an engine.
_selection = _Selection(CpuKernelsStatus(False, "rayinfer_kernels.configure has not been called"))


def configure(
    cache_dir: Path | None,
    isa: str | None = None,
    compiler: str = "g++",
    on_progress: Callable[[int, int], None] = lambda num_done, num_sources: None,
    *,
    is_required: bool = False,
    prebuilt: PrebuiltKernels | None = None,
) -> None:
    """Load the CPU kernels of the wheel, or from `cache_dir`, compiling them first; None selects the torch reference.

    `isa` is one of KERNEL_PATHS or the compiler's name of an instruction set (its -march), by default this machine's
    own. They are compiled if the wheel (`prebuilt`, by default the installed one) has none for it. Where they cannot be
    built, KernelBuildFailed is raised if they are required; else the reference runs instead, and a warning and
    `cpu_kernels_status` give the reason. While they are compiled `on_progress` is called
    with the number of sources done and of all.
    """
    for key in [key for key in _selection.table if key[0] == "cpu"]:
        del _selection.table[key]
    _selection.library = None
    if cache_dir is None:
        _selection.status = CpuKernelsStatus(False, "switched off")
        return
    try:
        library, path, is_prebuilt = _load(
            cache_dir, CompilerSettings(compiler, isa or "native"), on_progress, prebuilt or PrebuiltKernels()
        )
    except KernelBuildFailed as error:
        if is_required:
            raise
        status = CpuKernelsStatus(False, str(error))
        if status == _selection.status:  # logged already: each engine of a process configures the kernels
            return
        _selection.status = status
        _logger.warning("The CPU kernels cannot be built, much slower ones run instead: %s", error)
        return
    for dtype in CpuKernels.DTYPES:
        _selection.table["cpu", dtype] = CpuKernels(library.handle, dtype)
    _selection.library = library.handle
    _selection.status = CpuKernelsStatus(True, str(library.path), path, is_prebuilt)


def _load(
    cache_dir: Path,
    settings: CompilerSettings,
    on_progress: Callable[[int, int], None],
    prebuilt: PrebuiltKernels,
) -> tuple[CpuLibrary, str, bool]:
    """Load the best library: it, its kernel path, and whether it is prebuilt."""
    chosen = prebuilt.choose(settings.isa)
    if chosen is not None and chosen.is_best:
        try:
            return chosen.load(), chosen.kernel_path, True
        except KernelBuildFailed as error:
            _logger.warning("%s; they are compiled", error)
            chosen = None
    try:
        return build_cpu_library(cache_dir, settings, on_progress), settings.path_name(), False
    except KernelBuildFailed as error:
        if chosen is None:
            raise
        _logger.warning(
            "This processor has more instructions than the prebuilt kernels (%s), and others cannot be compiled: %s",
            chosen.kernel_path,
            error,
        )
        return chosen.load(), chosen.kernel_path, True


def prebuilt_kernel_paths() -> list[str]:
    """Return the prebuilt kernel paths that this processor can run, the best first; none without a wheel of them."""
    return PrebuiltKernels().paths()


def runnable_kernel_paths(
    compiler: str = "g++", prebuilt: PrebuiltKernels | None = None, machine: str | None = None
) -> list[str]:
    """Return the kernel paths that can run here, the processor's own best one first; `machine` is by default this one.

    Those that are not prebuilt need a compiler; raises KernelBuildFailed where there are neither.
    """
    prebuilt = prebuilt or PrebuiltKernels()
    paths = prebuilt.paths()
    if paths and paths == runnable_paths(prebuilt.flags or ()):
        return paths
    try:
        return _compilable_paths(CompilerSettings(compiler, "native", machine=machine or platform.machine()))
    except KernelBuildFailed:
        if not paths:
            raise
        return paths


def _compilable_paths(native: CompilerSettings) -> list[str]:
    features, own = native.features(), native.path_name()
    others = (path for path in MACHINE_PATHS.get(native.machine, ("portable",)) if path != own)
    return [own, *(path for path in others if replace(native, isa=path).features() <= features)]


def configure_gpu() -> bool:
    """Select the Triton kernels on this process's GPU; returns whether they run: without Triton or a GPU torch does."""
    if not torch.cuda.is_available():
        return False
    # By name: it brings Triton along, whose import would take part of a second without a GPU, too.
    kernels = importlib.import_module("rayinfer_kernels.gpu.kernels").GpuKernels()
    _selection.table.update({("cuda", dtype): kernels for dtype in kernels.DTYPES})
    return bool(kernels.DTYPES)


def cpu_kernels_status() -> CpuKernelsStatus:
    """Return the result of this process's last `configure`."""
    return _selection.status


def measure_peak_rate(dtype: torch.dtype, num_rounds: int = 200_000) -> float:
    """Measure multiplications and additions a second that torch's threads compute in registers, for numbers of a type.

    Types are float32, bfloat16 and int8, products as the kernels use them; raises RuntimeError without kernels.
    """
    if _selection.library is None:
        raise RuntimeError(f"no CPU kernels are configured: {_selection.status.detail}")
    function = _selection.library.rayinfer_multiply_in_registers
    function.restype = ctypes.c_double
    kind = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}[dtype]
    rates: list[float] = []
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    for _ in range(5):
        started = clock()
        num_operations = function(kind, ctypes.c_int64(num_rounds), torch.get_num_threads())
        rates.append(num_operations / (clock() - started))
    return max(rates)


def time_products(weights: Sequence[PackedWeight], num_rows: int, dtype: torch.dtype) -> float:
    """Multiply rows by one weight after the other, as a model's layers do, and return the seconds that it took.

    Rows are of the type, one of CpuKernels.DTYPES; raises RuntimeError without kernels, and ValueError for weights that
    such rows cannot be multiplied by, or that are not in the CPU's memory.
    """
    if _selection.library is None:
        raise RuntimeError(f"no CPU kernels are configured: {_selection.status.detail}")
    for weight in weights:
        check_weight(weight, weight.in_features, dtype)
        if weight.panels.device.type != "cpu" or dtype not in CpuKernels.DTYPES:
            raise ValueError(f"rows of {dtype} and weights on {weight.panels.device} are not the CPU kernels'")
    function = _selection.library[f"rayinfer_multiply_chain_{str(dtype).removeprefix('torch.')}"]
    arguments = (ctypes.c_void_p * len(weights))(*(ctypes.addressof(weight.argument) for weight in weights))
    started = time.perf_counter()
    function(arguments, ctypes.c_int64(len(weights)), ctypes.c_int64(num_rows), torch.get_num_threads())
    return time.perf_counter() - started


def pin_threads(cores: Sequence[int] | None) -> None:
    """Pin each thread of the caller's OpenMP team to the core with its number, except the caller, which pins itself.

    There is one core for each of torch's threads; None sets them free again. Without compiled kernels, and on other
    systems than Linux, nothing happens.
    """
    if _selection.library is not None:
        array = None if cores is None else (ctypes.c_int32 * len(cores))(*cores)
        _selection.library.rayinfer_pin_threads(array, torch.get_num_threads() if cores is None else len(cores))


def implementation_for(tensor: torch.Tensor) -> Implementation:
    """Return this process's best implementation for tensors like this one."""
    return implementation_of(tensor.device, tensor.dtype)


def implementation_of(device: torch.device, dtype: torch.dtype) -> Implementation:
    """Return this process's best implementation for a device and a model's type."""
    return _selection.table.get((device.type, dtype), reference)


def has_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether this process runs kernels made for the device and type, not the torch reference."""
    return (device.type, dtype) in _selection.table


def gpu_workspace_bytes(
    *, num_requests: int, num_heads: int, num_kv_heads: int, head_dim: int, max_context: int, vocab_size: int
) -> int:
    """Return the memory that a GPU's kernels use beside their results, in a step of one token per request."""
    # By name: they bring Triton along, whose import takes part of a second, also where there is no GPU.
    attention = importlib.import_module("rayinfer_kernels.gpu.decode_attention")
    sampling = importlib.import_module("rayinfer_kernels.gpu.sampling.sampling")
    splits = attention.splits_bytes(num_requests, num_heads, num_kv_heads, head_dim, max_context)
    return int(splits) + int(sampling.sampling_bytes(num_requests, vocab_size))


def is_batch_invariant(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether a row's results are the same bits in any batch: the compiled kernels sum in one order."""
    return device.type == "cpu" and has_kernels(device, dtype)
