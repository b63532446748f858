"""Batches over a GPU's paged cache, random but always the same, and how far a kernel may be from the reference."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu.language import IS_INTERPRETED, tl, triton
from rayinfer_kernels.gpu.paged_cache import PagedKVCache, allocate_paged_cache, in_cache_type

F32, BF16, F16, F8 = torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn
# Of the model, and of its cache.
TYPES = [(F32, F32), (BF16, BF16), (F16, F16), (BF16, F8), (F16, F8), (F32, F8)]


@dataclass(frozen=True)
class PagedBatch:
    """Requests with (context, new tokens) each; memory that belongs to no token holds NaN."""

    query: torch.Tensor  # [num_tokens, num_heads, head_dim]
    cache: PagedKVCache
    block_tables: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    scale: float

    def sinks(self) -> torch.Tensor:
        """Scores of a sink for each head, some of which take most of the weight."""
        return torch.arange(self.query.shape[1], dtype=torch.float32, device=self.query.device) % 5 - 1

    def expected(
        self, window: int | None = None, softcap: float | None = None, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return what the reference gives, in float32 throughout."""
        lengths = (self.cu_seqlens_q, self.seq_lens)
        batch = (self.query.float(), self.cache, self.block_tables, *lengths, self.scale)
        return reference.paged_attention(*batch, window, softcap, sinks=sinks)

    def spoil(self, positions: Sequence[range]) -> None:
        """Write NaN and infinities over these positions of each request; in eight bits, which have none, NaN alone."""
        bad = torch.tensor([float("nan"), float("inf"), float("-inf")]).to(self.cache.key.dtype)
        for table, spoilt in zip(self.block_tables.tolist(), positions, strict=True):
            for position in spoilt:
                for i, tensor in enumerate(self.cache.tensors):
                    block, offset = divmod(position, self.cache.block_size)
                    tensor[table[block], :, offset] = bad[(position + i) % len(bad)]


def make_batch(
    requests: Sequence[tuple[int, int]],
    device: torch.device,
    *,
    num_kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    types: tuple[torch.dtype, torch.dtype],
    strided: bool = False,
) -> PagedBatch:
    """Blocks lie scattered in a pool; where it is strided, rows of query and block table are parts of wider ones."""
    chance, (dtype, cache_dtype) = torch.Generator().manual_seed(0), types
    counts = [-(-context // block_size) for context, _ in requests]
    cache = allocate_paged_cache(sum(counts) + 2, block_size, num_kv_heads, head_dim, cache_dtype, device)
    for tensor in cache.tensors:
        tensor.copy_(torch.full((1,), float("nan")).to(cache_dtype))
    order = torch.randperm(sum(counts) + 2, generator=chance).to(torch.int32)
    block_tables = torch.full((len(requests), max(counts) + 3), -1, dtype=torch.int32)
    for i, (context, _) in enumerate(requests):
        block_tables[i, : counts[i]] = order[sum(counts[:i]) : sum(counts[: i + 1])]
        tokens = torch.arange(context)
        slot_mapping = block_tables[i, tokens // block_size].long() * block_size + tokens % block_size
        key, value = (torch.randn(context, num_kv_heads, head_dim, generator=chance) for _ in range(2))
        cache.write(key.to(device), value.to(device), slot_mapping.to(device))
    num_queries = torch.tensor([0, *(new for _, new in requests)])
    shape = (int(num_queries.sum()), num_kv_heads * group, head_dim)
    query = torch.randn((shape[0], shape[1] + 1, shape[2] + 16), generator=chance).to(device, dtype)
    query, block_tables = query[:, 1:, :head_dim], block_tables.to(device)[:, : max(counts) + 1]
    return PagedBatch(
        query if strided else query.contiguous(),
        cache,
        block_tables if strided else block_tables.contiguous(),
        num_queries.cumsum(0).to(device, torch.int32),
        torch.tensor([context for context, _ in requests], dtype=torch.int32, device=device),
        head_dim**-0.5,
    )


def assert_near(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Float32 to 1e-5, others to one unit in the last place, on a GPU one of 1: it rounds weights to the type, too."""
    assert actual.dtype == dtype
    if dtype is F32:
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
        return
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(actual.float(), expected, atol=1e-5 if IS_INTERPRETED else unit, rtol=unit)


def as_stored(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Float32 numbers as a kernel rounds them to a cache's type, in float32 again.

    The interpreter's way to eight bits has a fault: numbers just below a power of two become half of it. So we ask it.
    """
    if dtype is not F8 or not IS_INTERPRETED:
        return in_cache_type(numbers, dtype).float()
    rounded = torch.empty(numbers.shape, dtype=dtype)
    _round[(1,)](numbers.clamp(-448, 448).contiguous(), rounded, numbers.numel(), 1 << numbers.numel().bit_length())
    return rounded.float()


@triton.jit
def _round(numbers, rounded, count, WIDTH: tl.constexpr):
    places = tl.arange(0, WIDTH)
    number = tl.load(numbers + places, mask=places < count)
    tl.store(rounded + places, number.to(rounded.dtype.element_ty), mask=places < count)
