"""Batches for attention kernels: requests of given lengths whose blocks lie scattered in a pool."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from rayinfer_kernels import reference
from rayinfer_kernels.kv_cache import KVCache, allocate_kv_cache


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One model's attention, and the pool's cut."""

    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None
    scale: float = field(default=0.2)
    num_distances: int | None = None  # None: no position bias
    has_sinks: bool = False


@dataclass(frozen=True)
class Batch:
    """Requests whose whole contexts are in the cache, and queries for every position of each."""

    shape: Shape
    kv_cache: KVCache
    block_tables: torch.Tensor
    seq_lens: list[int]
    queries: list[torch.Tensor]  # per request [context_length, num_heads, head_dim]
    position_bias: torch.Tensor | None = None
    sinks: torch.Tensor | None = None

    def attend(self, kernels, spans: Sequence[tuple[int, int, int]]) -> list[torch.Tensor]:
        """One step: spans of (request, first, last + 1); returns each span's result, in float32."""
        starts = [0]
        for _, first, end in spans:
            starts.append(starts[-1] + end - first)
        out = kernels.paged_attention(
            torch.cat([self.queries[request][first:end] for request, first, end in spans]),
            self.kv_cache,
            self.block_tables[[request for request, _, _ in spans]],
            torch.tensor(starts, dtype=torch.int32),
            torch.tensor([end for _, _, end in spans], dtype=torch.int32),
            self.shape.scale,
            self.shape.window,
            self.shape.softcap,
            self.position_bias,
            self.sinks,
        )
        return [out[starts[i] : starts[i + 1]].float() for i in range(len(spans))]


def make_batch(
    shape: Shape,
    seq_lens: list[int],
    dtype: torch.dtype,
    seed: int = 0,
    *,
    cache_dtype: torch.dtype | None = None,  # None: as the queries
) -> Batch:
    """Random keys, values and queries; unused blocks, and the tails of last blocks, are full of NaN."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // shape.block_size) for length in seq_lens]
    num_blocks = sum(counts) + 3
    kv_cache = allocate_kv_cache(
        num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim, cache_dtype or dtype, torch.device("cpu")
    )
    for tensor in kv_cache.tensors:
        tensor.fill_(float("nan") if tensor.is_floating_point() else 127)
    order = torch.randperm(num_blocks, generator=generator)
    block_tables = torch.full((len(counts), max(counts, default=0)), -1, dtype=torch.int32)
    queries, used = [], 0
    for i, (length, count) in enumerate(zip(seq_lens, counts, strict=True)):
        block_tables[i, :count] = order[used : used + count]
        used += count
        tokens = torch.arange(length)
        slot_mapping = block_tables[i, tokens // shape.block_size] * shape.block_size + tokens % shape.block_size
        key, value = (torch.randn(length, shape.num_kv_heads, shape.head_dim, generator=generator) for _ in range(2))
        reference.write_kv(key.to(dtype), value.to(dtype), kv_cache, slot_mapping.long())
        query = torch.randn(length, shape.num_heads, shape.head_dim, generator=generator)
        queries.append(query.to(dtype))
    bias = shape.num_distances and torch.randn(shape.num_heads, shape.num_distances, generator=generator)
    sinks = 3 * torch.randn(shape.num_heads, generator=generator) if shape.has_sinks else None
    return Batch(shape, kv_cache, block_tables, seq_lens, queries, bias, sinks)


def spoil_unseen(batch: Batch, spans: Sequence[tuple[int, int, int]], chance: random.Random) -> dict[int, list[int]]:
    """Put NaN and infinities at random places of the cache; returns the rows of each span that see none of them.

    Some keys and values of every request are spoilt, and most of what belongs to no token of the cache.
    """
    num_blocks, size = batch.kv_cache.num_blocks, batch.shape.block_size
    owners = {
        int(block) * size + offset: (request, index * size + offset)
        for request, blocks in enumerate(batch.block_tables.tolist())
        for index, block in enumerate(blocks)
        if block >= 0
        for offset in range(size)
    }
    spoilt: dict[int, set[int]] = {}
    for slot in range(num_blocks * size):
        request, position = owners.get(slot, (-1, 0))
        is_token = request >= 0 and position < batch.seq_lens[request]
        if chance.random() < (0.02 if is_token else 0.7):
            _spoil_slot(batch, slot, chance)
            spoilt.setdefault(request, set()).add(position)
    window = batch.shape.window or max(batch.seq_lens)
    return {
        i: [
            position - first
            for position in range(first, end)
            if spoilt.get(request, set()).isdisjoint(range(max(0, position - window + 1), position + 1))
        ]
        for i, (request, first, end) in enumerate(spans)
    }


def _spoil_slot(batch: Batch, slot: int, chance: random.Random) -> None:
    bad = chance.choice([float("nan"), float("inf"), float("-inf")])
    cache, (block, offset) = batch.kv_cache, divmod(slot, batch.shape.block_size)
    head = chance.randrange(batch.shape.num_kv_heads)
    if not cache.key.is_floating_point():
        chance.choice(cache.tensors[2:])[block, head, offset] = bad
        return
    pair_size, channel = cache.key.shape[-1], chance.randrange(batch.shape.head_dim)
    if chance.random() < 0.5:
        cache.key[block, head, channel // pair_size, offset, channel % pair_size] = bad
    else:
        cache.value[block, head, offset // pair_size, channel, offset % pair_size] = bad
