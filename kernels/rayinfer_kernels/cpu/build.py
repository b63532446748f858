"""Compilation of the C++ kernels on first use; the library is kept in a cache folder."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

import filelock

# Loading torch first makes its OpenMP runtime the process's only one: the library asks for the same by name.
import torch

from rayinfer_kernels.cpu.processor import MACHINE_PATHS, cpu_features

SOURCE_FOLDER = Path(__file__).parent
FLAGS = (
    "-O3",
    "-std=c++17",
    "-mprefer-vector-width=512",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-exceptions",
    "-fvisibility=hidden",
    "-Wno-psabi",
    "-fopenmp",
    "-fPIC",
)
# The compiler's flags by kernel path, as far as there is code of its own; other names are the compiler's -march. Paths
# are x86-64's or AArch64's (MACHINE_PATHS); both have `native` and `portable`.
KERNEL_PATHS: dict[str, tuple[str, ...]] = {
    "native": ("-march=native",),
    "portable": ("-march=x86-64",),
    "avx2": ("-march=x86-64-v3",),
    "avx2-vnni": ("-march=x86-64-v3", "-mavxvnni"),
    "avx512": ("-march=x86-64-v4",),
    "avx512-vnni": ("-march=x86-64-v4", "-mavx512vnni"),
    "avx512-bf16": ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),
    "neon-dotprod": ("-march=armv8.2-a+dotprod",),
    "neon-bf16": ("-march=armv8.2-a+dotprod+bf16",),
}
_AARCH64_FLAGS = {"native": ("-mcpu=native",), "portable": ("-march=armv8-a",)}  # there, in place of the above
# How the compiler's names of instructions begin, of those that it uses unasked.
FEATURES = ("__SSE", "__SSSE", "__AVX", "__FMA", "__F16C", "__BMI", "__LZCNT", "__MOVBE", "__POPCNT", "__ARM_FEATURE")
BUILD_TIMEOUT_S = 300


class KernelBuildFailed(Exception):
    """The kernels cannot be compiled or loaded here."""


@dataclass(frozen=True, slots=True)
class CompilerSettings:
    """Compiler, instruction set and extra flags of a build; `isa` is one of KERNEL_PATHS or the compiler's -march."""

    compiler: str
    isa: str
    extra_flags: tuple[str, ...] = ()
    machine: str = field(default_factory=platform.machine)  # that the compiler compiles for

    def compile_command(self, source: Path, output: Path) -> list[str]:
        """Return the command that compiles one source."""
        return [self.compiler, *self._flags(), f"-I{SOURCE_FOLDER}", "-c", str(source), "-o", str(output)]

    def link_command(self, objects: list[Path], output: Path) -> list[str]:
        """Return the command that links all compiled sources to a library."""
        return [self.compiler, *self._flags(), "-shared", *map(str, objects), "-o", str(output)]

    def features(self) -> set[str]:
        """Return the compiler's names of the CPU features that it would use."""
        lines = _run([self.compiler, *self._isa_flags(), "-dM", "-E", "-x", "c++", os.devnull]).splitlines()
        return {name for line in lines if (name := line.split()[1]).startswith(FEATURES)}

    def path_name(self) -> str:
        """Return the kernel path that these settings compile: that with the most instructions of those used."""
        features = self.features()
        if "__AVX512BF16__" in features:
            return "avx512-bf16"
        if "__AVX512BW__" in features:
            return "avx512-vnni" if "__AVX512VNNI__" in features else "avx512"
        if "__AVX2__" in features:
            return "avx2-vnni" if "__AVXVNNI__" in features else "avx2"
        if "__ARM_FEATURE_DOTPROD" in features:
            return "neon-bf16" if "__ARM_FEATURE_BF16_VECTOR_ARITHMETIC" in features else "neon-dotprod"
        return "portable"

    def check_that_it_runs_here(self) -> None:
        """Raise KernelBuildFailed, with their names, for instructions that this processor lacks."""
        if self.isa == "native":
            return
        for machine, paths in MACHINE_PATHS.items():
            if self.isa in paths and self.isa not in MACHINE_PATHS.get(self.machine, ("portable",)):
                raise KernelBuildFailed(f"{self.isa!r} has instructions that this processor lacks: those of {machine}")
        lacking = self.features() - replace(self, isa="native").features()
        if lacking:
            names = ", ".join(sorted(name.strip("_") for name in lacking))
            raise KernelBuildFailed(f"{self.isa!r} has instructions that this processor lacks: {names}")

    def _isa_flags(self) -> tuple[str, ...]:
        if self.machine == "aarch64" and self.isa in _AARCH64_FLAGS:
            return _AARCH64_FLAGS[self.isa]
        return KERNEL_PATHS.get(self.isa, (f"-march={self.isa}",))

    def _flags(self) -> list[str]:
        flags = [flag for flag in FLAGS if self.machine == "x86_64" or "vector-width" not in flag]
        return [*flags, *self.extra_flags, *self._isa_flags()]

    def fingerprint(self) -> str:
        """Compute a hash of sources, flags, compiler and processor features, equal for interchangeable libraries."""
        version = _run([self.compiler, "--version"])
        digest = hashlib.sha256(" ".join([*self._flags(), version, self.machine, cpu_features()]).encode())
        digest.update(read_sources())
        return digest.hexdigest()[:20]


@dataclass(frozen=True, slots=True)
class CpuLibrary:
    """The loaded kernels and the path of their library."""

    handle: ctypes.CDLL
    path: Path


def build_cpu_library(
    cache_dir: Path,
    settings: CompilerSettings,
    on_progress: Callable[[int, int], None] = lambda num_done, num_sources: None,
) -> CpuLibrary:
    """Load the library from the cache, compiling it first if it is missing or damaged; raises KernelBuildFailed.

    `on_progress` is called with the number of sources compiled so far and of all, if they are compiled here, from 0 on.
    """
    settings.check_that_it_runs_here()
    try:
        path = cache_dir / f"cpu-{settings.fingerprint()}.so"
        if not is_intact(path):
            cache_dir.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(path.with_suffix(".lock")):
                if not is_intact(path):
                    compile_library(path, settings, on_progress)
        return load_library(path)
    except OSError as error:
        raise KernelBuildFailed(f"{cache_dir}: {error}") from error


def load_library(path: Path) -> CpuLibrary:
    """Load compiled kernels; raises OSError."""
    assert torch.get_num_threads() > 0  # its OpenMP runtime is there
    return CpuLibrary(ctypes.CDLL(str(path)), path)


def read_sources() -> bytes:
    """Read all C++ sources with their names, in a fixed order."""
    paths = sorted([*SOURCE_FOLDER.rglob("*.cpp"), *SOURCE_FOLDER.rglob("*.h")])
    return b"".join(path.relative_to(SOURCE_FOLDER).as_posix().encode() + path.read_bytes() for path in paths)


def compile_library(path: Path, settings: CompilerSettings, on_progress: Callable[[int, int], None]) -> None:
    """Compile the kernels to a library, with its digest in a file beside it; raises KernelBuildFailed."""
    # A build that dies leaves a temporary folder, never a file that looks complete: the digest is written last.
    prefix = f".{path.stem}-"
    for leftover in path.parent.glob(f"{prefix}*"):  # left by dead builds: this process holds the lock
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix) as folder:
        library, digest = Path(folder) / path.name, Path(folder) / "digest"
        _run(settings.link_command(_compile_sources(Path(folder), settings, on_progress), library))
        digest.write_text(_digest(library))
        library.replace(path)
        digest.replace(path.with_suffix(".sha256"))


def _compile_sources(folder: Path, settings: CompilerSettings, on_progress: Callable[[int, int], None]) -> list[Path]:
    # The largest first: begun last, it would be waited for.
    sources = sorted(SOURCE_FOLDER.rglob("*.cpp"), key=lambda path: -path.stat().st_size)
    objects = [folder / f"{path.parent.name}_{path.stem}.o" for path in sources]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        try:
            on_progress(0, len(sources))
            compiling = [
                pool.submit(_run, settings.compile_command(*paths)) for paths in zip(sources, objects, strict=True)
            ]
            for num_done, compiled in enumerate(as_completed(compiling), start=1):
                compiled.result()
                on_progress(num_done, len(sources))
        except KernelBuildFailed:
            pool.shutdown(cancel_futures=True)
            raise
    return objects


def is_intact(path: Path) -> bool:
    """Return whether a library is there and has the digest that was written beside it."""
    try:
        return path.with_suffix(".sha256").read_text() == _digest(path)
    except (OSError, UnicodeDecodeError):
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise KernelBuildFailed(f"no compiler: {command[0]} is not installed or not on PATH") from None
    except subprocess.TimeoutExpired:
        raise KernelBuildFailed(f"{command[0]} did not end within {BUILD_TIMEOUT_S} s") from None
    if done.returncode:
        first_error = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:300])
        raise KernelBuildFailed(f"{command[0]} failed: {first_error}")
    return done.stdout
