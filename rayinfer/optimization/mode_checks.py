"""Checks of a quantization mode: the device supports it, and its measured loss of quality is within limits."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from rayinfer.config import EngineConfig
from rayinfer.errors import ConfigError
from rayinfer.models.checkpoints.embedded_models import EMBEDDED_MODELS
from rayinfer.optimization.quantization import FP8
from rayinfer_kernels import ops

# By mode, how far perplexity may lie above float32's, in percent.
QUALITY_LIMITS: Mapping[str, float] = MappingProxyType(
    {"int8": 1.0, "int8-dynamic": 1.5, "int4": 5.0, "int8-kv": 3.0, "fp8": 3.0, "fp8-kv": 3.0}
)
GPU_MODES = ("fp8", "fp8-kv")
# By model and mode, how far it does, each model on text of its own (kernels/benchmarks/results/quality-MODEL.json,
# quality-MODEL-gpu.json for modes that run on GPUs only, quality-MODEL-MODE.json where a mode was measured later).
MEASURED: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "smollm2-135m": MappingProxyType(
            {"int8": 0.49, "int8-dynamic": 2.08, "int4": 4.04, "int8-kv": 0.16, "fp8": 3.45, "fp8-kv": 1.12}
        ),
        "stories15m": MappingProxyType({"int8": 0.23, "int8-dynamic": 0.55, "int4": 3.32, "int8-kv": -0.04}),
    }
)
# What stands for a model that was not measured: on a CPU the one whose weights were never rounded before.
STAND_IN, GPU_STAND_IN = "stories15m", "smollm2-135m"


def check_quality(
    mode: str,
    *,
    is_inaccuracy_allowed: bool,
    model: str | None = None,
    measured: Mapping[str, Mapping[str, float]] = MEASURED,
) -> None:
    """Raise ConfigError for a mode that was found to lose too much, or was not measured, unless that is allowed.

    `model` is one that was measured, from `measured_model`, or None.
    """
    if not is_inaccuracy_allowed and (reason := excess(mode, model, measured)) is not None:
        raise ConfigError(reason)


def excess(mode: str, model: str | None, measured: Mapping[str, Mapping[str, float]] = MEASURED) -> str | None:
    """Return why a mode needs `allow_inaccurate_quantization` with this model; None where it does not."""
    judged = model if model is not None else GPU_STAND_IN if mode in GPU_MODES else STAND_IN
    loss, limit = measured.get(judged, {}).get(mode), QUALITY_LIMITS[mode]
    if loss is None:
        return (
            f"what {mode} costs {judged} in perplexity has not been measured yet: set allow_inaccurate_quantization to"
            f" use it all the same, and rayinfer bench quality --modes {mode} to measure it"
        )
    if loss > limit:
        return (
            f"{mode} makes perplexity {loss:.1f} % worse than float32 ({judged}), more than the {limit:g} % that pass:"
            " set allow_inaccurate_quantization to use it all the same"
        )
    return None


def measured_model(model: str, folder: Path) -> str | None:
    """Find which measured model this is: an embedded one by name, or by the folder that it was converted into."""
    for name, embedded in EMBEDDED_MODELS.items():
        if model == name or folder.name.startswith(f"{name}-{embedded.gguf_sha256[:8]}-"):
            return name
    return None


def check_device(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> None:
    """Raise ConfigError for numbers of few bits that this device does not compute with, in a model of this type."""
    settings = {"quantization": config.quantization, "kv_cache_dtype": config.kv_cache_dtype}
    for setting, mode in settings.items():
        if mode in (None, "auto"):
            continue
        if (mode == FP8) != (device.type == "cuda"):
            needed = "a GPU" if mode == FP8 else "a CPU"
            raise ConfigError(f"{setting} {mode!r} needs {needed}, and this engine runs on a {device.type}")
        if mode == FP8:
            if setting == "kv_cache_dtype" and dtype is torch.float32:  # registers are too few for both
                raise ConfigError(f"{setting} {mode!r} needs a model in bfloat16 or float16, this one is in float32")
            check_capability(setting, torch.cuda.get_device_capability(device))


def check_capability(setting: str, capability: tuple[int, int]) -> None:
    """Raise ConfigError for a GPU whose tensor cores have no numbers of eight bits with an exponent."""
    if capability < ops.MIN_CAPABILITY:
        has, needed = (f"{major}.{minor}" for major, minor in (capability, ops.MIN_CAPABILITY))
        raise ConfigError(f"{setting} {FP8!r} needs a GPU of compute capability {needed} or above, this one has {has}")
