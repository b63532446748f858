"""Validation of arguments for the C++ kernels, which check no bounds: a bad argument is an error before the call."""

import ctypes
from ctypes import c_int32, c_int64, c_void_p

import torch

from rayinfer_kernels.kv_cache import KVCache
from rayinfer_kernels.packed_weight import PackedWeight
from rayinfer_kernels.vnni_cache import VnniKVCache


class IndexChecks:
    """Bounds checks of index tensors (core/index_checks.cpp)."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._are_within = library["rayinfer_are_within"]
        self._are_within.argtypes, self._are_within.restype = (c_void_p, c_int64, c_int64), c_int32
        self._starts_cover = library["rayinfer_starts_cover"]
        self._starts_cover.argtypes, self._starts_cover.restype = (c_void_p, c_int64, c_int64), c_int32
        self._first_misfit = library["rayinfer_first_misfit"]
        sizes = (c_int64,) * 5
        self._first_misfit.argtypes = (c_void_p, c_int64, c_void_p, c_void_p, *sizes)
        self._first_misfit.restype = c_int64

    def within(self, indices: torch.Tensor, limit: int) -> torch.Tensor:
        """Return indices as int64, in one piece; all of them have to be in [0, limit)."""
        indices = indices.to(torch.int64).contiguous()
        if not self._are_within(indices.data_ptr(), indices.numel(), limit):
            raise IndexError(f"indices from {indices.min()} to {indices.max()} are outside [0, {limit})")
        return indices

    def group_starts(self, starts: torch.Tensor, num_groups: int, num_rows: int) -> torch.Tensor:
        """Return the starts of groups as int32, in one piece."""
        starts = starts.to(torch.int32).contiguous()
        check_shape("group_starts", starts, num_groups + 1)
        if not self._starts_cover(starts.data_ptr(), num_groups, num_rows):
            raise ValueError(f"group_starts have to ascend from 0 to {num_rows} rows, got {starts.tolist()}")
        return starts

    def check_requests(
        self,
        block_tables: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        seq_lens: torch.Tensor,
        num_tokens: int,
        cache: KVCache,
        window: int,
    ) -> None:
        """Reject a step that reads out of bounds; its tensors are of int32 and contiguous."""
        num_requests = len(seq_lens)
        check_shape("cu_seqlens_q", cu_seqlens_q, num_requests + 1)
        if block_tables.dim() != 2 or len(block_tables) != num_requests:
            raise ValueError(f"block_tables must be [{num_requests}, max_blocks], got {tuple(block_tables.shape)}")
        request = self._first_misfit(
            *(block_tables.data_ptr(), block_tables.shape[1], cu_seqlens_q.data_ptr(), seq_lens.data_ptr()),
            *(num_requests, num_tokens, cache.block_size, cache.num_blocks, window),
        )
        if request >= 0:
            begin, end = cu_seqlens_q[request : request + 2].tolist()
            raise IndexError(
                f"request {request}: tokens {begin} to {end} of {num_tokens}, a context of {seq_lens[request]},"
                f" blocks {block_tables[request].tolist()[:20]} of a pool of {cache.num_blocks}"
            )


def check_shape(name: str, tensor: torch.Tensor, *shape: int) -> None:
    """Reject a tensor of another shape."""
    if tensor.shape != shape:
        raise ValueError(f"{name} must be {shape}, got {tuple(tensor.shape)}")


def dense_last(x: torch.Tensor, dtype: torch.dtype, num_axes: int) -> torch.Tensor:
    """Return x with its last axis in one piece."""
    if x.dtype != dtype or x.dim() != num_axes:
        raise ValueError(f"expected {num_axes} axes of {dtype}, got {tuple(x.shape)} of {x.dtype}")
    return x if x.stride(-1) == 1 else x.contiguous()


def vector(name: str, x: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Return x [width] in one piece."""
    if x.dtype != dtype or x.shape != (width,):
        raise ValueError(f"{name} has to be ({width},) of {dtype}, got {tuple(x.shape)} of {x.dtype}")
    return x.contiguous()


def check_vector(name: str, x: torch.Tensor | None, width: int, dtype: torch.dtype) -> None:
    """Reject a vector of another width or type, or in pieces; None is none."""
    if x is not None and (x.shape != (width,) or x.dtype != dtype or not x.is_contiguous()):
        raise ValueError(f"{name} has to be ({width},) of {dtype} in one piece, got {tuple(x.shape)} of {x.dtype}")


def check_weight(weight: PackedWeight, in_features: int, dtype: torch.dtype) -> None:
    """Reject a weight of other inputs than rows of this width and type have."""
    if in_features != weight.in_features:
        raise ValueError(f"in_features must be {weight.in_features}, the weight's, got {in_features}")
    if not weight.format.is_quantized and weight.panels.dtype != dtype:
        raise ValueError(f"rows are {dtype}, and the weight is {weight.panels.dtype}")


def bias_arguments(bias: torch.Tensor | None, num_heads: int) -> tuple[int | None, int]:
    """Return the pointer of a position bias and its number of distances."""
    if bias is None:
        return None, 0
    # It is added to scores of float32, whatever the queries are.
    is_matrix = bias.dim() == 2 and bias.shape[0] == num_heads and bias.shape[1] > 0
    if bias.dtype != torch.float32 or not is_matrix or not bias.is_contiguous():
        raise ValueError(
            f"position_bias has to be float32 [{num_heads}, num_distances] in one piece, got {tuple(bias.shape)} of"
            f" {bias.dtype}"
        )
    return bias.data_ptr(), bias.shape[1]


def check_slots(slots: torch.Tensor, num_slots: int) -> None:
    """Reject slots of adapters that a table does not have; -1 is none."""
    if slots.dtype != torch.int32 or not slots.is_contiguous():
        raise ValueError(f"slots of adapters have to be int32 in one piece, got {slots.dtype}")
    if len(slots) and not -1 <= int(slots.min()) <= int(slots.max()) < num_slots:
        raise ValueError(f"slots of adapters must lie below {num_slots}, got {int(slots.min())} to {int(slots.max())}")


def check_cache(cache: KVCache, head_dim: int, dtype: torch.dtype) -> VnniKVCache:
    """Reject a cache of other heads, and one that is laid out for a GPU."""
    if not isinstance(cache, VnniKVCache):
        raise TypeError(f"CPU kernels need a VnniKVCache, got a {type(cache).__name__}")
    if cache.scales is None and cache.key.dtype != dtype:
        raise ValueError(f"the KV cache is {cache.key.dtype}, and the heads are {dtype}")
    if not cache.padded_dim - 16 < head_dim <= cache.padded_dim:
        raise ValueError(f"the KV cache is for heads of {cache.padded_dim} channels, got {head_dim}")
    return cache


def check_attention(cache: KVCache, num_heads: int, window: int | None) -> None:
    """Reject shapes that the kernel cannot cut into vectors of tokens and groups of heads."""
    if cache.block_size % 8:
        raise ValueError(f"block_size must be a multiple of 8, got {cache.block_size}")
    if num_heads % cache.num_kv_heads or not num_heads:
        raise ValueError(f"num_heads must be a multiple of num_kv_heads={cache.num_kv_heads}, got {num_heads}")
    if window is not None and window < 0:
        raise ValueError(f"window must not be below 0, got {window}")


def check_rotation(cos: torch.Tensor, sin: torch.Tensor, num_rows: int, width: int, dtype: torch.dtype) -> None:
    """Reject rotary tables of other rows, and a width that does not split in halves."""
    if width % 2:
        raise ValueError(f"rotary_dim must be even, got {width}")
    for name, table in (("cos", cos), ("sin", sin)):
        check_shape(name, table, num_rows, width)
        if table.dtype != dtype:
            raise ValueError(f"{name} is {table.dtype}, and the heads are {dtype}")


def cache_arguments(cache: VnniKVCache) -> tuple[int | None, ...]:
    """Return the pointers of a cache's tensors, and their sizes."""
    scales: tuple[int | None, int | None] = (None, None)
    if cache.scales is not None:
        scales = (cache.scales.key.data_ptr(), cache.scales.value.data_ptr())
    numbers = (cache.key.data_ptr(), cache.value.data_ptr())
    return *numbers, *scales, cache.num_kv_heads, cache.block_size, cache.padded_dim
