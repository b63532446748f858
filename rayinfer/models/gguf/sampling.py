"""Sampling keys of a GGUF file's metadata, under their names in generation_config.json (no torch here)."""

from typing import Any

from rayinfer.models.gguf.gguf_file import GgufFile
from rayinfer.models.gguf.rope import shortest

_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def sampling_keys(source: GgufFile) -> dict[str, Any]:
    """Read the sampling parameters that the model's makers recommend; the other samplers of llama.cpp are left out."""
    values = {name: source.get(key) for key, name in _SAMPLING_KEYS.items()}
    return {
        name: shortest(value) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None
    }
