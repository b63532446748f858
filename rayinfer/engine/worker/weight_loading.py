"""Loading of a rank's weights, now and after a sleep at level 2."""

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from rayinfer.config import EngineConfig, cache_folder, packed_cache_bytes
from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.models.decoder import Decoder
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.models.random_weights import random_decoder
from rayinfer.optimization.packed_cache import PackedCache
from rayinfer.optimization.packed_weights import load_packed_decoder
from rayinfer.tensor_parallel import Shard


def weight_loader(
    config: EngineConfig, folder: Path, dtype: torch.dtype, device: torch.device, shard: Shard
) -> Callable[[], Decoder]:
    """Make the function that loads the weights."""
    if config.load_format == "dummy":
        if config.quantization is not None:
            raise ConfigError("quantization needs real weights: load_format must not be dummy")
        return partial(random_decoder, folder, dtype, device, shard)
    if config.load_format == "gguf":
        if config.quantization is not None or device.type != "cpu":
            raise ConfigError("load_format gguf keeps weights as they are, on CPUs: it takes no quantization")
        # By name: what reads the files is not needed elsewhere.
        folder = importlib.import_module("rayinfer.models.gguf.kept_blocks").folder_with_blocks(folder)
    return partial(
        load_packed_decoder,
        folder,
        dtype,
        device,
        quantization=config.quantization,
        cache=PackedCache(cache_folder() / "packed", max_bytes=packed_cache_bytes()),
        shard=shard,
    )


def reload_weights(
    load: Callable[[], Decoder], prepare: Callable[[Decoder], None], folder: Path, model: ModelConfig
) -> Decoder:
    """Load the weights anew; raises ModelLoadError when the model's configuration has changed."""
    if read_model_config(folder) != model:
        raise ModelLoadError(f"{folder}: config.json is not what it was when the engine was built")
    decoder = load()
    prepare(decoder)
    return decoder
