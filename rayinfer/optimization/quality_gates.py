"""How much worse than float32 a mode may be, and how much worse it was found to be."""

from collections.abc import Mapping
from types import MappingProxyType

from rayinfer.errors import ConfigError

# By mode, how far perplexity may lie above float32's, in percent.
QUALITY_LIMITS: Mapping[str, float] = MappingProxyType(
    {"int8": 1.0, "int8-dynamic": 3.0, "int4": 5.0, "int8-kv": 3.0, "fp8": 3.0, "fp8-kv": 3.0}
)
# How far it does: on stories15M (kernels/benchmarks/results/quality-stories15m.json), and modes that run on GPUs only
# on SmolLM2-135M and an H100 (quality-smollm2-135m-gpu.json there).
MEASURED: Mapping[str, float] = MappingProxyType(
    {"int8": -0.03, "int8-dynamic": 0.36, "int4": 4.37, "int8-kv": -0.02, "fp8": 3.45, "fp8-kv": 1.12}
)
GPU_MODES = ("fp8", "fp8-kv")


def check_quality(
    mode: str,
    *,
    is_inaccuracy_allowed: bool,
    measured: Mapping[str, float] = MEASURED,
    limits: Mapping[str, float] = QUALITY_LIMITS,
) -> None:
    """Raise ConfigError for a mode that was found to lose too much, or was not measured, unless that is allowed."""
    if is_inaccuracy_allowed:
        return
    if mode not in measured:
        raise ConfigError(
            f"what {mode} costs in perplexity has not been measured on a GPU yet: set allow_inaccurate_quantization to"
            f" use it all the same, and rayinfer bench quality --modes {mode} to measure it"
        )
    if measured[mode] > limits[mode]:
        model = "SmolLM2-135M" if mode in GPU_MODES else "stories15M"
        raise ConfigError(
            f"{mode} makes perplexity {measured[mode]:.1f} % worse than float32 ({model}), more than the"
            f" {limits[mode]:g} % that pass: set allow_inaccurate_quantization to use it all the same"
        )
