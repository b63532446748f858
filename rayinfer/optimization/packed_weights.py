"""Loads a decoder with weights ready for the kernels: quantized and packed, from the cache if possible."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from rayinfer.errors import ConfigError
from rayinfer.layers.matrix import pack_matrices
from rayinfer.models.checkpoints.model_folder import weight_files
from rayinfer.models.decoder import Decoder
from rayinfer.models.loader import empty_decoder, load_decoder
from rayinfer.models.quantized.formats import format_reader
from rayinfer.models.sharding import entry_name
from rayinfer.optimization.calibration import CALIBRATION_VERSION
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
    quantize_shard,
)
from rayinfer.optimization.smoothing import SMOOTHING_VERSION
from rayinfer.optimization.tensor_file import StoredTensors
from rayinfer.startup_steps import startup_step
from rayinfer.tensor_parallel import UNSHARDED, Shard
from rayinfer_kernels import ops

WORTH_KEEPING_BYTES = 32 << 20  # of a checkpoint: a smaller one is packed in less time than it takes to look it up
DIGESTS = "digests"
GROUPS_VERSION = 1  # of how published matrices are read and kept (models/quantized): raise it when that changes
# By mode, how its numbers are chosen where that takes a look at what the model computes.
CALIBRATED: Mapping[str | None, int] = MappingProxyType({INT4: CALIBRATION_VERSION, INT8_DYNAMIC: SMOOTHING_VERSION})


def load_packed_decoder(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    *,
    quantization: str | None,
    cache: PackedCache,
    worth_keeping_bytes: int = WORTH_KEEPING_BYTES,
    shard: Shard = UNSHARDED,
) -> Decoder:
    """Build the checkpoint's decoder, or one rank's shard, and fill it; the cache's weights lie in mapped memory.

    Raises ModelLoadError and ConfigError as `load_decoder` does, and ConfigError for a model that cannot be quantized.
    """
    if device.type != "cpu":
        return _load_on_gpu(folder, dtype, device, quantization, shard)
    if quantization == FP8:
        raise ConfigError(f"quantization {quantization!r} needs a GPU, and this engine runs on {device.type}")
    if quantization is not None:
        check_can_quantize(empty_decoder(folder), quantization)
    packing = _Packing(folder, dtype, quantization, cache)
    checkpoint_bytes = sum(file.stat().st_size for file in weight_files(folder))
    if quantization not in CALIBRATED and checkpoint_bytes < worth_keeping_bytes:
        return packing.pack(shard)
    return packing.fetch(shard)


def _load_on_gpu(
    folder: Path, dtype: torch.dtype, device: torch.device, quantization: str | None, shard: Shard
) -> Decoder:
    if quantization not in (None, FP8):
        raise ConfigError(f"quantization {quantization!r} needs a CPU, and this engine runs on {device.type}")
    if quantization is not None:
        check_can_quantize(empty_decoder(folder), quantization)
    with startup_step("reading the checkpoint"):
        load = load_decoder if quantization is None else load_float8_decoder
        return load(folder, dtype, device, shard)


@dataclass(frozen=True, slots=True)
class _Packing:
    """The packed weights of one checkpoint in one mode, made here or found in the cache."""

    folder: Path
    dtype: torch.dtype
    quantization: str | None
    cache: PackedCache

    def pack(self, shard: Shard) -> Decoder:
        """Load a shard, quantize it and pack it in place."""
        with startup_step("reading the checkpoint"):
            decoder: Any = load_decoder(
                self.folder, self.dtype, torch.device("cpu"), shard, keeps_quantized=self._keeps_groups
            )
        if self.quantization is not None:
            with startup_step(f"quantizing weights to {self.quantization}"):
                if shard.is_unsharded:
                    quantize_decoder(decoder, self.quantization, self.folder, self.dtype)
                else:
                    whole = partial(self.stored, UNSHARDED)
                    quantize_shard(decoder, self.quantization, self.folder, self.dtype, shard, whole)
        with startup_step("packing weights"):
            pack_matrices(decoder)
        return decoder  # type: ignore[no-any-return]

    def fetch(self, shard: Shard) -> Decoder:
        """Map a shard's entry of the cache, which is made first where there is none."""
        stored, decoder = self.stored(shard), self._skeleton(shard)
        with startup_step("mapping packed weights"):
            fill_model(decoder, stored)
        return decoder  # type: ignore[no-any-return]

    def stored(self, shard: Shard) -> StoredTensors:
        """Return a shard's entry of the cache, which is made first where there is none."""
        with startup_step("checking which checkpoint it is"):
            checkpoint = checkpoint_digest(self.folder, self.cache.folder / DIGESTS)
        key = entry_key(
            structure=structure_of(self._skeleton(shard)) + entry_name(shard),
            checkpoint=checkpoint,
            dtype=str(self.dtype),
            quantization=self.quantization,
            layout=ops.LAYOUT_VERSION,
            packs_floats=self._packs_floats,
            calibration=CALIBRATED.get(self.quantization),
            **({"groups": GROUPS_VERSION} if self._keeps_groups else {}),
        )
        return self.cache.fetch(key, lambda: stored_model(self.pack(shard)))

    @property
    def _packs_floats(self) -> bool:
        return ops.pack_weight(torch.zeros(1, 4, dtype=self.dtype)) is not None

    @property
    def _keeps_groups(self) -> bool:
        """Whether matrices that were published in groups of few bits stay as they are."""
        return self.quantization is None and self._packs_floats and format_reader(self.folder) is not None

    def _skeleton(self, shard: Shard) -> Any:
        decoder: Any = empty_decoder(self.folder, shard)
        return decoder.to(self.dtype)
