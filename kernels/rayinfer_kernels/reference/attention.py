"""Paged attention, one request at a time."""

import torch
import torch.nn.functional as F

from rayinfer_kernels.kv_cache import KVCache


def write_kv(key: torch.Tensor, value: torch.Tensor, kv_cache: KVCache, slots: torch.Tensor) -> None:
    """Put key and value [num_tokens, num_kv_heads, head_dim] at `slots` [num_tokens] (block x block_size + offset)."""
    block, offset = slots // kv_cache.block_size, slots % kv_cache.block_size
    if kv_cache.scales is not None:
        key, kv_cache.scales.key.mT[block, offset] = _in_eight_bits(key)
        value, kv_cache.scales.value.mT[block, offset] = _in_eight_bits(value)
    padding = (0, kv_cache.padded_dim - key.shape[-1])
    in_pairs = kv_cache.key.shape[-1]
    # [num_blocks, block_size, num_kv_heads, padded_dim / in_pairs, in_pairs]
    keys = kv_cache.key.permute(0, 3, 1, 2, 4)
    keys[block, offset] = F.pad(key, padding).view(*key.shape[:2], -1, in_pairs)
    # [num_blocks, block_size / in_pairs, in_pairs, num_kv_heads, padded_dim]
    values = kv_cache.value.permute(0, 2, 4, 1, 3)
    values[block, offset // in_pairs, offset % in_pairs] = F.pad(value, padding)


def _in_eight_bits(heads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round [num_tokens, num_kv_heads, head_dim] to int8, and say by which scales [num_tokens, num_kv_heads]."""
    heads = heads.float()
    scales = heads.abs().amax(-1) / 127
    return (heads / scales.where(scales > 0, 1.0)[..., None]).round().to(torch.int8), scales


def paged_attention(
    query: torch.Tensor,
    kv_cache: KVCache,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lengths: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    position_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend causally from each request's last tokens to all of its tokens in the cache.

    query [num_tokens, num_heads, head_dim] holds the requests' new tokens one after the other, request i's from
    query_starts[i] to query_starts[i + 1]; block_tables [num_requests, max_blocks] and context_lengths [num_requests]
    say where its keys lie and how many there are, the new tokens included. Returns the shape of query.
    """
    out = torch.empty_like(query)
    starts, lengths = query_starts.tolist(), context_lengths.tolist()
    for i, length in enumerate(lengths):
        q = query[starts[i] : starts[i + 1]].transpose(0, 1).float()  # [num_heads, num_queries, head_dim]
        blocks = block_tables[i, : -(-length // kv_cache.block_size)].long()
        key = kv_cache.key[blocks].permute(1, 0, 3, 2, 4).flatten(3).flatten(1, 2)  # [num_kv_heads, tokens, padded_dim]
        value = kv_cache.value[blocks].permute(1, 0, 2, 4, 3).flatten(1, 3)
        key, value = (cached[:, :length, : q.shape[-1]].float() for cached in (key, value))
        if kv_cache.scales is not None:
            scales = (kv_cache.scales.key, kv_cache.scales.value)
            key_scales, value_scales = (part[blocks].transpose(0, 1).flatten(1)[:, :length, None] for part in scales)
            key, value = key * key_scales, value * value_scales
        group = q.shape[0] // key.shape[0]
        scores = q @ key.repeat_interleave(group, 0).mT * scale  # [num_heads, num_queries, length]
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        distance = torch.arange(length - q.shape[1], length)[:, None] - torch.arange(length)
        if position_bias is not None:
            scores += position_bias[:, distance.clamp(0, position_bias.shape[1] - 1)]
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        weights = scores.masked_fill(hidden.to(scores.device), float("-inf")).softmax(-1)
        out[starts[i] : starts[i + 1]] = (weights @ value.repeat_interleave(group, 0)).transpose(0, 1).to(out.dtype)
    return out
