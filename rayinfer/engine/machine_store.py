"""The machine's KV block store of one engine: which settings have it, which blocks are its own, and its opening."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path

import torch
import xxhash

import rayinfer_kernels
from rayinfer import __version__
from rayinfer.config import EngineConfig, cache_folder, kv_store_folder, shared_memory_folder
from rayinfer.engine.worker.resolved_config import ResolvedConfig
from rayinfer.errors import ConfigError
from rayinfer.kv_cache.cache_tensors import BlockShape
from rayinfer.kv_cache.pool_pages import BlockViews
from rayinfer.kv_store.file_format import IDENTITY_BYTES
from rayinfer.kv_store.store import KVBlockStore
from rayinfer.kv_store.store_files import open_slot_file
from rayinfer.kv_store.transfers import BlockTransfers
from rayinfer.kv_transfer.stored_blocks import StoredBlocks
from rayinfer.models.model_config import ModelConfig
from rayinfer.optimization.checkpoint_digest import checkpoint_digest
from rayinfer.optimization.packed_weights import CALIBRATED, DIGESTS
from rayinfer_kernels import ops

_GIB = 1 << 30
_MOST_PIECES = 1024  # of a block, that one call of the system copies (IOV_MAX)


def check_store_settings(config: EngineConfig, model: ModelConfig, device: torch.device) -> None:
    """Raise ConfigError where `kv_store_gib` is given to an engine that has no such store."""
    if config.kv_store_gib is None:
        return
    if model.seq2seq is not None:
        raise ConfigError("kv_store_gib is for decoders: blocks of an encoder-decoder depend on its source")
    if config.engine == "static":
        raise ConfigError("kv_store_gib needs engine 'dynamic': a static engine's blocks are those of its batch")
    if config.num_ranks > 1:
        raise ConfigError(f"kv_store_gib needs an engine of one rank, this one has {config.num_ranks}")
    if device.type != "cpu":
        raise ConfigError(f"kv_store_gib is for engines on a CPU so far, this one runs on {device.type}")


def open_transfers(
    config: ResolvedConfig,
    folder: Path,
    shape: BlockShape,
    views: Callable[[], BlockViews],
    *,
    longest_sequence: int,
    kernels: str,
) -> BlockTransfers:
    """Open the store of the weights that are in the folder now; raises ConfigError."""
    assert config.kv_store_gib is not None
    if len(views()) > _MOST_PIECES:
        raise ConfigError(f"kv_store_gib: a block of this model has {len(views())} parts, more than {_MOST_PIECES}")
    memory_folder, memory_bytes = shared_memory_folder(), int(config.kv_store_gib * _GIB)
    _check_fits("kv_store_gib", memory_bytes, memory_folder, "more shared memory (Docker: --shm-size)")
    identity = _identity(config, folder, shape, longest_sequence, kernels)
    open_file = partial(open_slot_file, identity=identity, label=config.model, block_bytes=shape.num_bytes)
    if config.kv_store_disk_gib is None:
        memory = open_file(memory_folder, max_bytes=memory_bytes)
        return BlockTransfers(KVBlockStore(memory, persists=config.kv_store_persists), views, config.block_size)
    disk_folder = Path(config.kv_store_folder) if config.kv_store_folder else kv_store_folder()
    disk_bytes = int(config.kv_store_disk_gib * _GIB)
    _check_fits("kv_store_disk_gib", disk_bytes, disk_folder, "another kv_store_folder")
    memory = open_file(memory_folder, max_bytes=memory_bytes)
    try:
        disk = open_file(disk_folder, max_bytes=disk_bytes)
    except ConfigError:
        memory.close()
        raise
    store = KVBlockStore(memory, disk, persists=config.kv_store_persists)
    return BlockTransfers(store, views, config.block_size)


def open_stored_blocks(
    config: ResolvedConfig, folder: Path, shape: BlockShape, *, longest_sequence: int, kernels: str
) -> StoredBlocks:
    """Open the same files once more, for threads that move blocks between machines; raises ConfigError."""
    assert config.kv_store_gib is not None
    identity = _identity(config, folder, shape, longest_sequence, kernels)
    open_file = partial(open_slot_file, identity=identity, label=config.model, block_bytes=shape.num_bytes)
    memory = open_file(shared_memory_folder(), max_bytes=int(config.kv_store_gib * _GIB))
    if config.kv_store_disk_gib is None:
        return StoredBlocks(identity, memory)
    disk_folder = Path(config.kv_store_folder) if config.kv_store_folder else kv_store_folder()
    try:
        disk = open_file(disk_folder, max_bytes=int(config.kv_store_disk_gib * _GIB))
    except ConfigError:
        memory.close()
        raise
    return StoredBlocks(identity, memory, disk)


def _check_fits(name: str, num_bytes: int, folder: Path, remedy: str) -> None:
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    total = shutil.disk_usage(there).total
    if num_bytes > total:
        size = f"{total / _GIB:.1f} GiB"
        raise ConfigError(f"{name} {num_bytes / _GIB:g} is more than the {size} of {there}: give {remedy}")


def _identity(config: ResolvedConfig, folder: Path, shape: BlockShape, longest_sequence: int, kernels: str) -> bytes:
    """Digest all that a block's bytes depend on besides its salt and tokens."""
    facts = {
        "version": __version__,
        "weights": _weights_digest(config, folder),
        "load_format": config.load_format,
        "dtype": config.dtype,
        "quantization": config.quantization,
        "calibration": CALIBRATED.get(config.quantization),
        "packing": ops.LAYOUT_VERSION,
        "longest_sequence": longest_sequence,  # on which some rotary scalings depend
        "block": [shape.num_layers, shape.block_size, shape.num_kv_heads, shape.head_dim, str(shape.dtype)],
        "kernels": [kernels, _kernels_digest()],
    }
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=IDENTITY_BYTES).digest()


def _weights_digest(config: ResolvedConfig, folder: Path) -> str:
    if config.load_format == "dummy":  # they follow from the configuration
        return xxhash.xxh3_128_hexdigest((folder / "config.json").read_bytes())
    return checkpoint_digest(folder, cache_folder() / "packed" / DIGESTS)


def _kernels_digest() -> str:
    """Digest the code that computes blocks."""
    status = rayinfer_kernels.cpu_kernels_status()
    if not status.is_active:
        return torch.__version__
    return xxhash.xxh3_128_hexdigest(Path(status.detail).read_bytes())
