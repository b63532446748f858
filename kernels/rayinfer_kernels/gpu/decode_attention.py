"""Attention of one new token per request: each context is cut into splits, and the last one to end combines them."""

import torch

from rayinfer_kernels.gpu.arrival_counters import arrival_counters
from rayinfer_kernels.gpu.attention_tiles import (
    NO_WINDOW,
    NOTHING_SEEN,
    SCORE_FACTOR,
    attend_tiles,
    check_query,
    dot_type,
    nothing_seen,
    score_factors,
)
from rayinfer_kernels.gpu.language import (
    gdc_launch_dependents,
    gdc_wait,
    next_power_of_2,
    supports_pdl,
    tl,
    triton,
)
from rayinfer_kernels.gpu.paged_cache import PagedKVCache
from rayinfer_kernels.gpu.tuning import (
    MIN_DOT_INPUTS,
    MIN_SPLIT_TOKENS,
    NUM_MULTIPROCESSORS,
    combined_at_once,
    decode_tuning,
    least_split,
    num_splits_for,
)


def decode_attention(
    query: torch.Tensor,
    cache: PagedKVCache,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    max_context: int | None = None,
    *,
    num_splits: int | None = None,
    sinks: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    num_multiprocessors: int = NUM_MULTIPROCESSORS,
) -> torch.Tensor:
    """Attend with the last token of each request: query [num_requests, num_heads, head_dim] -> the same shape.

    block_tables int32 [num_requests, max_blocks]; seq_lens int32 [num_requests], the last token included; sinks float32
    [num_heads]. A request without context gets zeros. `max_context` says how long one can be, by default as the tables
    allow. From it and the shapes follows `num_splits`, a power of two, unless it is given: then a request's result is
    the same bits in any batch. Nothing is read back from the device. Results go to `out`. An e4m3 NaN counts as 480.
    """
    num_requests, num_heads, head_dim = (query := check_query(query, cache)).shape
    max_context = max_context or block_tables.shape[1] * cache.block_size
    num_programs = None if num_splits else num_requests * cache.num_kv_heads  # without splits
    least = MIN_SPLIT_TOKENS if num_splits else least_split(num_requests, cache.num_kv_heads, num_multiprocessors)
    num_splits = num_splits or num_splits_for(num_requests, cache.num_kv_heads, max_context, num_multiprocessors)
    _check_power_of_two(num_splits)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    if num_requests == 0:
        return out
    tuning = decode_tuning(
        *(num_heads // cache.num_kv_heads, head_dim, cache.key.dtype.itemsize, query.dtype.itemsize, cache.block_size),
        *(num_programs, num_multiprocessors),
    )
    _attend_split[(cache.num_kv_heads, num_requests, num_splits)](
        *(query, query.stride(0), query.stride(1), cache.key, cache.value),
        *(block_tables, block_tables.stride(0), seq_lens, window or NO_WINDOW, *score_factors(scale, softcap)),
        *(sinks, out, *_new_partial_results(query, num_splits, cache.num_kv_heads)),
        max(least, tuning.tile_tokens),
        HAS_SOFTCAP=softcap is not None,
        HAS_SINKS=sinks is not None,
        GROUP=num_heads // cache.num_kv_heads,
        ROWS=tuning.num_rows,
        NUM_KV_HEADS=cache.num_kv_heads,
        BLOCK_SIZE=cache.block_size,
        HEAD_DIM=head_dim,
        WIDTH=max(MIN_DOT_INPUTS, next_power_of_2(head_dim)),
        TILE=tuning.tile_tokens,
        HEADS=next_power_of_2(num_heads // cache.num_kv_heads),
        TOGETHER=combined_at_once(num_heads // cache.num_kv_heads, head_dim),
        DOT_TYPE=dot_type(query.dtype, cache),
        NUM_STAGES=tuning.num_stages,
        IN_PAIRS=cache.key.dtype.itemsize == 1 and head_dim % 2 == 0,
        PDL=(pdl := supports_pdl(query.device)),
        launch_pdl=pdl,
        maxnreg=None if softcap else tuning.max_registers,
        num_warps=tuning.num_warps,
    )
    return out


def _check_power_of_two(num_splits: int) -> None:
    if num_splits & (num_splits - 1):
        raise ValueError(f"num_splits must be a power of two, got {num_splits}")


def splits_bytes(num_requests: int, num_heads: int, num_kv_heads: int, head_dim: int, max_context: int) -> int:
    """Return the memory that `decode_attention` takes beside its result, for contexts up to `max_context` tokens."""
    num_splits = num_splits_for(num_requests, num_kv_heads, max_context)
    return 0 if num_splits == 1 else 4 * num_requests * num_heads * num_splits * (head_dim + 2)


def _new_partial_results(query: torch.Tensor, num_splits: int, num_kv_heads: int) -> tuple[torch.Tensor, ...]:
    """Allocate each split's weighted values, greatest score and sum of weights; and counters of ended splits."""
    num_requests, num_heads, head_dim = query.shape
    num_splits = 0 if num_splits == 1 else num_splits
    parts = torch.empty((num_requests, num_heads, num_splits, head_dim), dtype=torch.float32, device=query.device)
    sums = torch.empty((num_requests, num_heads, num_splits, 2), dtype=torch.float32, device=query.device)
    return parts, sums, arrival_counters(query.device, num_requests * num_kv_heads)


@triton.jit
def _split_length(context, window, num_splits, min_tokens, TILE: tl.constexpr):
    """Return the first token of the first tile that is seen, and how many tokens each split has from there on.

    All splits but the last have whole tiles and no fewer tokens than min_tokens: a short context leaves some empty.
    """
    first_tile = tl.maximum(context - window, 0) // TILE * TILE
    length = (context - first_tile + num_splits - 1) // num_splits
    return first_tile, tl.maximum((length + TILE - 1) // TILE * TILE, min_tokens)


@triton.jit(do_not_specialize=["table_stride", "window", "min_tokens"])
def _attend_split(
    query_rows,
    token_stride,
    head_stride,
    key_cache,
    value_cache,
    block_tables,
    table_stride,
    seq_lens,
    window,
    scale,
    softcap,
    sinks,  # [NUM_KV_HEADS x GROUP]
    out,  # [num_requests, num_heads, HEAD_DIM]
    parts,  # [num_requests, num_heads, num_splits, HEAD_DIM]
    sums,  # [num_requests, num_heads, num_splits, 2]
    counters,  # [num_requests, NUM_KV_HEADS], zeros before and after
    min_tokens,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    HEADS: tl.constexpr,
    TOGETHER: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    IN_PAIRS: tl.constexpr,
    PDL: tl.constexpr,
):
    """All query heads of one key-value head, over one split of one request's context."""
    if PDL:
        gdc_launch_dependents()
    kv_head, request = tl.program_id(0), tl.program_id(1)
    split, num_splits = tl.program_id(2), tl.num_programs(2)  # most of the later ones have no tokens
    context = tl.load(seq_lens + request)
    first_tile, per_split = _split_length(context, window, num_splits, min_tokens, TILE)
    num_live = (context - first_tile + per_split - 1) // per_split  # splits that have tokens
    begin = first_tile + split * per_split
    end = tl.minimum(context, begin + per_split)
    table = block_tables + request.to(tl.int64) * table_stride
    if PDL:
        if split < num_live:  # all but the last token were there before this step
            _fetch_tile(key_cache, value_cache, table, begin, end, kv_head, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, TILE)
        gdc_wait()
    if (split >= num_live) & (split > 0):  # the first one answers for a request without tokens
        return
    rows, channels = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    heads = kv_head * GROUP + rows
    is_number = (rows[:, None] < GROUP) & (channels[None, :] < HEAD_DIM)
    offsets = request.to(tl.int64) * token_stride + heads[:, None] * head_stride + channels[None, :]
    query = tl.load(query_rows + offsets, mask=is_number, other=0.0)
    acc, highest, total = nothing_seen(ROWS, WIDTH)
    if HAS_SINKS:  # the first split counts them
        sink = tl.load(sinks + heads, mask=rows < GROUP, other=0.0) * SCORE_FACTOR
        highest, total = tl.where(split == 0, sink, highest), tl.where(split == 0, 1.0, total)
    acc, highest, total = attend_tiles(
        query.to(DOT_TYPE), acc, highest, total, tl.full([ROWS], 0, tl.int32) + context - 1, key_cache, value_cache,
        table, begin, end, context - window, kv_head, window, scale, softcap, False, HAS_SOFTCAP, NUM_KV_HEADS,
        BLOCK_SIZE, HEAD_DIM, WIDTH, TILE, DOT_TYPE, NUM_STAGES, IN_PAIRS, False,
    )  # fmt: skip
    first_head = request.to(tl.int64) * NUM_KV_HEADS * GROUP + kv_head * GROUP
    if num_live > 1:
        row = (first_head + rows) * num_splits + split
        tl.store(parts + row[:, None] * HEAD_DIM + channels[None, :], acc, mask=is_number)
        tl.store(sums + row * 2, highest, mask=rows < GROUP)
        tl.store(sums + row * 2 + 1, total, mask=rows < GROUP)
        tl.debug_barrier()  # what all threads stored is there before one of them counts
        counter = counters + request * NUM_KV_HEADS + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel") == num_live - 1:
            tl.store(counter, 0)
            _combine_splits(parts, sums, out, first_head, num_live, num_splits, GROUP, HEADS, HEAD_DIM, WIDTH, TOGETHER)
    else:
        mean = tl.where(total[:, None] == 0.0, 0.0, acc / total[:, None])
        results = out + (first_head + rows)[:, None] * HEAD_DIM + channels[None, :]
        tl.store(results, mean.to(out.dtype.element_ty), mask=is_number)


@triton.jit
def _fetch_tile(
    key_cache,
    value_cache,
    table,
    begin,
    end,
    kv_head,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
):
    """Prefetch the keys and values of a tile into the L2 cache, while the kernel that makes the query still runs."""
    LINE: tl.constexpr = 128 // (key_cache.dtype.element_ty.primitive_bitwidth // 8)  # numbers in a line of the cache
    LINES: tl.constexpr = triton.next_power_of_2((HEAD_DIM + LINE - 1) // LINE)
    tokens = tl.minimum(begin + tl.arange(0, TILE), end - 1)
    block = tl.load(table + tokens // BLOCK_SIZE).to(tl.int64)
    heads = (block * NUM_KV_HEADS + kv_head) * (BLOCK_SIZE * HEAD_DIM) + tokens % BLOCK_SIZE * HEAD_DIM
    lines = heads[:, None] + tl.minimum(tl.arange(0, LINES) * LINE, HEAD_DIM - 1)[None, :]
    _prefetch(key_cache + lines)
    _prefetch(value_cache + lines)


@triton.jit
def _prefetch(pointers):
    """Prefetch the lines at these addresses into the L2 cache, without waiting."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.b32 $0, 0; }",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _combine_splits(
    parts,
    sums,
    out,
    first_head,
    num_live,
    num_splits,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """One softmax of the splits of all heads of a group, always in the same order; read past the L1 cache."""
    head, channels = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    acc, highest, total = nothing_seen(HEADS, WIDTH)
    for start in range(0, num_live, TOGETHER):
        split = start + tl.arange(0, TOGETHER)
        is_live = (head < GROUP)[:, None] & (split < num_live)[None, :]
        row = ((first_head + head) * num_splits)[:, None] + split[None, :]
        highests = tl.load(sums + row * 2, mask=is_live, other=NOTHING_SEEN, cache_modifier=".cg")
        totals = tl.load(sums + row * 2 + 1, mask=is_live, other=0.0, cache_modifier=".cg")
        is_number = is_live[:, :, None] & (channels < HEAD_DIM)[None, None, :]
        pointers = parts + row[:, :, None] * HEAD_DIM + channels[None, None, :]
        values = tl.load(pointers, mask=is_number, other=0.0, cache_modifier=".cg")
        higher = tl.maximum(highest, tl.max(highests, 1))
        shares, fading = tl.exp2(highests - higher[:, None]), tl.exp2(highest - higher)
        total = total * fading + tl.sum(totals * shares, 1)
        acc = acc * fading[:, None] + tl.sum(values * shares[:, :, None], 1)
        highest = higher
    mean = tl.where(total[:, None] == 0.0, 0.0, acc / total[:, None])
    results = out + (first_head + head)[:, None] * HEAD_DIM + channels[None, :]
    is_result = (head < GROUP)[:, None] & (channels < HEAD_DIM)[None, :]
    tl.store(results, mean.to(out.dtype.element_ty), mask=is_result)
