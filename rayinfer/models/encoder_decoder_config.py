"""Encoder-decoder settings of config.json: the decoder's shape, and how outputs begin and end."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rayinfer.models.config_fields import RawConfig, first_name

# The common word for a field, and the words for it in the checkpoints, the decoder's own first.
_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "hidden_size": ("d_model",),
        "num_attention_heads": ("decoder_attention_heads", "num_heads"),
        "head_dim": ("d_kv",),
        "intermediate_size": ("decoder_ffn_dim", "d_ff"),
        "num_hidden_layers": ("decoder_layers", "num_decoder_layers", "num_layers"),
        "max_position_embeddings": ("n_positions",),
        "rms_norm_eps": ("layer_norm_epsilon",),
        "hidden_act": ("activation_function", "feed_forward_proj"),
    }
)
# What transformers takes for granted of T5: relative positions have no last one, but it was trained on so many.
_DEFAULTS: RawConfig = MappingProxyType(
    {"max_position_embeddings": 512, "tie_word_embeddings": True, "feed_forward_proj": "relu"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seq2SeqSettings:
    """An encoder-decoder's outputs: first token, tokens never generated, and forced last token."""

    start_token_id: int
    bad_token_sequences: tuple[tuple[int, ...], ...] = ()
    forced_end_token_id: int | None = None  # the last token of an output that has grown as long as it may


def in_common_words(raw: RawConfig) -> RawConfig:
    """Add the decoder's shape under the names that decoder-only models have."""
    common = dict(_DEFAULTS) | dict(raw)
    for word, theirs in _WORDS.items():
        if name := next((name for name in theirs if common.get(name) is not None), None):
            common[word] = common[name]
    if "scale_decoder_outputs" in raw:  # transformers 5 calls every T5 tied; this field is true where it is
        common["tie_word_embeddings"] = raw["scale_decoder_outputs"]
    return common


def read_seq2seq_settings(raw: RawConfig, generation: RawConfig) -> Seq2SeqSettings:
    """Read what generation_config.json decides, or else config.json; raises KeyError or ValueError with a field."""
    both = {**raw, **{name: value for name, value in generation.items() if value is not None}}
    forced = both.get("forced_eos_token_id")
    bad_words = both.get("bad_words_ids") or []
    return Seq2SeqSettings(
        start_token_id=_token_id(both, first_name(both, "decoder_start_token_id")),
        bad_token_sequences=tuple(tuple(int(token_id) for token_id in sequence) for sequence in bad_words),
        forced_end_token_id=None if forced is None else _token_id(both, "forced_eos_token_id"),
    )


def _token_id(raw: Mapping[str, Any], name: str) -> int:
    value = raw[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a token id, got {value!r}")
    return value
