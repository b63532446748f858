"""Imports without Triton installed: only launching a kernel fails."""

import subprocess
import sys
from pathlib import Path

import rayinfer_kernels

PROGRAM = """
import importlib, pkgutil, sys

# What runs a model of transformers, which needs Triton at its import; and what needs the packages of an extra.
FOREIGN = ("rayinfer.benchmark.offline.transformers_peer", "rayinfer.jobs.data")

class WithoutTriton:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ImportError("there is no Triton here")

sys.meta_path.insert(0, WithoutTriton())
import torch
import rayinfer
import rayinfer_kernels
for package in (rayinfer_kernels, rayinfer):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.startswith(FOREIGN):
            importlib.import_module(module.name)
assert "rayinfer.benchmark.gpu.suite" in sys.modules
assert "triton" not in sys.modules
torch.cuda.is_available = lambda: True
assert not rayinfer_kernels.configure_gpu()
from rayinfer_kernels.gpu import language
from rayinfer_kernels.gpu.decode_attention import decode_attention
from rayinfer_kernels.gpu.paged_cache import allocate_paged_cache
assert not language.HAS_TRITON and not language.IS_INTERPRETED
cache = allocate_paged_cache(1, 16, 1, 64, torch.float32, torch.device("cpu"))
one = torch.ones(1, dtype=torch.int32)
try:
    decode_attention(torch.zeros(1, 1, 64), cache, one[None] - 1, one, 1.0)
except RuntimeError as error:
    print(error)
"""


def test_everything_imports_and_a_launch_says_what_is_missing():
    folders = [str(Path(next(iter(rayinfer_kernels.__path__))).parent), *sys.path]
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {folders}\n{PROGRAM}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "Triton is not installed" in run.stdout
