"""Bandwidth of the decode attention kernel, as a share of a plain copy's on the same device."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from rayinfer.benchmark.gpu.timing import COLD_BYTES, seconds_per_call
from rayinfer_kernels.gpu.decode_attention import decode_attention
from rayinfer_kernels.gpu.paged_cache import PagedKVCache, allocate_paged_cache
from rayinfer_kernels.gpu.tuning import num_splits_for


@dataclass(frozen=True, kw_only=True)
class DecodeSweep:
    """Measured shapes: all combinations of groups, contexts and batches whose caches fit in `max_pool_bytes`."""

    groups: Sequence[int] = (2, 4, 5, 8)  # query heads of a key-value head
    contexts: Sequence[int] = (128, 512, 1024, 4096, 16384)
    batches: Sequence[int] = (1, 8, 32, 128, 256)
    num_kv_heads: int = 8
    head_dim: int = 128
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: torch.dtype = torch.bfloat16
    max_pool_bytes: int = 24 << 30
    cold_bytes: int = COLD_BYTES
    num_repeats: int = 10


class DecodeShape(NamedTuple):
    """One combination."""

    group: int
    context: int
    batch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeRow:
    """One combination's figures; `share_of_copy` is 1 where the cache is read as fast as a copy reads and writes."""

    group: int
    context: int
    batch: int
    num_splits: int
    num_bytes: int  # keys, values, queries and results of one call, each once
    seconds: float  # of one call, the median
    bytes_per_s: float
    share_of_copy: float


def decode_shapes(sweep: DecodeSweep) -> list[DecodeShape]:
    """Return all combinations of a sweep whose caches fit."""
    shapes = itertools.starmap(DecodeShape, itertools.product(sweep.groups, sweep.contexts, sweep.batches))
    return [shape for shape in shapes if _cache_bytes(sweep, shape) <= sweep.max_pool_bytes]


def measure_decode_kernel(device: torch.device, sweep: DecodeSweep, shape: DecodeShape, copied: float) -> DecodeRow:
    """Measure a combination beside a copy's `copied` bytes a second; without a GPU the times mean nothing."""
    group, context, batch = shape
    num_copies = max(1, min(64, sweep.cold_bytes // _cache_bytes(sweep, shape)))
    cache = _filled_cache(device, sweep, num_copies * batch * -(-context // sweep.block_size))
    tables = torch.randperm(cache.num_blocks, device=device).to(torch.int32).view(num_copies, batch, -1)
    query = torch.randn(batch, group * sweep.num_kv_heads, sweep.head_dim, device=device).to(sweep.dtype)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=device)

    def call(number: int) -> Callable[[], object]:
        return lambda: decode_attention(query, cache, tables[number], lengths, sweep.head_dim**-0.5)

    seconds = seconds_per_call([call(number) for number in range(num_copies)], device, sweep.num_repeats)
    num_bytes = _cache_bytes(sweep, shape) + 2 * query.nbytes
    return DecodeRow(
        group=group,
        context=context,
        batch=batch,
        num_splits=num_splits_for(batch, sweep.num_kv_heads, tables.shape[2] * sweep.block_size),
        num_bytes=num_bytes,
        seconds=seconds,
        bytes_per_s=num_bytes / seconds,
        share_of_copy=num_bytes / seconds / copied,
    )


def _cache_bytes(sweep: DecodeSweep, shape: DecodeShape) -> int:
    return 2 * shape.batch * shape.context * sweep.num_kv_heads * sweep.head_dim * sweep.cache_dtype.itemsize


def _filled_cache(device: torch.device, sweep: DecodeSweep, num_blocks: int) -> PagedKVCache:
    """Fill a cache with copies of one random block."""
    size = (num_blocks, sweep.block_size, sweep.num_kv_heads, sweep.head_dim)
    cache = allocate_paged_cache(*size, sweep.cache_dtype, device)
    for tensor in cache.tensors:
        tensor.copy_(torch.randn(tensor.shape[1:], device=device).to(sweep.cache_dtype).expand(tensor.shape))
    return cache
