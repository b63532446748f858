"""Quantisation modes that a device supports."""

import torch

from rayinfer.config import EngineConfig
from rayinfer.errors import ConfigError
from rayinfer.optimization.quantization import FP8
from rayinfer_kernels import ops


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
