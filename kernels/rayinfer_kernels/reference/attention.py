"""Paged attention, one request at a time."""

import torch

from rayinfer_kernels.kv_cache import KVCache


def write_kv(key: torch.Tensor, value: torch.Tensor, kv_cache: KVCache, slot_mapping: torch.Tensor) -> None:
    """Put key and value [num_tokens, num_kv_heads, head_dim] at `slot_mapping` [num_tokens]."""
    kv_cache.write(key, value, slot_mapping)


def paged_attention(
    query: torch.Tensor,
    kv_cache: KVCache,
    block_tables: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    position_bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend causally from each request's last tokens to all of its tokens in the cache.

    query [num_tokens, num_heads, head_dim] holds the requests' new tokens one after the other, request i's from
    cu_seqlens_q[i] to cu_seqlens_q[i + 1]; block_tables [num_requests, max_blocks] and seq_lens [num_requests]
    say where its keys lie and how many there are, the new tokens included. Returns the shape of query.
    """
    out = torch.empty_like(query)
    starts, lengths = cu_seqlens_q.tolist(), seq_lens.tolist()
    for i, length in enumerate(lengths):
        q = query[starts[i] : starts[i + 1]].transpose(0, 1).float()  # [num_heads, num_queries, head_dim]
        blocks = block_tables[i, : -(-length // kv_cache.block_size)].long()
        key, value = kv_cache.read_blocks(blocks)  # [num_kv_heads, num_tokens, head_dim, or more]
        key, value = (cached[:, :length, : q.shape[-1]] for cached in (key, value))
        group = q.shape[0] // key.shape[0]
        scores = q @ key.repeat_interleave(group, 0).mT * scale  # [num_heads, num_queries, length]
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        distance = torch.arange(length - q.shape[1], length)[:, None] - torch.arange(length)
        if position_bias is not None:
            scores += position_bias[:, distance.clamp(0, position_bias.shape[1] - 1)]
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        hidden = hidden.to(scores.device)
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:  # one more column, without a value
            scores = torch.cat((scores, sinks[:, None, None].expand(-1, len(hidden), 1)), -1)
        weights = scores.softmax(-1)[..., :length]
        attended = _visible_mean(weights, value.repeat_interleave(group, 0), hidden)
        out[starts[i] : starts[i + 1]] = attended.transpose(0, 1).to(out.dtype)
    return out


def _visible_mean(weights: torch.Tensor, value: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Sum weighted values; one that is not finite makes NaN of its channel where it is not hidden [queries, keys]."""
    is_bad = ~value.isfinite()
    if not is_bad.any():
        return weights @ value
    mean = weights @ value.masked_fill(is_bad, 0.0)
    return mean.masked_fill((~hidden).float() @ is_bad.float() > 0, float("nan"))  # zero times NaN would be NaN
