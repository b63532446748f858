"""Footprint of a model: parameters by what reads them, bytes of weights, and bytes of keys and values."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import torch

from rayinfer.benchmark.gpu.model_shapes import SHAPES, write_shape
from rayinfer.errors import ConfigError
from rayinfer.images.headers import ImageSize
from rayinfer.layers.embedding import PositionEmbedding, TokenEmbedding
from rayinfer.layers.expert_linear import ExpertLinear
from rayinfer.models.checkpoints.hub import fetch_config, is_repo_id
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.models.config_fields import count
from rayinfer.models.loader import empty_decoder
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.models.predictor_kind import predictor_kind
from rayinfer.planning.image_footprint import DEFAULT_SIZE, ImageFootprint, image_footprint

# Bytes of a weight: scales included, one float32 for each output of eight bits, two bytes for 32 weights of four.
LAYER_BYTES: Mapping[str, float] = MappingProxyType({"int8": 1.01, "int8-dynamic": 1.01, "fp8": 1.01, "int4": 0.5625})
HEAD_BYTES: Mapping[str, float] = MappingProxyType({"int8": 1.01, "int8-dynamic": 1.01, "int4": 1.01})
FLOAT_BYTES: Mapping[str, int] = MappingProxyType({"float32": 4, "bfloat16": 2, "float16": 2})
# Bytes of a number in the cache, with a float32 scale for each token's key and value of a head of eight bits.
CACHE_BYTES: Mapping[str, float] = MappingProxyType({"int8": 1.0625, "fp8": 1.0})


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFootprint:
    """Counts of one model; `active` parameters are those that one token is multiplied by."""

    name: str
    num_layers: int
    num_heads: int
    head_dim: int
    vocab_size: int
    longest_sequence: int
    layer_parameters: int
    active_layer_parameters: int
    head_parameters: int  # of the output head, which may also be the embedding
    other_parameters: int  # embeddings of their own: gathered, not multiplied
    kv_numbers_per_token: int
    weight_bytes: float
    active_weight_bytes: float  # that one decoding step of one request reads
    kv_bytes_per_token: float
    images: ImageFootprint | None = None  # the vision half, which is not in the other figures; None without one

    @property
    def operations_per_token(self) -> float:
        """Return the multiplications and additions of a token in the layers, without attention and head."""
        return 2.0 * self.active_layer_parameters

    @property
    def head_operations(self) -> float:
        """Return the multiplications and additions of one token's logits."""
        return 2.0 * self.head_parameters

    def attention_operations(self, num_tokens: int) -> float:
        """Return the multiplications and additions of attention over a whole prompt."""
        return 4.0 * self.num_layers * self.num_heads * self.head_dim * num_tokens * (num_tokens + 1) / 2


def footprint_of(
    model: str,
    *,
    dtype: str = "auto",
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    image_size: ImageSize = DEFAULT_SIZE,
) -> ModelFootprint:
    """Count a model by its config.json; raises ModelNotFound, ModelLoadError and ConfigError.

    `model` is whatever `rayinfer serve` takes, a config.json, or the name of a known shape. Images have `image_size`.
    """
    if model in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            return _count(write_shape(SHAPES[model], Path(folder)), model, dtype, quantization, kv_cache_dtype)
    found = _config_folder(model)
    counted = _count(found, model, dtype, quantization, kv_cache_dtype)
    config = read_model_config(found)
    floats = FLOAT_BYTES[config.dtype if dtype == "auto" else dtype]
    return replace(counted, images=image_footprint(found, config.hidden_size, floats, image_size))


def _config_folder(model: str) -> Path:
    path = Path(model).expanduser()
    if path.name == "config.json" and path.is_file():
        return path.absolute().parent
    if (path / "config.json").is_file():
        return path.absolute()
    if not path.exists() and is_repo_id(model):
        return fetch_config(model)
    return resolve_model(model)


def _count(folder: Path, name: str, dtype: str, quantization: str | None, kv_cache_dtype: str) -> ModelFootprint:
    kind = predictor_kind(folder)
    config = read_model_config(folder)
    if kind is not None or config.seq2seq is not None:
        raise ConfigError(
            f"{name}: plans are made for models that generate with a decoder alone, this is {_what(kind)}"
        )
    decoder = empty_decoder(folder)
    assert isinstance(decoder, torch.nn.Module)
    layers, active, head, others = 0, 0.0, 0, 0
    for module in decoder.modules():
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        if isinstance(module, TokenEmbedding):
            head, others = (head + own, others) if config.tie_word_embeddings else (head, others + own)
        elif isinstance(module, PositionEmbedding):
            others += own
        elif _is_head(module, config):
            head += own
        else:
            layers += own
            active += own * _active_share(module, config)
    floats = FLOAT_BYTES[config.dtype if dtype == "auto" else dtype]
    layer_bytes = LAYER_BYTES.get(quantization or "", floats)
    head_bytes = HEAD_BYTES.get(quantization or "", floats)
    kv_numbers = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return ModelFootprint(
        name=name,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        longest_sequence=config.longest_sequence,
        layer_parameters=layers,
        active_layer_parameters=round(active),
        head_parameters=head,
        other_parameters=others,
        kv_numbers_per_token=kv_numbers,
        weight_bytes=layers * layer_bytes + head * head_bytes + others * floats,
        active_weight_bytes=active * layer_bytes + head * head_bytes,
        kv_bytes_per_token=kv_numbers * CACHE_BYTES.get(kv_cache_dtype, floats),
    )


def _what(kind: str | None) -> str:
    return "an encoder-decoder" if kind is None else f"a predictor ({kind})"


def _is_head(module: torch.nn.Module, config: ModelConfig) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.nn.Parameter) and weight.shape == (config.vocab_size, config.hidden_size)


def _active_share(module: torch.nn.Module, config: ModelConfig) -> float:
    """Return the share of a module's weights that one token is multiplied by."""
    if not isinstance(module, ExpertLinear):
        return 1.0
    return count(config.raw, "num_experts_per_tok") / count(config.raw, "num_local_experts", "num_experts")
