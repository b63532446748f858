"""How much memory the KV pool takes, and the pool itself."""

import os

import torch

from rayinfer.config import EngineConfig
from rayinfer.errors import ConfigError
from rayinfer_kernels import ops

CPU_POOL_BYTES = 2 << 30
GPU_MEMORY_FRACTION = 0.9


def count_kv_blocks(config: EngineConfig, block_bytes: int, device: torch.device) -> int:
    """Blocks that the settings ask for or the free memory allows; `block_bytes` is one block of all layers."""
    if config.num_kv_blocks is not None:
        wanted, most = config.num_kv_blocks * block_bytes, _memory_bytes(device)
        if wanted > most:
            raise ConfigError(f"num_kv_blocks {config.num_kv_blocks} need {wanted} bytes, there are {most} at most")
        return config.num_kv_blocks
    pool_bytes = CPU_POOL_BYTES
    if config.memory_fraction is not None or device.type == "cuda":
        pool_bytes = int(free_memory_bytes(device) * (config.memory_fraction or GPU_MEMORY_FRACTION))
    num_blocks = pool_bytes // block_bytes
    if num_blocks < 1:
        raise ConfigError(f"memory_fraction leaves {pool_bytes} bytes for KV blocks of {block_bytes} bytes each")
    return num_blocks


def free_memory_bytes(device: torch.device) -> int:
    """Memory that is free now on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return free_memory_bytes(device)
    # All of it: what is in use for now may be files that give way.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def allocate_kv_caches(
    num_layers: int,
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[ops.KVCache]:
    """One pool of blocks per layer."""
    return [
        ops.allocate_kv_cache(num_blocks, block_size, num_kv_heads, head_dim, dtype, device) for _ in range(num_layers)
    ]
