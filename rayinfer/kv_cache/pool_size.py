"""Number of blocks in the KV pools, by the settings or by the available memory."""

import torch

from rayinfer.config import EngineConfig
from rayinfer.errors import ConfigError
from rayinfer.kv_cache.host_memory import available_host_bytes, host_bytes

CPU_POOL_BYTES = 2 << 30
_BYTES_TAKEN = 512 << 20  # of a pool on a CPU, however little memory is available: some 20,000 tokens of a small model
_HOST = torch.device("cpu")


def count_kv_blocks(config: EngineConfig, block_bytes: int, device: torch.device, *, reserved_bytes: int = 0) -> int:
    """Count the blocks by the settings or the free memory; `block_bytes` is one block of all layers.

    `reserved_bytes` of the free memory are kept for other uses: `memory_fraction` is of the rest.
    """
    if config.num_kv_blocks is not None:
        _check_available("num_kv_blocks", config.num_kv_blocks, config.num_kv_blocks * block_bytes, device)
        return config.num_kv_blocks
    if config.kv_cache_memory_bytes is not None:
        return _blocks_in("kv_cache_memory_bytes", config.kv_cache_memory_bytes, block_bytes, device)
    pool_bytes = CPU_POOL_BYTES
    if config.memory_fraction is not None:
        free_bytes = max(0, free_memory_bytes(device) - reserved_bytes)
        pool_bytes = int(free_bytes * config.memory_fraction)
    num_blocks = pool_bytes // block_bytes
    if num_blocks < 1:
        kept = (
            f"; steps keep {reserved_bytes} bytes: lower max_num_batched_tokens or max_num_seqs"
            if reserved_bytes
            else ""
        )
        raise ConfigError(f"memory_fraction leaves {pool_bytes} bytes for KV blocks of {block_bytes} bytes each{kept}")
    return num_blocks


def count_blocks_taken(config: EngineConfig, block_bytes: int, device: str) -> int:
    """Count the blocks that get their memory beside the steps in any case, not in the steps that write them first.

    That is all that a store loads into. More get theirs while there is `can_prefault`.
    """
    if device != "cpu":
        return 0
    return max(_BYTES_TAKEN, int((config.kv_store_gib or 0) * (1 << 30))) // max(1, block_bytes)


def can_prefault(num_bytes: int) -> bool:
    """Return whether a pool may prefault more than these bytes: at most a quarter of what was available before."""
    return 3 * num_bytes <= available_host_bytes()


def count_static_blocks(
    config: EngineConfig,
    max_model_len: int,
    block_size: int,
    block_bytes: int,
    device: torch.device,
    *,
    num_rows: int,
    reserved_bytes: int = 0,
) -> int:
    """Count the blocks for `num_rows` requests of maximal length; raises ConfigError if they do not fit."""
    for name in ("num_kv_blocks", "kv_cache_memory_bytes", "memory_fraction"):
        if getattr(config, name) is not None:
            raise ConfigError(f"{name} must be left out: a static engine's pool follows from its batch and length")
    num_blocks = num_rows * -(-max_model_len // block_size)
    wanted, most = num_blocks * block_bytes, max(0, _memory_bytes(device) - reserved_bytes)
    if wanted > most:
        raise ConfigError(
            f"{num_rows} requests at once of max_model_len {max_model_len} tokens each need {wanted} bytes, there are"
            f" {most} at most, {reserved_bytes} bytes being kept for steps: lower max_num_seqs or max_model_len"
        )
    # Admission keeps a hundredth of the pool, and one, as headroom: the last request of a full batch must fit besides.
    return num_blocks + num_blocks // 99 + 2


def count_offload_blocks(config: EngineConfig, block_bytes: int) -> int:
    """Count the blocks of the second pool, in host memory; none by default."""
    if config.kv_offload_bytes is None:
        return 0
    return _blocks_in("kv_offload_bytes", config.kv_offload_bytes, block_bytes, _HOST)


def free_memory_bytes(device: torch.device) -> int:
    """Return the free memory of the device; the host's page cache counts as free."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # torch caches what loading used temporarily
        return torch.cuda.mem_get_info(device)[0]
    return available_host_bytes()


def _blocks_in(name: str, pool_bytes: int, block_bytes: int, device: torch.device) -> int:
    _check_available(name, pool_bytes, pool_bytes, device)
    if pool_bytes < block_bytes:
        raise ConfigError(f"{name} {pool_bytes} holds no KV block: one takes {block_bytes} bytes")
    return pool_bytes // block_bytes


def _check_available(name: str, value: int, wanted: int, device: torch.device) -> None:
    most = _memory_bytes(device)
    if wanted > most:
        raise ConfigError(f"{name} {value} needs {wanted} bytes, there are {most} at most")


def _memory_bytes(device: torch.device) -> int:
    """Return all memory of a host, or a GPU's free memory."""
    return free_memory_bytes(device) if device.type == "cuda" else host_bytes()
