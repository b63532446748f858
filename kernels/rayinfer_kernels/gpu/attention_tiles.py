"""Code shared by the attention kernels: loads of tiles of the paged cache, and online softmax over them."""

from typing import Any

import torch

from rayinfer_kernels.gpu.language import IS_INTERPRETED, dot_dtype, tl, triton
from rayinfer_kernels.gpu.paged_cache import PagedKVCache

LOG2_E = 1.4426950408889634
NO_WINDOW = 1 << 30
SCORE_FACTOR = tl.constexpr(LOG2_E)  # of scores that are no products
_IS_INTERPRETED = tl.constexpr(IS_INTERPRETED)
_PAIRS_SCALE = tl.constexpr(2.0**-8)
NOTHING_SEEN = tl.constexpr(-1.0e30)  # instead of minus infinity, whose difference with itself is no number


# A function that a kernel calls is inlined on a GPU, but costs Triton's interpreter a millisecond at each call: what
# loops do is therefore spelled out.


@triton.jit
def nothing_seen(ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Values, greatest score and sum of weights of rows before their first token."""
    values = tl.full([ROWS, WIDTH], 0.0, tl.float32)
    return values, tl.full([ROWS], NOTHING_SEEN, tl.float32), tl.full([ROWS], 0.0, tl.float32)


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
    scale,  # times log2(e); see score_factors
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
    IN_PAIRS: tl.constexpr = False,  # values of eight bits are read two channels at a time
    ROWS_DIFFER: tl.constexpr = True,  # some rows see tokens that others do not, unless it is whole
):
    """Go on with the softmax of each row through the tokens from `begin` to `end`, by tensor cores.

    Tensor cores want the values of two tokens side by side, and shared memory hands out no single bytes in that order:
    pairs of channels are loaded as numbers of 16 bits, whose two halves are then multiplied separately.

    Memory that a row does not see may hold NaN and infinities, which a weight of zero would not keep out of its sum.
    What no row sees is not loaded. Where rows differ, a value that is not finite is replaced by zero and makes the
    token's score NaN, which is then hidden like any other.
    """
    channels = tl.arange(0, WIDTH)
    if IN_PAIRS:
        evens, odds = tl.split((acc * _PAIRS_SCALE).reshape(acc.shape[0], WIDTH // 2, 2))
        pairs = tl.arange(0, WIDTH // 2)
    for start in tl.range(begin, end, TILE, num_stages=NUM_STAGES):
        tokens = start + tl.arange(0, TILE)
        is_there = (tokens >= first_seen) & (tokens < end)
        is_number = (is_there | IS_WHOLE)[:, None] & (channels[None, :] < HEAD_DIM)
        if BLOCK_SIZE % TILE == 0:  # the tile lies in one block
            block = tl.load(block_table + start // BLOCK_SIZE).to(tl.int64)
        else:
            block = tl.load(block_table + tokens // BLOCK_SIZE, mask=is_there, other=0).to(tl.int64)
        heads = (block * NUM_KV_HEADS + kv_head) * (BLOCK_SIZE * HEAD_DIM) + tokens % BLOCK_SIZE * HEAD_DIM
        offsets = heads[:, None] + channels[None, :]
        key = tl.load(key_cache + offsets, mask=is_number, other=0.0).to(DOT_TYPE)
        scores = tl.dot(query, key.trans(), input_precision="ieee", out_dtype=tl.float32) * scale
        if HAS_SOFTCAP:
            scores = softcap - 2.0 * softcap / (1.0 + tl.exp2(scores))  # a hyperbolic tangent
        if ROWS_DIFFER and not IS_WHOLE:
            value = tl.load(value_cache + offsets, mask=is_number, other=0.0).to(DOT_TYPE)
            spoilt = tl.sum((value * 0.0).to(tl.float32), 1)  # NaN where a value is not finite
            scores += spoilt[None, :]
            value = tl.where((spoilt == 0.0)[:, None], value, 0.0)
        if not IS_WHOLE:
            is_seen = (tokens[None, :] <= last_seen[:, None]) & (tokens[None, :] > last_seen[:, None] - window)
            scores = tl.where(is_there[None, :] & is_seen, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fading = tl.exp2(highest - higher)
        total = total * fading + tl.sum(weights, 1)
        if IN_PAIRS:
            is_pair = (is_there | IS_WHOLE)[:, None] & (pairs[None, :] < HEAD_DIM // 2)
            pair_cache = value_cache.to(tl.pointer_type(tl.uint16))
            pair = tl.load(pair_cache + (heads // 2)[:, None] + pairs[None, :], mask=is_pair, other=0)
            even, odd = _halves_of_pairs(pair)
            even, odd = even.to(DOT_TYPE), odd.to(DOT_TYPE)
            evens = tl.dot(weights.to(DOT_TYPE), even, evens * fading[:, None], input_precision="ieee")
            odds = tl.dot(weights.to(DOT_TYPE), odd, odds * fading[:, None], input_precision="ieee")
        else:
            if IS_WHOLE or not ROWS_DIFFER:
                value = tl.load(value_cache + offsets, mask=is_number, other=0.0).to(DOT_TYPE)
            acc = tl.dot(weights.to(DOT_TYPE), value, acc * fading[:, None], input_precision="ieee")
        highest = higher
    if IN_PAIRS:
        acc = tl.join(evens, odds).reshape(acc.shape[0], WIDTH) / _PAIRS_SCALE
    return acc, highest, total


@triton.jit
def _halves_of_pairs(pair):
    """Two e4m3 numbers in 16 bits as two float16 numbers, 2^-8 times as large; NaN becomes 480.

    Exponent and mantissa keep their bits and get more zeros behind them: subnormal numbers, too, are right.
    """
    if _IS_INTERPRETED:
        even = ((pair & 0x80) << 8) | ((pair & 0x7F) << 7)
        odd = (pair & 0x8000) | ((pair & 0x7F00) >> 1)
        return even.to(tl.uint16).to(tl.float16, bitcast=True), odd.to(tl.uint16).to(tl.float16, bitcast=True)
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b32 low, high;
            shl.b32 low, $2, 7;
            shl.b32 high, $2, 8;
            and.b32 low, low, 0x3f803f80;
            lop3.b32 $0, high, 0x80008000, low, 0xea;
            shr.b32 low, $2, 1;
            and.b32 low, low, 0x3f803f80;
            lop3.b32 $1, $2, 0x80008000, low, 0xea;
        }
        """,
        "=r,=r,r",
        [pair],
        dtype=(tl.float16, tl.float16),
        is_pure=True,
        pack=2,
    )


def dot_type(model_dtype: torch.dtype, cache: PagedKVCache) -> Any:
    """Return the type of products: the model's, or float16 for keys of eight bits, which it holds exactly."""
    if cache.key.dtype is torch.float8_e4m3fn and model_dtype is torch.bfloat16:
        return dot_dtype(torch.float16)
    return dot_dtype(model_dtype)


def score_factors(scale: float, softcap: float | None) -> tuple[float, float]:
    """Return the scale and the cap of scores, in powers of two: softmax(x) is made of 2 ** (x * log2(e)).

    softcap * tanh(x * scale / softcap) is softcap - 2 * softcap / (1 + exp(2 * x * scale / softcap)): the first factor
    is what stands in that exponent, the second the cap.
    """
    if softcap is None:
        return scale * LOG2_E, 0.0
    return 2.0 * scale / softcap * LOG2_E, softcap * LOG2_E


def check_query(query: torch.Tensor, cache: PagedKVCache) -> torch.Tensor:
    """Bring a query's channels side by side, [num_tokens, num_heads, head_dim]; ValueError if the cache is others'."""
    _, num_heads, head_dim = query.shape
    if head_dim != cache.head_dim or num_heads % cache.num_kv_heads or not num_heads:
        raise ValueError(
            f"{num_heads} heads of {head_dim} channels for a cache of {cache.num_kv_heads} heads of {cache.head_dim}"
        )
    if cache.key.dtype not in (query.dtype, torch.float8_e4m3fn):
        raise ValueError(f"a cache of {cache.key.dtype} for queries of {query.dtype}")
    return query if query.stride(-1) == 1 else query.contiguous()
