"""Prebuilt kernels of a wheel: one library for each kernel path, named by the digest of the sources beside it."""

import hashlib
import platform
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rayinfer_kernels.cpu.build import (
    KERNEL_PATHS,
    SOURCE_FOLDER,
    CompilerSettings,
    CpuLibrary,
    KernelBuildFailed,
    compile_library,
    is_intact,
    load_library,
    read_sources,
)
from rayinfer_kernels.cpu.processor import MACHINE_PATHS, NEEDED_FLAGS, processor_flags, runnable_paths

FOLDER = SOURCE_FOLDER / "prebuilt"
LINK_FLAGS = ("-s",)  # no symbols but those that are called


@dataclass(frozen=True, slots=True)
class PrebuiltChoice:
    """A prebuilt library that runs here."""

    kernel_path: str
    file: Path
    is_best: bool  # no other path that the processor runs is better, or this one was asked for

    def load(self) -> CpuLibrary:
        """Load the library; raises KernelBuildFailed where it does not fit this system."""
        try:
            return load_library(self.file)
        except OSError as error:
            raise KernelBuildFailed(f"the prebuilt kernels cannot be loaded: {error}") from error


@dataclass(frozen=True, slots=True)
class PrebuiltKernels:
    """The libraries in a folder, and the features of the processor that they are to run on."""

    folder: Path = FOLDER
    flags: Collection[str] | None = field(default_factory=processor_flags)

    def paths(self) -> list[str]:
        """Return the kernel paths that are prebuilt, intact, of these sources, and run here, the best first."""
        if self.flags is None or not self.folder.is_dir():
            return []
        digest = sources_digest()
        return [path for path in runnable_paths(self.flags) if is_intact(self._file(path, digest))]

    def choose(self, isa: str) -> PrebuiltChoice | None:
        """Choose the library of a kernel path, or the best one for `native`; None if there is none.

        Raises KernelBuildFailed for a kernel path with instructions that the processor lacks.
        """
        if not (paths := self.paths()):
            return None
        assert self.flags is not None
        runnable = runnable_paths(self.flags)
        if isa in NEEDED_FLAGS and isa not in runnable:
            lacking = ", ".join(sorted(NEEDED_FLAGS[isa] - set(self.flags)))
            raise KernelBuildFailed(f"{isa!r} has instructions that this processor lacks: {lacking}")
        path = paths[0] if isa == "native" else isa
        if path not in paths:
            return None
        return PrebuiltChoice(path, self._file(path, sources_digest()), path in (isa, runnable[0]))

    def _file(self, path: str, digest: str) -> Path:
        return self.folder / f"{path}-{digest}.so"


def sources_digest() -> str:
    """Compute a hash of the C++ sources: libraries of others are not loaded."""
    return hashlib.sha256(read_sources()).hexdigest()[:16]


def compile_prebuilt(
    folder: Path, compiler: str, on_path: Callable[[str, int], None], paths: Sequence[str] | None = None
) -> list[Path]:
    """Compile a library for each kernel path into a folder, those that are there already excepted; returns them.

    Paths are by default all of this machine. `on_path` is called with each path and the size of its library; raises
    KernelBuildFailed.
    """
    paths = MACHINE_PATHS[platform.machine()] if paths is None else paths
    folder.mkdir(parents=True, exist_ok=True)
    libraries = [folder / f"{path}-{sources_digest()}.so" for path in paths]
    for path, library in zip(paths, libraries, strict=True):
        assert path in KERNEL_PATHS
        if not is_intact(library):
            compile_library(library, CompilerSettings(compiler, path, LINK_FLAGS), lambda num_done, num_sources: None)
        on_path(path, library.stat().st_size)
    return libraries
