"""Loads a decoder with weights ready for the kernels: quantised and packed, from the cache if possible."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from rayinfer.errors import ConfigError
from rayinfer.layers.matrix import pack_matrices
from rayinfer.models.checkpoints.model_folder import weight_files
from rayinfer.models.decoder import Decoder
from rayinfer.models.loader import empty_decoder, load_decoder
from rayinfer.models.sharding import entry_name
from rayinfer.optimization.calibrated_weights import CALIBRATION_VERSION
from rayinfer.optimization.checkpoint_digest import checkpoint_digest
from rayinfer.optimization.packed_cache import PackedCache, entry_key
from rayinfer.optimization.packed_model import fill_model, stored_model, structure_of
from rayinfer.optimization.quantization import (
    FP8,
    INT4,
    INT8_DYNAMIC,
    check_can_quantize,
    load_float8_decoder,
    quantize_decoder,
    quantize_share,
)
from rayinfer.optimization.smoothing import SMOOTHING_VERSION
from rayinfer.optimization.tensor_file import StoredTensors
from rayinfer.start_steps import start_step
from rayinfer.tensor_parallel import UNSHARDED, Shard
from rayinfer_kernels import ops

WORTH_KEEPING_BYTES = 32 << 20  # of a checkpoint: a smaller one is packed in less time than it takes to look it up
DIGESTS = "digests"
# By mode, how its numbers are chosen where that takes a look at what the model computes.
CALIBRATED: Mapping[str | None, int] = MappingProxyType({INT4: CALIBRATION_VERSION, INT8_DYNAMIC: SMOOTHING_VERSION})


def load_ready_decoder(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    *,
    quantization: str | None,
    cache: PackedCache,
    worth_keeping_bytes: int = WORTH_KEEPING_BYTES,
    share: Shard = UNSHARDED,
) -> Decoder:
    """Build the checkpoint's decoder, or one rank's share, and fill it; the cache's weights lie in mapped memory.

    Raises ModelLoadError and ConfigError as `load_decoder` does, and ConfigError for a model that cannot be quantised.
    """
    if device.type != "cpu":
        if quantization is None:
            with start_step("reading the checkpoint"):
                return load_decoder(folder, dtype, device, share)
        if quantization != FP8:
            raise ConfigError(f"quantization {quantization!r} needs a CPU, and this engine runs on {device.type}")
        check_can_quantize(empty_decoder(folder), quantization)
        with start_step("reading the checkpoint"):
            return load_float8_decoder(folder, dtype, device, share)
    if quantization == FP8:
        raise ConfigError(f"quantization {quantization!r} needs a GPU, and this engine runs on {device.type}")
    if quantization is not None:
        check_can_quantize(empty_decoder(folder), quantization)

    checkpoint_bytes = sum(file.stat().st_size for file in weight_files(folder))
    decoder: Any = empty_decoder(folder, share)
    decoder.to(dtype)

    def build() -> StoredTensors:
        return _stored(folder, dtype, quantization, share, load_whole)

    def load_whole() -> Decoder:
        return load_ready_decoder(folder, dtype, device, quantization=quantization, cache=cache)

    if quantization not in CALIBRATED and checkpoint_bytes < worth_keeping_bytes:
        stored = build()
    else:
        with start_step("checking which checkpoint it is"):
            checkpoint = checkpoint_digest(folder, cache.folder / DIGESTS)
        key = entry_key(
            structure=structure_of(decoder) + entry_name(share),
            checkpoint=checkpoint,
            dtype=str(dtype),
            quantization=quantization,
            layout=ops.LAYOUT_VERSION,
            packs_floats=ops.pack_weight(torch.zeros(1, 4, dtype=dtype)) is not None,
            calibration=CALIBRATED.get(quantization),
        )
        stored = cache.fetch(key, build)
    with start_step("mapping packed weights"):
        fill_model(decoder, stored)
    return decoder  # type: ignore[no-any-return]


def _stored(
    folder: Path, dtype: torch.dtype, quantization: str | None, share: Shard, load_whole: Callable[[], Decoder]
) -> StoredTensors:
    with start_step("reading the checkpoint"):
        decoder: Any = load_decoder(folder, dtype, torch.device("cpu"), share)
    if quantization is not None:
        with start_step(f"quantizing weights to {quantization}"):
            if share.is_whole:
                quantize_decoder(decoder, quantization, folder, dtype)
            else:
                quantize_share(decoder, quantization, folder, dtype, share, load_whole)
    with start_step("packing weights"):
        pack_matrices(decoder)
        return stored_model(decoder)
