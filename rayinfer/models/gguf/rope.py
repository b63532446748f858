"""Reads RoPE settings from a GGUF file's metadata, as `rope_parameters` of config.json (no torch here)."""

from typing import Any

import numpy as np

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.gguf.gguf_file import GgufFile

# Factors of each frequency, kept as tensors: Llama 3's long-context rotation, and longrope's two sets.
ROPE_FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
ROPE_TENSORS = frozenset({ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS})

LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def rope_parameters(source: GgufFile) -> dict[str, Any]:
    """Translate the metadata, or what llama.cpp made of the parameters; raises UnsupportedArchitecture."""
    kind = source.require("general.architecture")
    theta = shortest(source.get(f"{kind}.rope.freq_base", 10000.0))
    scaling = source.get(f"{kind}.rope.scaling.type", "none")
    if ROPE_FACTORS in source.tensor_names:
        return {"rope_theta": theta, "rope_type": "llama3", **_llama3_rope(source, theta)}
    if LONG_FACTORS in source.tensor_names:
        return {"rope_theta": theta, "rope_type": "longrope", **_longrope(source, kind)}
    match scaling:
        case "none":
            return {"rope_theta": theta, "rope_type": "default"}
        case "linear":
            factor = shortest(source.require(f"{kind}.rope.scaling.factor"))
            return {"rope_theta": theta, "rope_type": "linear", "factor": factor}
        case "yarn":
            return {"rope_theta": theta, "rope_type": "yarn", **_yarn(source, kind)}
    raise UnsupportedArchitecture(f"{source.path}: the rotary scaling {scaling!r} is not supported")


def shortest(value: float) -> float:
    """Return the shortest decimal that rounds to this float32, such as 1e-05."""
    return float(str(np.float32(value)))


def _llama3_rope(source: GgufFile, theta: float) -> dict[str, float]:
    """Find the parameters that give the file's factors; refuse factors that Llama 3's rule cannot give."""
    factors = source.read(ROPE_FACTORS)
    factor = round(float(factors.max()), 3)
    low, high, original = LLAMA3_ROPE.values()
    wavelengths = 2 * np.pi * theta ** (np.arange(factors.size) / factors.size)
    kept = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)  # 1 where the frequency stays as it is
    if not np.allclose(factors, 1 / ((1 - kept) / factor + kept), rtol=1e-3):
        raise UnsupportedArchitecture(f"{source.path}: the factors in {ROPE_FACTORS!r} are not Llama 3's")
    return {"factor": factor, **LLAMA3_ROPE}


def _longrope(source: GgufFile, kind: str) -> dict[str, Any]:
    # The amplitude that the file carries, too, follows from the lengths.
    return {
        "short_factor": [shortest(factor) for factor in source.read(SHORT_FACTORS)],
        "long_factor": [shortest(factor) for factor in source.read(LONG_FACTORS)],
        "original_max_position_embeddings": source.require(f"{kind}.rope.scaling.original_context_length"),
    }


def _yarn(source: GgufFile, kind: str) -> dict[str, Any]:
    amplitude = source.get(f"{kind}.rope.scaling.attn_factor", 1.0)
    if amplitude != 1:  # llama.cpp multiplies yarn's own by it
        raise UnsupportedArchitecture(f"{source.path}: yarn with the amplitude {shortest(amplitude)} is not supported")
    rope = {
        "factor": shortest(source.require(f"{kind}.rope.scaling.factor")),
        "original_max_position_embeddings": source.require(f"{kind}.rope.scaling.original_context_length"),
    }
    for name in ("beta_fast", "beta_slow"):
        if (value := source.get(f"{kind}.rope.scaling.yarn_{name}")) is not None:
            rope[name] = shortest(value)
    return rope
