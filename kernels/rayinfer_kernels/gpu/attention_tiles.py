"""What the attention kernels have in common: reading tiles of the paged cache, and the running softmax over them."""

from typing import Any

import torch

from rayinfer_kernels.gpu.language import dot_dtype, tl, triton
from rayinfer_kernels.gpu.paged_cache import PagedKVCache

LOG2_E = 1.4426950408889634  # softmax in powers of two: exp(x) = 2 ** (x * LOG2_E)
NO_WINDOW = 1 << 30
NOTHING_SEEN = tl.constexpr(-1.0e30)  # instead of minus infinity, whose difference with itself is no number


@triton.jit
def tile_offsets(
    block_table,  # of one request
    tokens,  # [TILE], from a multiple of TILE on
    first_token,  # of them
    is_there,  # [TILE]
    kv_head,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
):
    """Where each token's head begins in the cache: [TILE]."""
    PER_BLOCK: tl.constexpr = NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM
    if BLOCK_SIZE % TILE == 0:  # the tile lies in one block
        block = tl.load(block_table + first_token // BLOCK_SIZE).to(tl.int64)
        starts = block * PER_BLOCK + kv_head * (BLOCK_SIZE * HEAD_DIM) + (tokens % BLOCK_SIZE) * HEAD_DIM
    else:
        blocks = tl.load(block_table + tokens // BLOCK_SIZE, mask=is_there, other=0).to(tl.int64)
        starts = blocks * PER_BLOCK + kv_head * (BLOCK_SIZE * HEAD_DIM) + (tokens % BLOCK_SIZE) * HEAD_DIM
    return starts


@triton.jit
def load_tile(cache, starts, is_there, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, IS_WHOLE: tl.constexpr):
    """Load a tile [TILE, WIDTH] of keys or values; what is not there, and what lies behind HEAD_DIM, is zero."""
    channels = tl.arange(0, WIDTH)
    places = cache + starts[:, None] + channels[None, :]
    if IS_WHOLE and HEAD_DIM == WIDTH:
        tile = tl.load(places)
    elif IS_WHOLE:
        tile = tl.load(places, mask=channels[None, :] < HEAD_DIM, other=0.0)
    elif HEAD_DIM == WIDTH:
        tile = tl.load(places, mask=is_there[:, None], other=0.0)
    else:
        tile = tl.load(places, mask=is_there[:, None] & (channels[None, :] < HEAD_DIM), other=0.0)
    return tile


@triton.jit
def scaled(scores, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """Scores times log2(e), capped before that: softcap and scale come with that factor already in it."""
    if HAS_SOFTCAP:
        # softcap * tanh(score * scale / softcap), of which scale is the part within tanh, twice
        scores = softcap * (1.0 - 2.0 / (1.0 + tl.exp2(scores * scale)))
    else:
        scores = scores * scale
    return scores


@triton.jit
def attend_tiles(
    query,  # [ROWS, WIDTH] in DOT_TYPE
    acc,  # [ROWS, WIDTH], values so far, weighted
    highest,  # [ROWS], greatest score so far
    total,  # [ROWS], sum of the weights so far
    last_seen,  # [ROWS], the last position that each row sees
    key_cache,
    value_cache,
    block_table,
    begin,  # a multiple of TILE
    end,
    first_seen,  # no row sees a token before this one
    kv_head,
    window,
    scale,
    softcap,
    IS_WHOLE: tl.constexpr,  # every row sees every token of every tile
    HAS_SOFTCAP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Go on with the softmax of each row through the tokens from `begin` to `end`."""
    for start in tl.range(begin, end, TILE, num_stages=NUM_STAGES):
        tokens = start + tl.arange(0, TILE)
        is_there = (tokens >= first_seen) & (tokens < end)
        starts = tile_offsets(block_table, tokens, start, is_there, kv_head, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, TILE)
        key = load_tile(key_cache, starts, is_there, HEAD_DIM, WIDTH, IS_WHOLE).to(DOT_TYPE)
        scores = tl.dot(query, key.trans(), input_precision="ieee", out_dtype=tl.float32)
        scores = scaled(scores, scale, softcap, HAS_SOFTCAP)
        if not IS_WHOLE:
            is_seen = is_there[None, :] & (tokens[None, :] <= last_seen[:, None])
            is_seen = is_seen & (tokens[None, :] > last_seen[:, None] - window)
            scores = tl.where(is_seen, scores, float("-inf"))
        value = load_tile(value_cache, starts, is_there, HEAD_DIM, WIDTH, IS_WHOLE).to(DOT_TYPE)
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fading = tl.exp2(highest - higher)
        total = total * fading + tl.sum(weights, 1)
        acc = acc * fading[:, None]
        acc = tl.dot(weights.to(DOT_TYPE), value, acc, input_precision="ieee", out_dtype=tl.float32)
        highest = higher
    return acc, highest, total


@triton.jit
def weighted_mean(acc, total):
    """Divide the weighted values [ROWS, WIDTH] by their weights [ROWS]; where nothing was seen, zeros."""
    return tl.where(total[:, None] == 0.0, 0.0, acc / total[:, None])


def dot_type(model_dtype: torch.dtype, cache: PagedKVCache) -> Any:
    """What products are taken in: the model's type, or float16 for keys of eight bits, which it holds exactly."""
    if cache.key.dtype is torch.float8_e4m3fn and model_dtype is torch.bfloat16:
        return dot_dtype(torch.float16)
    return dot_dtype(model_dtype)


def score_factors(scale: float, softcap: float | None) -> tuple[float, float]:
    """`scale` and `softcap` as `scaled` takes them."""
    if softcap is None:
        return scale * LOG2_E, 0.0
    return 2.0 * scale / softcap * LOG2_E, softcap * LOG2_E


def check_query(query: torch.Tensor, cache: PagedKVCache) -> torch.Tensor:
    """The query [num_tokens, num_heads, head_dim] with its channels side by side; ValueError if the cache is others'."""
    _, num_heads, head_dim = query.shape
    if head_dim != cache.head_dim or num_heads % cache.num_kv_heads or not num_heads:
        raise ValueError(
            f"{num_heads} heads of {head_dim} channels for a cache of {cache.num_kv_heads} heads of {cache.head_dim}"
        )
    if cache.key.dtype not in (query.dtype, torch.float8_e4m3fn):
        raise ValueError(f"a cache of {cache.key.dtype} for queries of {query.dtype}")
    return query if query.stride(-1) == 1 else query.contiguous()
