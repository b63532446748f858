"""Fused kernel between the QKV projection and attention: head norms, rotary embedding and the write to the cache."""

import torch

from rayinfer_kernels.gpu.language import (
    gdc_launch_dependents,
    gdc_wait,
    next_power_of_2,
    supports_pdl,
    tl,
    triton,
)
from rayinfer_kernels.gpu.paged_cache import PagedKVCache, largest_number
from rayinfer_kernels.gpu.tuning import MAX_SKINNY_ROWS, RowsTuning, rope_tuning


def rope_and_write(
    qkv: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: PagedKVCache,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    *,
    unit_offset: bool = False,
    tuning: RowsTuning | None = None,
) -> torch.Tensor:
    """Normalize and rotate queries and keys, store keys and values; returns queries [num_tokens, num_heads, head_dim].

    qkv [num_tokens, (num_heads + 2 x num_kv_heads) x head_dim] holds queries, keys and values behind one another; its
    rows may be strided. The norms [head_dim], both or none, are RMS norms of each head; with `unit_offset` their scale
    is 1 + weight. cos and sin [max_positions, rotary_dim] rotate the first channels of each head, in half-split pairs.
    `positions` and `slot_mapping` are int64 [num_tokens]; at slot -1 nothing is stored. All is computed in float32 and
    rounded once, to the model's type or the cache's. `tuning` follows from the number of tokens, unless it is given.
    """
    head_dim, rotary_dim = cache.head_dim, cos.shape[1]
    if qkv.shape[1] != (num_heads + 2 * num_kv_heads) * head_dim or cache.num_kv_heads != num_kv_heads:
        raise ValueError(
            f"{qkv.shape[1]} columns for {num_heads} and twice {num_kv_heads} heads of {head_dim} channels"
        )
    if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
        raise ValueError(f"rotary_dim must be even and at most head_dim={head_dim}, got {rotary_dim}")
    if (query_norm is None) != (key_norm is None):
        raise ValueError("either queries and keys have norms, or neither have")
    qkv = qkv if qkv.stride(-1) == 1 else qkv.contiguous()
    num_tokens = len(qkv)
    query = torch.empty((num_tokens, num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if num_tokens == 0:
        return query
    tuning = tuning or rope_tuning(num_tokens)
    _rope_and_write[(-(-num_tokens // tuning.num_rows), num_heads + 2 * num_kv_heads)](
        *(qkv, qkv.stride(0), num_tokens, cos.contiguous(), sin.contiguous(), positions, slot_mapping),
        *(query, cache.key, cache.value, query_norm, key_norm, eps),
        HAS_NORMS=query_norm is not None,
        UNIT_OFFSET=unit_offset,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        BLOCK_SIZE=cache.block_size,
        HEAD_DIM=head_dim,
        WIDTH=next_power_of_2(head_dim),
        HALF=rotary_dim // 2,
        HALF_WIDTH=next_power_of_2(rotary_dim // 2),
        REST_WIDTH=next_power_of_2(max(1, head_dim - rotary_dim)),
        ROWS=tuning.num_rows,
        LARGEST=largest_number(cache),
        PDL=(pdl := supports_pdl(qkv.device)),
        launch_pdl=pdl and num_tokens <= MAX_SKINNY_ROWS,  # torch's products do not let it start: then it costs time
        num_warps=tuning.num_warps,
    )
    return query


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    cache: PagedKVCache,
    slot_mapping: torch.Tensor,
    *,
    tuning: RowsTuning | None = None,
) -> None:
    """Store key and value [num_tokens, num_kv_heads, head_dim] at `slot_mapping` int64 [num_tokens]; -1: nowhere."""
    num_tokens, num_kv_heads, head_dim = key.shape
    if value.shape != key.shape or (num_kv_heads, head_dim) != (cache.num_kv_heads, cache.head_dim):
        raise ValueError(f"keys {tuple(key.shape)}, values {tuple(value.shape)} for a cache {tuple(cache.key.shape)}")
    key, value = (heads if heads.stride(-1) == 1 else heads.contiguous() for heads in (key, value))
    if num_tokens == 0:
        return
    tuning = tuning or rope_tuning(num_tokens)
    _write_kv[(-(-num_tokens // tuning.num_rows), num_kv_heads)](
        *(key, key.stride(0), key.stride(1), value, value.stride(0), value.stride(1)),
        *(num_tokens, slot_mapping, cache.key, cache.value),
        NUM_KV_HEADS=num_kv_heads,
        BLOCK_SIZE=cache.block_size,
        HEAD_DIM=head_dim,
        WIDTH=next_power_of_2(head_dim),
        ROWS=tuning.num_rows,
        LARGEST=largest_number(cache),
        num_warps=tuning.num_warps,
    )


@triton.jit(do_not_specialize=["num_tokens"])
def _rope_and_write(
    qkv,
    row_stride,
    num_tokens,
    cos,  # [max_positions, 2 * HALF]
    sin,
    positions,
    slot_mapping,
    query_out,  # [num_tokens, NUM_HEADS, HEAD_DIM]
    key_cache,
    value_cache,
    query_norm,
    key_norm,
    eps,
    HAS_NORMS: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    HALF_WIDTH: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    LARGEST: tl.constexpr,  # where a cache of eight bits saturates, else 0
    PDL: tl.constexpr,
):
    """One head of some tokens: the query heads come first, then the keys', then the values'."""
    if PDL:
        gdc_launch_dependents()
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    is_row = token < num_tokens
    row = qkv + token.to(tl.int64) * row_stride + head * HEAD_DIM
    slot = tl.load(slot_mapping + token, mask=is_row, other=-1)
    kv_head = (head - NUM_HEADS) % NUM_KV_HEADS
    stored = (slot // BLOCK_SIZE * NUM_KV_HEADS + kv_head) * (BLOCK_SIZE * HEAD_DIM) + slot % BLOCK_SIZE * HEAD_DIM
    if PDL:
        gdc_wait()
    if head >= NUM_HEADS + NUM_KV_HEADS:
        channel = tl.arange(0, WIDTH)[None, :]
        is_number = (is_row & (slot >= 0))[:, None] & (channel < HEAD_DIM)
        value = tl.load(row[:, None] + channel, mask=is_number, other=0.0).to(tl.float32)
        if LARGEST:
            value = tl.clamp(value, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
        tl.store(value_cache + stored[:, None] + channel, value.to(value_cache.dtype.element_ty), mask=is_number)
    else:
        position = tl.load(positions + token, mask=is_row, other=0)
        angles = position.to(tl.int64) * (2 * HALF)
        first, second, rest = _rotated_head(
            row, cos + angles, sin + angles, head < NUM_HEADS, query_norm, key_norm, is_row, eps, HAS_NORMS,
            UNIT_OFFSET, HEAD_DIM, HALF, HALF_WIDTH, REST_WIDTH,
        )  # fmt: skip
        if head < NUM_HEADS:
            queries = query_out + (token.to(tl.int64) * NUM_HEADS + head) * HEAD_DIM
            _store_head(queries, is_row, first, second, rest, HEAD_DIM, HALF, HALF_WIDTH, REST_WIDTH, 0)
        else:
            keys, is_kept = key_cache + stored, is_row & (slot >= 0)
            _store_head(keys, is_kept, first, second, rest, HEAD_DIM, HALF, HALF_WIDTH, REST_WIDTH, LARGEST)


@triton.jit
def _rotated_head(
    row,  # [ROWS], where the heads begin
    cos,  # [ROWS], where their angles do
    sin,
    is_query,
    query_norm,
    key_norm,
    is_row,
    eps,
    HAS_NORMS: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_WIDTH: tl.constexpr,
    REST_WIDTH: tl.constexpr,
):
    """Return the rotated halves, [ROWS, HALF_WIDTH] each, and the rest [ROWS, REST_WIDTH], all in float32."""
    half, rest_channel = tl.arange(0, HALF_WIDTH)[None, :], 2 * HALF + tl.arange(0, REST_WIDTH)[None, :]
    is_half, is_rest = is_row[:, None] & (half < HALF), is_row[:, None] & (rest_channel < HEAD_DIM)
    first = tl.load(row[:, None] + half, mask=is_half, other=0.0).to(tl.float32)
    second = tl.load(row[:, None] + HALF + half, mask=is_half, other=0.0).to(tl.float32)
    rest = tl.load(row[:, None] + rest_channel, mask=is_rest, other=0.0).to(tl.float32)
    if HAS_NORMS:
        norm = query_norm if is_query else key_norm
        squares = tl.sum(first * first + second * second, 1) + tl.sum(rest * rest, 1)
        inverse = (1.0 / tl.sqrt(squares / HEAD_DIM + eps))[:, None]
        offset = 1.0 if UNIT_OFFSET else 0.0
        first *= inverse * (tl.load(norm + half, mask=half < HALF, other=0.0).to(tl.float32) + offset)
        second *= inverse * (tl.load(norm + HALF + half, mask=half < HALF, other=0.0).to(tl.float32) + offset)
        rest *= inverse * (
            tl.load(norm + rest_channel, mask=rest_channel < HEAD_DIM, other=0.0).to(tl.float32) + offset
        )
    first_cos = tl.load(cos[:, None] + half, mask=is_half, other=0.0).to(tl.float32)
    first_sin = tl.load(sin[:, None] + half, mask=is_half, other=0.0).to(tl.float32)
    second_cos = tl.load(cos[:, None] + HALF + half, mask=is_half, other=0.0).to(tl.float32)
    second_sin = tl.load(sin[:, None] + HALF + half, mask=is_half, other=0.0).to(tl.float32)
    return first * first_cos - second * first_sin, second * second_cos + first * second_sin, rest


@triton.jit
def _store_head(
    target,  # [ROWS]
    is_row,
    first,
    second,
    rest,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_WIDTH: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Round the parts of each head to the type of `target`."""
    half, rest_channel = tl.arange(0, HALF_WIDTH)[None, :], 2 * HALF + tl.arange(0, REST_WIDTH)[None, :]
    is_half, is_rest = is_row[:, None] & (half < HALF), is_row[:, None] & (rest_channel < HEAD_DIM)
    if LARGEST:
        first = tl.clamp(first, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
        second = tl.clamp(second, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
        rest = tl.clamp(rest, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    dtype = target.dtype.element_ty
    tl.store(target[:, None] + half, first.to(dtype), mask=is_half)
    tl.store(target[:, None] + HALF + half, second.to(dtype), mask=is_half)
    tl.store(target[:, None] + rest_channel, rest.to(dtype), mask=is_rest)


@triton.jit(do_not_specialize=["num_tokens"])
def _write_kv(
    key,
    key_stride,
    key_head_stride,
    value,
    value_stride,
    value_head_stride,
    num_tokens,
    slot_mapping,
    key_cache,
    value_cache,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    LARGEST: tl.constexpr,  # where a cache of eight bits saturates, else 0
):
    """Keys and values of one head of some tokens."""
    token, head = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    slot = tl.load(slot_mapping + token, mask=token < num_tokens, other=-1)
    channel = tl.arange(0, WIDTH)[None, :]
    is_number = (slot >= 0)[:, None] & (channel < HEAD_DIM)
    token = token.to(tl.int64)
    keys = tl.load(key + (token * key_stride + head * key_head_stride)[:, None] + channel, mask=is_number, other=0.0)
    values = tl.load(
        value + (token * value_stride + head * value_head_stride)[:, None] + channel, mask=is_number, other=0.0
    )
    if LARGEST:
        keys = tl.clamp(keys.to(tl.float32), -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
        values = tl.clamp(values.to(tl.float32), -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    stored = (slot // BLOCK_SIZE * NUM_KV_HEADS + head) * (BLOCK_SIZE * HEAD_DIM) + slot % BLOCK_SIZE * HEAD_DIM
    tl.store(key_cache + stored[:, None] + channel, keys.to(key_cache.dtype.element_ty), mask=is_number)
    tl.store(value_cache + stored[:, None] + channel, values.to(value_cache.dtype.element_ty), mask=is_number)
