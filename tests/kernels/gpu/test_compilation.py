"""Every kernel compiles for a Hopper processor, which needs none: what the interpreter forgives is found here."""

import subprocess
import sys
from pathlib import Path

import rayinfer_kernels
from rayinfer_kernels.gpu.language import IS_INTERPRETED

COMPILER = Path(__file__).parents[2] / "support" / "kernels" / "hopper_compiler.py"


def test_every_kernel_compiles_without_spilling_registers():
    folder = str(Path(next(iter(rayinfer_kernels.__path__))).parent)
    run = subprocess.run(
        [sys.executable, str(COMPILER), folder], capture_output=True, text=True, timeout=600, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    kernels = {line.split()[0] for line in run.stdout.splitlines()}
    attention = {"_attend_split", "_attend_chunk", "_rope_and_write", "_write_kv"}
    rows = {
        "_rms_norm",
        "_layer_norm",
        "_activation",
        "_quantize",
        "_skinny_gemm",
        "_grouped",
        "_combine",
        "_shrink",
        "_expand",
        "_argmax",
        "_mask",
        "_best",
        "candidates",
        "_choose",
    }
    assert kernels == attention | {f"{name}_kernel" for name in rows | {"_uniform"}}
    assert IS_INTERPRETED or kernels
