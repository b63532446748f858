"""Attention of one new token per request: each context is cut into splits, which are combined afterwards."""

import torch

from rayinfer_kernels.gpu.attention_tiles import (
    NO_WINDOW,
    NOTHING_SEEN,
    attend_tiles,
    check_query,
    dot_type,
    nothing_seen,
    score_factors,
)
from rayinfer_kernels.gpu.language import next_power_of_2, tl, triton
from rayinfer_kernels.gpu.paged_cache import PagedKVCache
from rayinfer_kernels.gpu.tuning import MIN_SPLIT_TOKENS, AttentionTuning, decode_tuning, least_split, num_splits_for


def decode_attention(
    query: torch.Tensor,
    cache: PagedKVCache,
    block_tables: torch.Tensor,
    context_lengths: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    max_context: int | None = None,
    *,
    num_splits: int | None = None,
) -> torch.Tensor:
    """Attend with the last token of each request: query [num_requests, num_heads, head_dim] -> the same shape.

    block_tables int32 [num_requests, max_blocks], context_lengths int32 [num_requests], the last token included; a
    request without context gets zeros. `max_context` says how long one can be, by default as the tables allow. From it
    and the shapes follows `num_splits`, a power of two, unless it is given: then a request's result is the same bits
    in any batch. Nothing is read back from the device, and no grid depends on what is there.
    """
    query = check_query(query, cache)
    num_requests, num_heads, head_dim = query.shape
    max_context = max_context or block_tables.shape[1] * cache.block_size
    least = MIN_SPLIT_TOKENS if num_splits else least_split(num_requests, cache.num_kv_heads)
    num_splits = num_splits or num_splits_for(num_requests, cache.num_kv_heads, max_context)
    if num_splits & (num_splits - 1):
        raise ValueError(f"num_splits must be a power of two, got {num_splits}")
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if num_requests == 0:
        return out
    tuning = decode_tuning(
        num_heads // cache.num_kv_heads, head_dim, cache.key.dtype.itemsize, query.dtype.itemsize, cache.block_size
    )
    least = max(least, tuning.tile_tokens)
    lengths = (context_lengths, NO_WINDOW if window is None else window)
    factors = score_factors(scale, softcap)
    if num_splits == 1:
        _launch(query, cache, block_tables, lengths, factors, out, out, tuning, 1, least)
        return out
    parts, sums = _new_splits(query, num_splits)
    _launch(query, cache, block_tables, lengths, factors, parts, sums, tuning, num_splits, least)
    _combine_splits[(num_requests, num_heads)](
        *(parts, sums, out, *lengths),
        NUM_SPLITS=num_splits,
        HEAD_DIM=head_dim,
        WIDTH=next_power_of_2(head_dim),
        TILE=tuning.tile_tokens,
        MIN_TOKENS=least,
        num_warps=1 if num_splits * head_dim <= 1024 else 4,
    )
    return out


def splits_bytes(num_requests: int, num_heads: int, num_kv_heads: int, head_dim: int, max_context: int) -> int:
    """Memory that `decode_attention` takes beside its result, whatever the contexts are, up to `max_context` tokens."""
    num_splits = num_splits_for(num_requests, num_kv_heads, max_context)
    query = torch.empty(num_requests, num_heads, head_dim, device="meta")
    return 0 if num_splits == 1 else sum(each.nbytes for each in _new_splits(query, num_splits))


def _new_splits(query: torch.Tensor, num_splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for what each split leaves: its weighted values, and its greatest score and sum of weights."""
    num_requests, num_heads, head_dim = query.shape
    parts = torch.empty((num_requests, num_heads, num_splits, head_dim), dtype=torch.float32, device=query.device)
    return parts, torch.empty((num_requests, num_heads, num_splits, 2), dtype=torch.float32, device=query.device)


def _launch(
    query: torch.Tensor,
    cache: PagedKVCache,
    block_tables: torch.Tensor,
    lengths: tuple[torch.Tensor, int],
    factors: tuple[float, float],
    parts: torch.Tensor,
    sums: torch.Tensor,
    tuning: AttentionTuning,
    num_splits: int,
    least: int,
) -> None:
    num_requests, num_heads, head_dim = query.shape
    _attend_split[(num_splits, cache.num_kv_heads, num_requests)](
        *(query, query.stride(0), query.stride(1), cache.key, cache.value),
        *(block_tables, block_tables.stride(0), *lengths, *factors, parts, sums),
        IS_SPLIT=num_splits > 1,
        HAS_SOFTCAP=factors[1] != 0,
        GROUP=num_heads // cache.num_kv_heads,
        ROWS=tuning.num_rows,
        NUM_KV_HEADS=cache.num_kv_heads,
        BLOCK_SIZE=cache.block_size,
        HEAD_DIM=head_dim,
        WIDTH=next_power_of_2(head_dim),
        TILE=tuning.tile_tokens,
        MIN_TOKENS=least,
        DOT_TYPE=dot_type(query.dtype, cache),
        NUM_STAGES=tuning.num_stages,
        num_warps=tuning.num_warps,
    )


@triton.jit
def _split_length(context, window, num_splits, TILE: tl.constexpr, MIN_TOKENS: tl.constexpr):
    """The first token of the first tile that is seen, and how many tokens each split has from there on.

    All splits but the last have whole tiles and no fewer tokens than MIN_TOKENS: a short context leaves some empty.
    """
    first_tile = tl.maximum(context - window, 0) // TILE * TILE
    share = (context - first_tile + num_splits - 1) // num_splits
    return first_tile, tl.maximum((share + TILE - 1) // TILE * TILE, MIN_TOKENS)


@triton.jit(do_not_specialize=["table_stride", "window"])
def _attend_split(
    query_rows,
    token_stride,
    head_stride,
    key_cache,
    value_cache,
    block_tables,
    table_stride,
    context_lengths,
    window,
    scale,
    softcap,
    parts,  # [num_requests, num_heads, num_splits, HEAD_DIM], or the results where nothing is split
    sums,  # [num_requests, num_heads, num_splits, 2]
    IS_SPLIT: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TOKENS: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """All query heads of one key-value head, over one split of one request's context."""
    split, num_splits = tl.program_id(0), tl.num_programs(0)
    kv_head, request = tl.program_id(1), tl.program_id(2)
    context = tl.load(context_lengths + request)
    first_tile, per_split = _split_length(context, window, num_splits, TILE, MIN_TOKENS)
    begin = first_tile + split * per_split
    if IS_SPLIT and begin >= context:  # `_combine_splits` leaves it out
        return
    end = tl.minimum(context, begin + per_split)
    rows, channels = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    heads = kv_head * GROUP + rows
    is_number = (rows[:, None] < GROUP) & (channels[None, :] < HEAD_DIM)
    places = request.to(tl.int64) * token_stride + heads[:, None] * head_stride + channels[None, :]
    query = tl.load(query_rows + places, mask=is_number, other=0.0)
    acc, highest, total = nothing_seen(ROWS, WIDTH)
    acc, highest, total = attend_tiles(
        query.to(DOT_TYPE), acc, highest, total, tl.full([ROWS], 0, tl.int32) + context - 1, key_cache, value_cache,
        block_tables + request.to(tl.int64) * table_stride, begin, end, context - window, kv_head, window, scale,
        softcap, False, HAS_SOFTCAP, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, WIDTH, TILE, DOT_TYPE, NUM_STAGES,
    )  # fmt: skip
    row = (request.to(tl.int64) * NUM_KV_HEADS * GROUP + heads) * num_splits + split
    if IS_SPLIT:
        tl.store(parts + row[:, None] * HEAD_DIM + channels[None, :], acc, mask=is_number)
        tl.store(sums + row * 2, highest, mask=rows < GROUP)
        tl.store(sums + row * 2 + 1, total, mask=rows < GROUP)
    else:
        mean = tl.where(total[:, None] == 0.0, 0.0, acc / total[:, None])
        tl.store(parts + row[:, None] * HEAD_DIM + channels[None, :], mean.to(parts.dtype.element_ty), mask=is_number)


@triton.jit(do_not_specialize=["window"])
def _combine_splits(
    parts,
    sums,
    out,
    context_lengths,
    window,
    NUM_SPLITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TOKENS: tl.constexpr,
):
    """One softmax of the splits of one head of one request."""
    request, head = tl.program_id(0), tl.program_id(1)
    context = tl.load(context_lengths + request)
    first_tile, per_split = _split_length(context, window, NUM_SPLITS, TILE, MIN_TOKENS)
    splits, channels = tl.arange(0, NUM_SPLITS), tl.arange(0, WIDTH)
    is_live = first_tile + splits * per_split < context
    row = request.to(tl.int64) * tl.num_programs(1) + head
    rows = row * NUM_SPLITS + splits
    highest = tl.load(sums + rows * 2, mask=is_live, other=NOTHING_SEEN)
    total = tl.load(sums + rows * 2 + 1, mask=is_live, other=0.0)
    is_number = is_live[:, None] & (channels[None, :] < HEAD_DIM)
    acc = tl.load(parts + rows[:, None] * HEAD_DIM + channels[None, :], mask=is_number, other=0.0)
    shares = tl.exp2(highest - tl.max(highest, 0))
    total = tl.sum(total * shares, 0)
    mean = tl.where(total == 0.0, 0.0, tl.sum(acc * shares[:, None], 0) / total)
    tl.store(out + row * HEAD_DIM + channels, mean.to(out.dtype.element_ty), mask=channels < HEAD_DIM)
