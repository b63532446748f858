"""A checkpoint's config.json, validated and under one set of names."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.architectures.registry import check_architecture
from rayinfer.models.config_fields import RawConfig, count, flag, number, read_json
from rayinfer.models.encoder_decoder_config import Seq2SeqSettings, in_common_words, read_seq2seq_settings
from rayinfer.models.rope_settings import read_rope, stretched_length

# Fields that published checkpoints leave to transformers' defaults, by their `model_type`.
_FAMILY_DEFAULTS: Mapping[str, RawConfig] = MappingProxyType(
    {
        "gemma3_text": {
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131_072,
        },
        "gpt_oss": {"rms_norm_eps": 1e-5},
        "olmo2": {"rms_norm_eps": 1e-5},
        "olmo3": {"rms_norm_eps": 1e-5},
        **{
            name: {"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0}
            for name in ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text")
        },
        "smollm3": {"tie_word_embeddings": True, "rope_theta": 2_000_000.0},
    }
)
_SHARED_FIELDS = ("dtype", "torch_dtype", "eos_token_id", "tie_word_embeddings")
_TIED_BY_THE_WHOLE = frozenset(("idefics3", "smolvlm"))  # whose text_config does not decide on tie_word_embeddings
_TIED_BY_EITHER = frozenset(("qwen2_vl", "qwen2_5_vl"))


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A decoder's shape."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope: Mapping[str, Any] = field(default_factory=dict)
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"  # the checkpoint's own
    raw: RawConfig = field(default_factory=dict)  # all of config.json, for what a single architecture knows
    seq2seq: Seq2SeqSettings | None = None  # of an encoder-decoder; the other fields are its decoder's shape

    @property
    def forced_end_token_id(self) -> int | None:
        """The last token of an output that has grown as long as it may; None where any token may be that."""
        return None if self.seq2seq is None else self.seq2seq.forced_end_token_id

    @property
    def longest_sequence(self) -> int:
        """The length that rotary scaling allows; by default sequences end at max_position_embeddings."""
        return stretched_length(self.max_position_embeddings, self.rope)


def read_model_config(folder: Path) -> ModelConfig:
    """Read config.json (and generation_config.json for the end tokens); raises ModelLoadError naming file and field."""
    file = folder / "config.json"
    raw = read_json(file)
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise UnsupportedArchitecture(f"{file}: no architecture is named")
    check_architecture(str(architectures[0]))  # before its fields, which others have other words for
    generation = _read_generation_config(folder)
    try:
        end_token_ids = _end_token_ids(raw, generation)
        if raw.get("is_encoder_decoder"):
            seq2seq = read_seq2seq_settings(raw, generation)
            return replace(_from_raw(in_common_words(raw), str(architectures[0]), end_token_ids), seq2seq=seq2seq)
        return _from_raw(language_model_config(raw), str(architectures[0]), end_token_ids)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{file}: missing or wrong field: {error}") from None


def model_config_of(folder: Path, architecture: str) -> ModelConfig:
    """Read the config.json of what is no model by itself, whose architecture is known; raises ModelLoadError."""
    file = folder / "config.json"
    try:
        return _from_raw(read_json(file), architecture, ())
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{file}: missing or wrong field: {error}") from None


def _from_raw(raw: Mapping[str, Any], architecture: str, eos_token_ids: tuple[int, ...]) -> ModelConfig:
    num_heads, hidden_size = count(raw, "num_attention_heads", "n_head"), count(raw, "hidden_size", "n_embd")
    num_kv_heads = count(raw, "num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise ValueError(f"num_attention_heads {num_heads} is no multiple of num_key_value_heads {num_kv_heads}")
    if raw.get("head_dim") is None and hidden_size % num_heads:
        raise ValueError(f"hidden_size {hidden_size} is no multiple of num_attention_heads {num_heads}")
    head_dim = count(raw, "head_dim", default=hidden_size // num_heads)
    if head_dim % 2:
        raise ValueError(f"head_dim must be even, got {head_dim}")
    inner = 4 * hidden_size if "n_embd" in raw else None  # GPT-2's checkpoints leave it out
    return ModelConfig(
        architecture=architecture,
        vocab_size=count(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=count(raw, "intermediate_size", "n_inner", default=inner),
        num_layers=count(raw, "num_hidden_layers", "n_layer"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=count(raw, "max_position_embeddings", "n_positions"),
        rms_norm_eps=number(raw, "rms_norm_eps", default=1e-6),
        rope=read_rope(raw, head_dim),
        hidden_act=str(raw.get("hidden_act", "silu")),
        attention_bias=flag(raw, "attention_bias"),
        mlp_bias=flag(raw, "mlp_bias"),
        tie_word_embeddings=flag(raw, "tie_word_embeddings"),
        eos_token_ids=eos_token_ids,
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        raw=raw,
    )


def _read_generation_config(folder: Path) -> RawConfig:
    file = folder / "generation_config.json"
    return read_json(file) if file.is_file() else {}


def _end_token_ids(raw: RawConfig, generation: RawConfig) -> tuple[int, ...]:
    """Read the end tokens; generation_config.json goes first, as in transformers."""
    ids = generation.get("eos_token_id")
    ids = raw.get("eos_token_id") if ids is None else ids
    if ids is None:
        return ()
    return tuple(int(token_id) for token_id in (ids if isinstance(ids, list) else [ids]))


def language_model_config(raw: RawConfig) -> RawConfig:
    """Return `text_config` where there is one, as in models that read images, too; else all of `raw`.

    The family's defaults are filled in. Raises ValueError when `text_config` is no object.
    """
    part = raw.get("text_config")
    if part is None:
        part = raw
    if not isinstance(part, Mapping):
        raise ValueError(f"text_config must be an object, got {part!r}")
    shared = {name: raw[name] for name in _SHARED_FIELDS if name in raw}
    elsewhere = {**_FAMILY_DEFAULTS.get(str(part.get("model_type")), {}), **shared}
    merged = {**part, **{name: value for name, value in elsewhere.items() if part.get(name) is None}}
    if raw.get("model_type") in _TIED_BY_THE_WHOLE:
        merged["tie_word_embeddings"] = raw.get("tie_word_embeddings", False)
    if raw.get("model_type") in _TIED_BY_EITHER:
        merged["tie_word_embeddings"] = bool(raw.get("tie_word_embeddings") or part.get("tie_word_embeddings"))
    return merged
