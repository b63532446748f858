"""Attention of prompts, chunks of prompts and single tokens in one batch, over the paged cache."""

import torch

from rayinfer_kernels.gpu.attention_tiles import (
    NO_WINDOW,
    SCORE_FACTOR,
    attend_tiles,
    check_query,
    dot_type,
    nothing_seen,
    score_factors,
)
from rayinfer_kernels.gpu.language import next_power_of_2, tl, triton
from rayinfer_kernels.gpu.paged_cache import PagedKVCache
from rayinfer_kernels.gpu.tuning import MIN_DOT_INPUTS, prefill_tuning


def prefill_attention(
    query: torch.Tensor,
    cache: PagedKVCache,
    block_tables: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    *,
    max_query: int | None = None,
    sinks: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend causally from each request's last tokens: query [num_tokens, num_heads, head_dim] -> the same shape.

    Request i's tokens are those from cu_seqlens_q[i] to cu_seqlens_q[i + 1] (int32 [num_requests + 1]), maybe none, the
    first row of the query being cu_seqlens_q[0]; its keys are in the cache, seq_lens[i] of them (int32), the new
    ones included. Rows that belong to no request are not written. `max_query` says how many tokens a request has at
    most, by default all. sinks float32 [num_heads] are as in `ops.paged_attention`. Nothing is read back from the
    device: every program finds its request itself. Results go to `out`, in one piece, where it is given.
    """
    query = check_query(query, cache)
    num_tokens, num_heads, head_dim = query.shape
    num_requests, group = len(seq_lens), num_heads // cache.num_kv_heads
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    if num_tokens == 0 or num_requests == 0:
        return out
    tuning = prefill_tuning(head_dim, query.dtype.itemsize, max_query or num_tokens, group)
    tile_queries = tuning.num_rows // group
    factors = score_factors(scale, softcap)
    # Each request may end with a tile that is not full; those of which there are none end at once.
    num_tiles = num_tokens // tile_queries + num_requests
    _attend_chunk[(num_tiles, cache.num_kv_heads)](
        *(query, query.stride(0), query.stride(1), cache.key, cache.value, block_tables, block_tables.stride(0)),
        *(cu_seqlens_q, seq_lens, num_requests, NO_WINDOW if window is None else window, *factors, sinks, out),
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
        HAS_SINKS=sinks is not None,
        GROUP=group,
        ROWS=tuning.num_rows,
        TILE_QUERIES=tile_queries,
        NUM_KV_HEADS=cache.num_kv_heads,
        BLOCK_SIZE=cache.block_size,
        HEAD_DIM=head_dim,
        WIDTH=max(MIN_DOT_INPUTS, next_power_of_2(head_dim)),
        TILE=tuning.tile_tokens,
        DOT_TYPE=dot_type(query.dtype, cache),
        NUM_STAGES=tuning.num_stages,
        num_warps=tuning.num_warps,
    )
    return out


@triton.jit
def _queries_of(tile, cu_seqlens_q, num_requests, TILE_QUERIES: tl.constexpr):
    """Return the request of a tile, the tile's first row of the query and the one behind the request's last.

    Request i's first tile is starts[i] // TILE_QUERIES + i: there are enough behind one another for every request.
    """
    base = tl.load(cu_seqlens_q)
    low, high = tile * 0, num_requests
    while low + 1 < high:
        middle = (low + high) // 2
        first_tile = (tl.load(cu_seqlens_q + middle) - base) // TILE_QUERIES + middle
        if first_tile <= tile:
            low = middle
        else:
            high = middle
    first_query, next_query = tl.load(cu_seqlens_q + low) - base, tl.load(cu_seqlens_q + low + 1) - base
    return low, first_query + (tile - first_query // TILE_QUERIES - low) * TILE_QUERIES, next_query


@triton.jit(
    do_not_specialize=["table_stride", "num_requests", "window"],
    do_not_specialize_on_alignment=["block_tables", "cu_seqlens_q", "seq_lens"],  # parts of a step's
)
def _attend_chunk(
    query_rows,
    token_stride,
    head_stride,
    key_cache,
    value_cache,
    block_tables,
    table_stride,
    cu_seqlens_q,
    seq_lens,
    num_requests,
    window,
    scale,
    softcap,
    sinks,  # [NUM_KV_HEADS x GROUP]
    out,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Some neighboring tokens of one request, with all query heads of one key-value head: a row for each of both."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    request, first, next_query = _queries_of(tile, cu_seqlens_q, num_requests, TILE_QUERIES)
    if first >= next_query:
        return
    rows, channels = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    tokens, heads = first + rows // GROUP, kv_head * GROUP + rows % GROUP
    is_row = (rows < TILE_QUERIES * GROUP) & (tokens < next_query)
    is_number = is_row[:, None] & (channels[None, :] < HEAD_DIM)
    offsets = (tokens.to(tl.int64) * token_stride + heads * head_stride)[:, None] + channels[None, :]
    query = tl.load(query_rows + offsets, mask=is_number, other=0.0).to(DOT_TYPE)
    before_queries = tl.load(seq_lens + request) - next_query  # position minus token
    position = first + before_queries  # of the first token, the last position that all rows see
    end = tl.minimum(first + TILE_QUERIES, next_query) + before_queries
    last_seen = tokens + before_queries
    first_seen = position - window + 1  # by the first row, the others see less
    acc, highest, total = nothing_seen(ROWS, WIDTH)
    if HAS_SINKS:
        highest, total = tl.load(sinks + heads) * SCORE_FACTOR, total + 1.0
    table = block_tables + request.to(tl.int64) * table_stride
    begin = tl.maximum(first_seen, 0) // TILE * TILE
    if not HAS_WINDOW:  # what every row sees whole needs no masks
        begin = tl.maximum(position + 1, 0) // TILE * TILE
        acc, highest, total = attend_tiles(
            query, acc, highest, total, last_seen, key_cache, value_cache, table, 0, begin, 0, kv_head, window,
            scale, softcap, True, HAS_SOFTCAP, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, WIDTH, TILE, DOT_TYPE, NUM_STAGES,
        )  # fmt: skip
    acc, highest, total = attend_tiles(
        query, acc, highest, total, last_seen, key_cache, value_cache, table, begin, end, first_seen, kv_head, window,
        scale, softcap, False, HAS_SOFTCAP, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, WIDTH, TILE, DOT_TYPE, NUM_STAGES,
    )  # fmt: skip
    mean = tl.where(total[:, None] == 0.0, 0.0, acc / total[:, None]).to(out.dtype.element_ty)
    results = (tokens.to(tl.int64) * (NUM_KV_HEADS * GROUP) + heads) * HEAD_DIM
    tl.store(out + results[:, None] + channels[None, :], mean, mask=is_number)
