"""Rotation and writing to the cache, until their kernel is there by the torch reference."""

import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu.paged_cache import PagedKVCache


def rope_and_write(
    qkv: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: PagedKVCache,
    query_norm: torch.Tensor | None,
    key_norm: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Split, norm, rotate and write; returns the queries."""
    query, key, value = qkv.view(len(qkv), num_heads + 2 * num_kv_heads, -1).split(
        [num_heads, num_kv_heads, num_kv_heads], 1
    )
    query = query if query_norm is None else reference.rms_norm(query, query_norm, eps)
    key = key if key_norm is None else reference.rms_norm(key, key_norm, eps)
    dim, cos, sin = cos.shape[1], cos[positions], sin[positions]
    query, key = (
        torch.cat((reference.rotary_embedding(heads[..., :dim], cos, sin), heads[..., dim:]), -1)
        for heads in (query, key)
    )
    write_kv(key, value, cache, slots)
    return query.contiguous()


def write_kv(key: torch.Tensor, value: torch.Tensor, cache: PagedKVCache, slots: torch.Tensor) -> None:
    """See `ops.write_kv`."""
    cache.put(key, value, slots)
