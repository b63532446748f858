"""Test program of the kernels without Python (`tests/kernels/cross/`): compiled, linked with a library, and run."""

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE_FOLDER = Path(__file__).parents[2] / "kernels" / "cross"
FLAGS = ("-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-psabi")


def compile_program(folder: Path, compiler: str = "g++") -> list[Path]:
    """Compile the program's sources side by side; returns the objects, which any library can be linked with."""
    sources = sorted(SOURCE_FOLDER.glob("*.cpp"))
    objects = [folder / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(
            pool.map(
                lambda source, output: _run([compiler, *FLAGS, "-c", str(source), "-o", str(output)]),
                *(sources, objects),
            )
        )
    return objects


def link_program(objects: Sequence[Path], library: Path, program: Path, compiler: str = "g++") -> Path:
    """Link the objects with compiled kernels, which the program finds by their path."""
    _run([compiler, "-fopenmp", *map(str, objects), str(library), "-o", str(program)])
    return program


def run_program(program: Path, emulator: Sequence[str] = ()) -> str:
    """Run the program, in an emulator if there is one; returns its output, and raises AssertionError if it failed."""
    # Threads that spin at barriers would wait for each other where other processes take the cores.
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [*emulator, str(program)], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
