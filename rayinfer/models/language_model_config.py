"""The part of a config.json that describes the language model."""

from collections.abc import Mapping
from types import MappingProxyType

from rayinfer.models.config_fields import RawConfig

# What published checkpoints leave to transformers' defaults, by their `model_type`.
_TAKEN_FOR_GRANTED: Mapping[str, RawConfig] = MappingProxyType(
    {
        "gemma3_text": {
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131_072,
        }
    }
)
_SAID_FOR_ALL_PARTS = ("dtype", "torch_dtype", "eos_token_id", "tie_word_embeddings")


def language_model_config(raw: RawConfig) -> RawConfig:
    """Return `text_config` where there is one, as in models that read images, too; else all of `raw`.

    The family's defaults are filled in. Raises ValueError when `text_config` is no object.
    """
    part = raw.get("text_config")
    if part is None:
        part = raw
    if not isinstance(part, Mapping):
        raise ValueError(f"text_config must be an object, got {part!r}")
    shared = {name: raw[name] for name in _SAID_FOR_ALL_PARTS if name in raw}
    elsewhere = {**_TAKEN_FOR_GRANTED.get(str(part.get("model_type")), {}), **shared}
    return {**part, **{name: value for name, value in elsewhere.items() if part.get(name) is None}}
