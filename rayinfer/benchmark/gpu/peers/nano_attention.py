"""Attention of the minimal loop: prompts by SDPA, one token a request by SDPA or by the flash kernel inside torch."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch.nn import functional

DecodeKernel = Literal["flash", "sdpa"]
ALLOWED_DIFFERENCE = 0.03  # between two kernels in bfloat16


def prompt_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: Sequence[int]
) -> torch.Tensor:
    """Compute causal attention of packed prompts, one call each, so that nothing is padded."""
    parts = []
    packed = (torch.split(each, list(lengths)) for each in (queries, keys, values))
    for prompt in zip(*packed, strict=True):
        query, key, value = (each.transpose(0, 1)[None] for each in prompt)
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        parts.append(out[0].transpose(0, 1).flatten(1))
    return torch.cat(parts)


def sdpa_decode(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, context: int
) -> torch.Tensor:
    """Compute attention of one token a request over its slot's first `context` tokens, with a mask of lengths.

    The heads that share a key-value head are its queries: no key is repeated, and the mask allows SDPA's fused kernels.
    """
    batch, kv_heads = queries.shape[0], keys.shape[2]
    grouped = queries.view(batch, kv_heads, -1, queries.shape[-1])  # [batch, kv_heads, group, head_dim]
    is_seen = torch.arange(context, device=queries.device) <= positions[:, None]
    mask = torch.zeros_like(is_seen, dtype=queries.dtype).masked_fill_(~is_seen, -torch.inf)
    out = functional.scaled_dot_product_attention(
        grouped,
        keys[:batch, :context].transpose(1, 2),
        values[:batch, :context].transpose(1, 2),
        attn_mask=mask[:, None, None].expand(-1, kv_heads, grouped.shape[2], -1),
    )
    return out.flatten(1)


def flash_decode(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Compute attention of one token a request by torch's flash kernel, which reads exactly the request's tokens."""
    batch, max_len = queries.shape[0], keys.shape[1]
    counts = torch.arange(batch + 1, device=queries.device, dtype=torch.int32)
    out = torch.ops.aten._flash_attention_forward(
        queries,
        keys[:batch].flatten(0, 1),
        values[:batch].flatten(0, 1),
        counts,
        counts * max_len,
        1,
        max_len,
        0.0,
        False,
        False,
        seqused_k=(positions + 1).int(),
    )[0]
    return torch.as_tensor(out).flatten(1)


def decode_kernels(device: torch.device, dtype: torch.dtype) -> list[DecodeKernel]:
    """Return the kernels that run here, in CUDA graphs as well."""
    return ["flash", "sdpa"] if device.type == "cuda" and _flash_is_right(device, dtype) else ["sdpa"]


@torch.no_grad()
def _flash_is_right(device: torch.device, dtype: torch.dtype) -> bool:
    """Compare the flash kernel with SDPA, recorded and replayed; the operator is private to torch and may change."""
    queries = torch.randn(3, 16, 128, device=device, dtype=dtype)
    keys, values = (torch.randn(4, 512, 8, 128, device=device, dtype=dtype) for _ in range(2))
    positions = torch.tensor([0, 137, 511], device=device)
    expected = sdpa_decode(queries, keys, values, positions, 512)
    try:
        flash_decode(queries, keys, values, positions)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = flash_decode(queries, keys, values, positions)
        graph.replay()
        torch.cuda.synchronize(device)
    except (RuntimeError, TypeError, AttributeError):
        return False
    return torch.allclose(found, expected, rtol=ALLOWED_DIFFERENCE, atol=ALLOWED_DIFFERENCE)
