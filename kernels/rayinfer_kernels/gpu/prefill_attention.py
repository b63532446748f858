"""Attention of many new tokens per request, until its kernel is there by the torch reference."""

import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu.paged_cache import PagedKVCache


def prefill_attention(
    query: torch.Tensor,
    cache: PagedKVCache,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lengths: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    *,
    max_query: int | None = None,
) -> torch.Tensor:
    """See `ops.paged_attention`."""
    return reference.paged_attention(query, cache, block_tables, query_starts, context_lengths, scale, window, softcap)
