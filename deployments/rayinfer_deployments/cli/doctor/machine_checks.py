"""Checks of a machine's fitness to serve a model, one function each."""

import os
import platform
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rayinfer.config import DEFAULT_MODEL, cache_folder, kernel_path, packed_cache_bytes
from rayinfer.errors import ConfigError
from rayinfer.optimization.packed_entries import list_entries
from rayinfer_deployments.cli.doctor.findings import Finding
from rayinfer_deployments.cli.doctor.network_checks import check_open_ports
from rayinfer_deployments.cluster.ray_environment import settings_of_ray
from rayinfer_deployments.cluster.ray_token import exposed_token_paths
from rayinfer_deployments.cluster.service_record import find_services

GIB = 2**30
NEEDED_MEMORY_GIB = 2.0  # the default model, Ray's processes and a small KV pool
ADVISED_MEMORY_GIB = 4.0  # with the default KV pool
NEEDED_DISK_GIB = 1.0
ADVISED_SHARED_MEMORY_GIB = 0.5  # for Ray's object store
ADVISED_OPEN_FILES = 4096  # every stream is a socket
COMPILER = "g++"  # what the kernels are built with


def check_machine() -> list[Finding]:
    """Run all checks, in the order in which problems should be fixed."""
    return [
        check_python(sys.version_info[:2]),
        check_package("torch", _describe_torch),
        check_package("ray", _describe_ray),
        check_package("transformers"),
        check_compiler(shutil.which, _prebuilt_kernels()),
        check_kernels(),
        check_gpu(shutil.which),
        check_engine_defaults(_device_type()),
        check_memory(_available_memory_gib()),
        check_shared_memory(Path("/dev/shm")),
        check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        check_ray_token(settings_of_ray()),
        check_open_ports(find_services()),
        check_cache(cache_folder()),
        check_default_model(cache_folder()),
        check_packed_weights(cache_folder()),
    ]


def check_python(present: tuple[int, ...]) -> Finding:
    """Check the interpreter."""
    found = f"{platform.python_version()}, {len(os.sched_getaffinity(0))} CPUs"
    if present >= (3, 11):
        return Finding(name="Python", verdict="ok", found=found)
    return Finding(name="Python", verdict="missing", found=found, remedy="install Python 3.11 or newer")


def check_package(name: str, describe: Callable[[], str] | None = None) -> Finding:
    """Check that a package is installed and, where its details are reported, that it can be imported."""
    install = f"{sys.executable} -m pip install"
    try:
        installed = version(name)
        return Finding(name=name, verdict="ok", found=describe() if describe else installed)
    except PackageNotFoundError:
        return Finding(name=name, verdict="missing", found="not installed", remedy=f"{install} {name}")
    except (ImportError, OSError) as error:
        found, remedy = f"cannot be imported: {error}", f"{install} --force-reinstall {name}"
        return Finding(name=name, verdict="missing", found=found, remedy=remedy)


def _describe_torch() -> str:
    import torch

    return f"{torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"


def _describe_ray() -> str:
    import ray
    import ray.serve

    return f"{ray.__version__} with Serve"


def check_compiler(find: Callable[[str], str | None], prebuilt: Sequence[str] = ()) -> Finding:
    """Check for the C++ compiler that builds the CPU kernels on first use, unless they are prebuilt."""
    if path := find(COMPILER):
        return Finding(name="C++ compiler", verdict="ok", found=f"{path} {_first_line(path, '-dumpfullversion')}")
    if prebuilt:
        return Finding(name="C++ compiler", verdict="ok", found="none: the CPU kernels are prebuilt")
    remedy = f"sudo apt-get install {COMPILER} (or your distribution's package of it)"
    return Finding(name="C++ compiler", verdict="advice", found="none: CPU kernels run as plain torch", remedy=remedy)


def _prebuilt_kernels() -> list[str]:
    """Return the kernel paths that the installed wheel has for this processor."""
    try:
        import rayinfer_kernels
    except (ImportError, OSError):
        return []
    return rayinfer_kernels.prebuilt_kernel_paths()


def check_kernels() -> Finding:
    """Report the CPU kernels that engines choose here, and the others that this processor runs."""
    try:
        import rayinfer_kernels
    except (ImportError, OSError):
        return Finding(name="CPU kernels", verdict="advice", found="unknown", remedy="fix torch first")
    try:
        chosen, runnable = kernel_path(), rayinfer_kernels.runnable_kernel_paths()
    except ConfigError as error:
        return Finding(name="CPU kernels", verdict="missing", found=str(error), remedy="unset RAYINFER_KERNELS")
    except rayinfer_kernels.KernelBuildFailed as error:
        return Finding(name="CPU kernels", verdict="advice", found=str(error), remedy=f"install {COMPILER}")
    if chosen == "native":
        best = f"{runnable[0]}, prebuilt" if runnable[0] in rayinfer_kernels.prebuilt_kernel_paths() else runnable[0]
        found = f"{best}; also {', '.join(runnable[1:])}" if runnable[1:] else best
        return Finding(name="CPU kernels", verdict="ok", found=found)
    if chosen not in runnable:
        found = f"RAYINFER_KERNELS is {chosen}, which this processor cannot run"
        return Finding(name="CPU kernels", verdict="missing", found=found, remedy="unset RAYINFER_KERNELS")
    found = f"{chosen}, of {', '.join(runnable)}"
    return Finding(name="CPU kernels", verdict="advice", found=found, remedy="unset RAYINFER_KERNELS for the best")


def check_gpu(find: Callable[[str], str | None]) -> Finding:
    """Check for a GPU, and for a torch that can use it."""
    path = find("nvidia-smi")
    gpu = _first_line(path, "--query-gpu=name,memory.total", "--format=csv,noheader") if path else ""
    if not gpu:
        return Finding(name="GPU", verdict="ok", found="none: models run on the CPU")
    try:
        import torch
    except (ImportError, OSError):
        return Finding(name="GPU", verdict="advice", found=gpu, remedy="fix torch first")
    if torch.cuda.is_available():
        return Finding(name="GPU", verdict="ok", found=gpu)
    remedy = f"{sys.executable} -m pip install --force-reinstall torch (a build with CUDA)"
    return Finding(name="GPU", verdict="advice", found=f"{gpu}, but this torch cannot use it", remedy=remedy)


def check_engine_defaults(device_type: str) -> Finding:
    """Report the default engine settings on this device, and why these."""
    from rayinfer.engine.worker.device_defaults import device_defaults
    from rayinfer.engine.worker.resolved_config import describe_default_pool

    defaults = device_defaults(device_type)
    graph_size = defaults.max_cudagraph_capture_size
    device = "of a GPU, as torch finds one" if device_type == "cuda" else "of a CPU, as torch finds no GPU"
    sizes = f"max_num_seqs {defaults.max_num_seqs:,}, max_num_batched_tokens {defaults.max_num_batched_tokens:,}"
    memory = f"{describe_default_pool(device_type)} in blocks of {defaults.block_size} tokens"
    overlap = "async scheduling" if defaults.async_scheduling else "no async scheduling"
    graphs = (
        f"CUDA graphs for up to {min(graph_size, defaults.max_num_seqs)} requests" if graph_size else "no CUDA graphs"
    )
    return Finding(name="engine defaults", verdict="ok", found=f"{device}: {sizes}, {memory}, {overlap}, {graphs}")


def _device_type() -> str:
    """Return the device type of this machine's engines; a CPU without torch."""
    try:
        import torch
    except (ImportError, OSError):
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_memory(available_gib: float) -> Finding:
    """Check the free memory."""
    found = f"{available_gib:.1f} GiB free"
    if available_gib < NEEDED_MEMORY_GIB:
        remedy = f"free {NEEDED_MEMORY_GIB - available_gib:.1f} GiB"
        return Finding(name="memory", verdict="missing", found=found, remedy=remedy)
    if available_gib < ADVISED_MEMORY_GIB:
        return Finding(name="memory", verdict="advice", found=found, remedy="rayinfer serve --num-kv-blocks 512")
    return Finding(name="memory", verdict="ok", found=found)


def check_shared_memory(folder: Path) -> Finding:
    """Check the shared memory, which Ray keeps its objects in."""
    if not folder.is_dir():
        return Finding(name="shared memory", verdict="advice", found="none", remedy=f"mount a tmpfs on {folder}")
    free_gib = shutil.disk_usage(folder).free / GIB
    found = f"{free_gib:.1f} GiB free in {folder}"
    if free_gib < ADVISED_SHARED_MEMORY_GIB:
        return Finding(name="shared memory", verdict="advice", found=found, remedy="docker run --shm-size=1g ...")
    return Finding(name="shared memory", verdict="ok", found=found)


def check_open_files(limit: int) -> Finding:
    """Check the limit of open files and sockets of a process."""
    if limit == resource.RLIM_INFINITY or limit >= ADVISED_OPEN_FILES:
        found = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
        return Finding(name="open files", verdict="ok", found=found)
    return Finding(name="open files", verdict="advice", found=str(limit), remedy=f"ulimit -n {ADVISED_OPEN_FILES}")


def check_ray_token(environment: Mapping[str, str], home: Path | None = None) -> Finding:
    """Check that other users cannot read the token with which programs run on this user's Rays."""
    exposed = exposed_token_paths(environment, home)
    if not exposed:
        return Finding(name="Ray's token", verdict="ok", found="other users cannot read it")
    found = f"other users may open {', '.join(map(str, exposed))}"
    remedy = " && ".join(f"chmod {mode:o} {shlex.quote(str(path))}" for path, mode in exposed.items())
    return Finding(name="Ray's token", verdict="advice", found=found, remedy=remedy)


def check_cache(folder: Path) -> Finding:
    """Check that the cache folder can be written and has free space."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK):
        found, remedy = f"{folder} cannot be written", "set RAYINFER_CACHE to a folder that can"
        return Finding(name="cache", verdict="missing", found=found, remedy=remedy)
    free_gib = shutil.disk_usage(existing).free / GIB
    found = f"{folder}, {free_gib:.1f} GiB free"
    if free_gib < NEEDED_DISK_GIB:
        remedy = "free disk space, or set RAYINFER_CACHE to a folder with free space"
        return Finding(name="cache", verdict="missing", found=found, remedy=remedy)
    return Finding(name="cache", verdict="ok", found=found)


def check_default_model(cache: Path) -> Finding:
    """Check which models are cached, the default one among them."""
    models = cache / "models"
    names = sorted(path.parent.name for path in models.glob("*/*/config.json"))
    found = ", ".join(names) or "none"
    if any(name.startswith(DEFAULT_MODEL) for name in names):
        return Finding(name="cached models", verdict="ok", found=found)
    remedy = f"none needed: rayinfer serve fetches {DEFAULT_MODEL}"
    return Finding(name="cached models", verdict="advice", found=found, remedy=remedy)


def check_packed_weights(cache: Path) -> Finding:
    """Report the size of the packed weights in the cache folder."""
    folder, limit = cache / "packed", packed_cache_bytes()
    entries = list_entries(folder)
    num_bytes = sum(entry.num_bytes for entry in entries)
    found = f"{len(entries)} models, {num_bytes / GIB:.1f} of at most {limit / GIB:g} GiB in {folder}"
    if num_bytes <= limit:
        return Finding(name="packed weights", verdict="ok", found=found)
    remedy = "rayinfer cache clean: needed ones are packed again at the next start"
    return Finding(name="packed weights", verdict="advice", found=found, remedy=remedy)


def _available_memory_gib() -> float:
    import psutil

    return float(psutil.virtual_memory().available / GIB)


def _first_line(program: str, *arguments: str) -> str:
    try:
        completed = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return completed.stdout.strip().splitlines()[0] if completed.returncode == 0 and completed.stdout.strip() else ""
