"""An encoder's config.json, validated and under one set of names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.config_fields import RawConfig, count, number, read_json
from rayinfer.models.encoders.registry import EncoderArchitecture, Family, encoder_architecture, encoder_names

MPNET_PAD_TOKEN_ID = 1  # not read from config.json
# What families leave out of config.json because it is transformers' default, where that differs from BERT's.
_DEFAULTS: Mapping[Family, RawConfig] = MappingProxyType(
    {
        "distilbert": {"layer_norm_eps": 1e-12, "hidden_act": "gelu"},
        "modernbert": {"norm_eps": 1e-5, "hidden_activation": "gelu", "max_position_embeddings": 8192},
        "nomic_bert": {"hidden_act": "silu", "max_position_embeddings": 2048},
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """An encoder's shape."""

    architecture: EncoderArchitecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_positions: int  # as the checkpoint has them; the first `position_offset` stand for no token
    position_offset: int
    num_token_types: int
    norm_eps: float
    hidden_act: str
    labels: tuple[str, ...] = ()
    dtype: str = "float32"  # the checkpoint's own
    raw: RawConfig = field(default_factory=dict)

    @property
    def head_dim(self) -> int:
        """Channels of an attention head."""
        return self.hidden_size // self.num_heads

    @property
    def has_pair_types(self) -> bool:
        """Whether types of tokens distinguish the texts of a pair; RoBERTa has types and does not use them."""
        return self.num_token_types > 1 and self.architecture.family != "roberta"

    @property
    def max_length(self) -> int:
        """Tokens of the longest text."""
        return self.num_positions - self.position_offset


def read_encoder_config(folder: Path) -> EncoderConfig:
    """Read config.json; raises ModelLoadError naming file and field, UnsupportedArchitecture what is not supported."""
    file = folder / "config.json"
    raw = read_json(file)
    architectures = raw.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    architecture = encoder_architecture(name)
    if architecture is None:
        raise UnsupportedArchitecture(
            f"{file}: architecture {name!r} is no encoder that is supported; known: {', '.join(encoder_names())}"
        )
    _check_kind(raw, file)
    try:
        return _from_raw({**_DEFAULTS.get(architecture.family, {}), **raw}, architecture)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{file}: missing or wrong field: {error}") from None


def _from_raw(raw: Mapping[str, Any], architecture: EncoderArchitecture) -> EncoderConfig:
    family = architecture.family
    hidden_size, num_heads = (
        count(raw, "hidden_size", "dim", "n_embd"),
        count(raw, "num_attention_heads", "n_heads", "n_head"),
    )
    if hidden_size % num_heads:
        raise ValueError(f"hidden_size {hidden_size} is no multiple of num_attention_heads {num_heads}")
    has_types = family in ("bert", "roberta", "nomic_bert")
    return EncoderConfig(
        architecture=architecture,
        vocab_size=count(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=count(raw, "intermediate_size", "hidden_dim", "n_inner"),
        num_layers=count(raw, "num_hidden_layers", "n_layers", "n_layer"),
        num_heads=num_heads,
        num_positions=count(raw, "max_position_embeddings", default=512),
        position_offset=_position_offset(raw, family),
        num_token_types=count(raw, "type_vocab_size", default=2) if has_types else 0,
        norm_eps=number(raw, "norm_eps" if family == "modernbert" else "layer_norm_eps", default=1e-12),
        hidden_act=_activation(raw),
        labels=read_labels(raw),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        raw=raw,
    )


def _position_offset(raw: RawConfig, family: Family) -> int:
    """RoBERTa's positions begin behind the id of the padding token."""
    if family == "mpnet":
        return MPNET_PAD_TOKEN_ID + 1
    if family != "roberta":
        return 0
    pad_token_id = raw.get("pad_token_id", 1)
    if isinstance(pad_token_id, bool) or not isinstance(pad_token_id, int) or pad_token_id < 0:
        raise ValueError(f"pad_token_id must be a token id, got {pad_token_id!r}")
    return pad_token_id + 1


def _activation(raw: RawConfig) -> str:
    return str(raw.get("hidden_activation") or raw.get("hidden_act") or raw.get("activation") or "gelu")


def read_labels(raw: RawConfig) -> tuple[str, ...]:
    """Read the names of the labels in the order of their numbers; two by default, as in transformers."""
    names = raw.get("id2label")
    if names is None:
        size = raw.get("num_labels", 2)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"num_labels must be a whole number above 0, got {size!r}")
        return tuple(f"LABEL_{index}" for index in range(size))
    if not isinstance(names, Mapping):
        raise ValueError(f"id2label must be an object, got {names!r:.80}")
    by_index = {int(index): str(label) for index, label in names.items()}
    if sorted(by_index) != list(range(len(by_index))) or not by_index:
        raise ValueError(f"id2label must number its labels from 0, got {names!r:.80}")
    return tuple(by_index[index] for index in range(len(by_index)))


def _check_kind(raw: RawConfig, file: Path) -> None:
    """Raise UnsupportedArchitecture for variations that these encoders do not have."""
    kind = raw.get("position_embedding_type", "absolute")
    if kind not in (None, "absolute", "rotary"):
        raise UnsupportedArchitecture(f"{file}: position_embedding_type {kind!r} is not supported, only absolute")
    for name in ("is_decoder", "add_cross_attention", "sinusoidal_pos_embds"):
        if raw.get(name):
            raise UnsupportedArchitecture(f"{file}: {name} is not supported by encoders")
