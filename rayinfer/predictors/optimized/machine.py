"""Machine that a form was made on, and checks that this one can run it."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.predictors.optimized.manifest import Manifest

PACKAGES = ("rayinfer", "torch", "transformers", "onnx", "onnxruntime")
FP16_FLAGS = frozenset(("avx512_fp16", "amx_fp16"))  # of processors that compute in float16


def describe_machine(device: torch.device) -> dict[str, str]:
    """Return the device and its instruction set."""
    if device.type == "cuda":
        return {"device": "cuda", "capability": torch.cuda.get_device_name(device)}
    return {"device": "cpu", "capability": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"}


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that forms depend on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def check_machine(manifest: Manifest, device: torch.device) -> None:
    """Raise ModelLoadError where compiled code was made for another machine or another torch."""
    if manifest.chosen.form.name != "aoti":
        return
    here = describe_machine(device)
    if manifest.machine != here:
        raise ModelLoadError(f"this AOTInductor package was compiled for {manifest.machine}, and this is {here}:"
                             " optimize the model here")  # fmt: skip
    if manifest.versions.get("torch") != installed_versions().get("torch"):
        raise ModelLoadError(
            f"this AOTInductor package was compiled by torch {manifest.versions.get('torch')}, not by"
            f" {installed_versions().get('torch')}: optimize the model again"
        )


def check_precision(form: str, device: torch.device, flags: frozenset[str] | None = None) -> None:
    """Raise ConfigError for float16 on a processor that only emulates it, by its `flags` (None: this one's)."""
    if form == "fp16" and device.type == "cpu" and not FP16_FLAGS & (_processor_flags() if flags is None else flags):
        raise ConfigError(
            "fp16 is for GPUs: this processor only emulates it, which is slow; choose bf16 or int8-dynamic"
        )


def has_vnni() -> bool:
    """Return whether the processor adds products of eight bits without a loss on their way."""
    return bool({"avx512_vnni", "avx_vnni"} & _processor_flags()) or platform.machine() in ("aarch64", "arm64")


def _processor_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())
