"""The Triton kernels as operations on tensors of a GPU."""

from collections.abc import Sequence

import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu import activations, few_rows, fp8, grouped_matmul, norms, row_max
from rayinfer_kernels.gpu.decode_attention import decode_attention
from rayinfer_kernels.gpu.language import HAS_TRITON
from rayinfer_kernels.gpu.layer_stack import GpuLayerStack
from rayinfer_kernels.gpu.paged_cache import PagedKVCache
from rayinfer_kernels.gpu.prefill_attention import prefill_attention
from rayinfer_kernels.gpu.rope_and_write import write_kv
from rayinfer_kernels.gpu.sampling import philox, sampling
from rayinfer_kernels.kv_cache import KVCache
from rayinfer_kernels.layer_stack import LayerStack, LayerWeights, PackedLinear, StackShape
from rayinfer_kernels.packed_weight import PackedWeight, WeightFormat


class GpuKernels:
    """An Implementation for tensors of a GPU; plain products of many rows are torch's own."""

    DTYPES = (torch.bfloat16, torch.float16, torch.float32) if HAS_TRITON else ()

    def pack(self, weight: torch.Tensor, is_gated: bool = False) -> PackedWeight | None:
        """See `ops.pack_weight`: torch's products read weights as they are."""
        return None

    def layer_stack(
        self, layers: Sequence[LayerWeights], last_norm: torch.Tensor, shape: StackShape
    ) -> LayerStack | None:
        """See `ops.layer_stack`."""
        return GpuLayerStack(layers, last_norm, shape)

    def packed_rows(self, weight: PackedWeight, indices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """See `ops.embedding`."""
        return reference.packed_rows(weight, indices, dtype)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """See `ops.linear`; few rows have a kernel of their own."""
        if few_rows.are_few_rows(x):
            return few_rows.few_rows_linear(x, PackedLinear(weight, bias))
        return reference.linear(x, weight, bias)

    def packed_linear(self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
        """See `ops.linear`."""
        if weight.format is not WeightFormat.FLOAT8_DYNAMIC:
            return reference.packed_linear(x, weight, bias)
        if few_rows.are_few_rows(x):
            return few_rows.few_rows_linear(x, PackedLinear(weight, bias))
        return fp8.linear(x, weight, bias)

    def packed_gated_linear(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, activation: str
    ) -> torch.Tensor:
        """See `ops.gated_linear`."""
        return self.gate(self.packed_linear(x, weight, bias), activation)

    def packed_grouped_linear(self, x: torch.Tensor, weight: PackedWeight, group_starts: torch.Tensor) -> torch.Tensor:
        """See `ops.grouped_linear`."""
        return reference.packed_grouped_linear(x, weight, group_starts)

    def write_kv(self, key: torch.Tensor, value: torch.Tensor, kv_cache: KVCache, slot_mapping: torch.Tensor) -> None:
        """See `ops.write_kv`."""
        write_kv(key, value, _paged(kv_cache), slot_mapping)

    def paged_attention(
        self,
        query: torch.Tensor,
        kv_cache: KVCache,
        block_tables: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        seq_lens: torch.Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        position_bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `ops.paged_attention`; every request has a new token."""
        if position_bias is not None:
            arguments = (query, kv_cache, block_tables, cu_seqlens_q, seq_lens, scale, window, softcap)
            return reference.paged_attention(*arguments, position_bias)
        cache = _paged(kv_cache)
        if len(query) == len(seq_lens):
            return decode_attention(query, cache, block_tables, seq_lens, scale, window, softcap)
        return prefill_attention(query, cache, block_tables, cu_seqlens_q, seq_lens, scale, window, softcap)

    def rotary_embedding(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """See `ops.rotary_embedding`; in a stack of layers it is part of another kernel."""
        return reference.rotary_embedding(x, cos, sin)

    def gate(self, stacked: torch.Tensor, activation: str) -> torch.Tensor:
        """Gate the second half of each row by the first."""
        return self.silu_and_mul(stacked) if activation == "silu" else self.gelu_tanh_and_mul(stacked)

    grouped_linear = staticmethod(grouped_matmul.grouped_linear)
    combine_rows = staticmethod(grouped_matmul.combine_rows)
    row_max = staticmethod(row_max.row_max)
    sample_rows = staticmethod(sampling.sample_rows)
    uniform = staticmethod(philox.uniform)
    rms_norm = staticmethod(norms.rms_norm)
    add_rms_norm = staticmethod(norms.add_rms_norm)
    layer_norm = staticmethod(norms.layer_norm)
    silu_and_mul = staticmethod(activations.silu_and_mul)
    gelu_tanh_and_mul = staticmethod(activations.gelu_tanh_and_mul)
    gelu = staticmethod(activations.gelu)
    gelu_tanh = staticmethod(activations.gelu_tanh)


def _paged(kv_cache: KVCache) -> PagedKVCache:
    if not isinstance(kv_cache, PagedKVCache):
        raise ValueError(f"a GPU computes with a PagedKVCache, not with a {type(kv_cache).__name__}")
    return kv_cache
