"""Shapes of the measured models: those of real ones, with random weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLOAT_BYTES = 2  # bfloat16
_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "num_key_value_heads": 8,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
}
_LLAMA3 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000,
}
_COMMON = {"torch_dtype": "bfloat16", "hidden_act": "silu", "attention_bias": False, "eos_token_id": 0}


def _shape(family: Mapping[str, Any], layers: int, hidden: int, heads: int, feed_forward: int, tied: bool) -> Any:
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": feed_forward,
        "tie_word_embeddings": tied,
    }
    return {**_COMMON, **family, **sizes}


SHAPES: Mapping[str, Mapping[str, Any]] = {
    "Qwen3-0.6B": _shape(_QWEN3, 28, 1024, 16, 3072, True),
    "Qwen3-8B": _shape(_QWEN3, 36, 4096, 32, 12_288, False),
    "Qwen3-14B": _shape(_QWEN3, 40, 5120, 40, 17_408, False),
    "Llama-3.2-1B": _shape(_LLAMA3, 16, 2048, 32, 8192, True),
}
_TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 512,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """Parameter counts and attention shape of a model."""

    body_parameters: int  # of all layers
    head_parameters: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def kv_numbers_per_token(self) -> int:
        """Return the count of numbers in one token's keys and values, in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


def tiny_shape(name: str) -> Mapping[str, Any]:
    """Return the same architecture in a tiny size."""
    return {**SHAPES[name], **_TINY}


def write_shape(shape: Mapping[str, Any], folder: Path) -> Path:
    """Write the config.json of a checkpoint that has no weights; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(shape), indent=2))
    return folder


def model_size(shape: Mapping[str, Any]) -> ModelSize:
    """Count the numbers of a model's matrices; norms are left out."""
    hidden, layers, heads = shape["hidden_size"], shape["num_hidden_layers"], shape["num_attention_heads"]
    head_dim = shape.get("head_dim", hidden // heads)
    kv_heads = shape["num_key_value_heads"]
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    return ModelSize(
        body_parameters=layers * (attention + 3 * hidden * shape["intermediate_size"]),
        head_parameters=hidden * shape["vocab_size"],
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
    )
