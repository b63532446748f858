"""The wheel in dist/: its libraries, and a service from it in an empty environment without a compiler."""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest
import torch

from rayinfer.config import DEFAULT_MODEL
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer_kernels import prebuilt_kernel_paths
from support.faults.cli_processes import serving

pytestmark = pytest.mark.wheel

ROOT = Path(__file__).parents[2]
PATHS = {
    "x86_64": ("portable", "avx2", "avx2-vnni", "avx512", "avx512-vnni", "avx512-bf16"),
    "aarch64": ("portable", "neon-dotprod", "neon-bf16"),
}[platform.machine()]
COMPILER = re.compile(r"(.*-)?(gcc|g\+\+|cc|c\+\+|cpp|c89|c99|clang|clang\+\+|tcc|nvcc)(-[\d.]+)?")
MOST_BYTES = 10 * 2**20


@pytest.fixture(scope="module")
def wheel() -> Path:
    return max((ROOT / "dist").glob("rayinfer-*.whl"), key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """A virtual environment with the wheel, and of all others only its dependencies."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "dependencies.pth").write_text(str(Path(torch.__file__).parents[1]) + "\n")
    return folder


@pytest.fixture(scope="module")
def without_compiler(environment, tmp_path_factory) -> dict[str, str]:
    """Variables with a PATH of all programs but compilers."""
    folder = tmp_path_factory.mktemp("programs")
    for source in map(Path, os.defpath.split(os.pathsep)):
        for program in source.glob("*"):
            if not COMPILER.fullmatch(program.name) and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    path = os.pathsep.join([str(environment / "bin"), str(folder)])
    return {"PATH": path, "PYTHONPATH": "", "VIRTUAL_ENV": str(environment), "PYTHONNOUSERSITE": "1"}


def test_the_wheel_has_a_library_for_every_kernel_path(wheel):
    assert "manylinux" in wheel.name
    assert wheel.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
        assert sorted(Path(name).stem.rpartition("-")[0] for name in libraries) == sorted(PATHS)
        for name in libraries:
            digest = archive.read(name.removesuffix(".so") + ".sha256").decode()
            assert hashlib.sha256(archive.read(name)).hexdigest() == digest


def test_doctor_reports_the_prebuilt_kernels(environment, without_compiler, tmp_path):
    variables = os.environ | without_compiler | {"RAYINFER_CACHE": str(tmp_path)}
    command = [str(environment / "bin" / "rayinfer"), "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120, check=False)
    findings = {finding["name"]: finding["found"] for finding in json.loads(done.stdout)}
    assert findings["C++ compiler"] == "none: the CPU kernels are prebuilt"
    assert ", prebuilt" in findings["CPU kernels"]


def test_a_service_starts_and_answers_without_a_compiler(environment, without_compiler, tmp_path):
    assert prebuilt_kernel_paths() == []  # of this checkout: the service's can only come from the wheel
    model = resolve_model(DEFAULT_MODEL)
    cache = tmp_path / "cache"
    (cache / "models" / "embedded").mkdir(parents=True)
    (cache / "models" / "embedded" / model.name).symlink_to(model)
    command = [str(environment / "bin" / "rayinfer")]
    options = (DEFAULT_MODEL, "--num-kv-blocks", 256, "--grpc-port", 0)
    with serving(*options, cache=cache, command=command, environment=without_compiler) as service:
        assert re.search(r"no CUDA graphs, prebuilt [\w-]+ kernels$", service.wait_for_line("engine of "))
        message = {"role": "user", "content": "What is the capital of France?"}
        body = {"model": DEFAULT_MODEL, "messages": [message], "max_tokens": 16, "temperature": 0}
        answer = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=60).json()
        assert "Paris" in answer["choices"][0]["message"]["content"]
    assert not (cache / "kernels").exists()
