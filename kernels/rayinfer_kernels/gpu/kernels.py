"""The Triton kernels as operations on tensors of a GPU."""

from collections.abc import Sequence

import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu import activations, fp8, norms
from rayinfer_kernels.gpu import low_rank as low_rank_terms
from rayinfer_kernels.gpu.argmax import argmax
from rayinfer_kernels.gpu.decode_attention import decode_attention
from rayinfer_kernels.gpu.grouped_gemm import grouped_gemm, moe_combine
from rayinfer_kernels.gpu.language import HAS_TRITON
from rayinfer_kernels.gpu.layer_stack import GpuLayerStack
from rayinfer_kernels.gpu.mask_rows import mask_rows_
from rayinfer_kernels.gpu.paged_cache import PagedKVCache
from rayinfer_kernels.gpu.prefill_attention import prefill_attention
from rayinfer_kernels.gpu.rope_and_write import write_kv
from rayinfer_kernels.gpu.sampling import philox, sampling
from rayinfer_kernels.gpu.skinny_gemm import is_skinny, skinny_gemm
from rayinfer_kernels.implementation import RowMasks, SampledRows
from rayinfer_kernels.kv_cache import KVCache
from rayinfer_kernels.layer_stack import LayerStack, LayerWeights, PackedLinear, StackShape
from rayinfer_kernels.low_rank import LowRank
from rayinfer_kernels.packed_weight import PackedWeight, WeightFormat
from rayinfer_kernels.reference.elementwise import check_mask_shapes


class GpuKernels:
    """An Implementation for tensors of a GPU; plain products of many rows are torch's own."""

    DTYPES = (torch.bfloat16, torch.float16, torch.float32) if HAS_TRITON else ()

    def layer_stack(
        self, layers: Sequence[LayerWeights], last_norm: torch.Tensor, shape: StackShape
    ) -> LayerStack | None:
        """See `ops.layer_stack`."""
        return GpuLayerStack(layers, last_norm, shape)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """See `ops.linear`; few rows have a kernel of their own."""
        if is_skinny(x):
            return skinny_gemm(x, PackedLinear(weight, bias))
        return reference.linear(x, weight, bias)

    def packed_linear(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, low_rank: LowRank | None = None
    ) -> torch.Tensor:
        """See `ops.linear`."""
        if low_rank is not None:
            return low_rank_terms.add_low_rank_(
                self.packed_linear(x, weight, bias), x, low_rank, is_gated=weight.is_gated
            )
        if weight.format is not WeightFormat.FLOAT8_DYNAMIC:
            return reference.packed_linear(x, weight, bias)
        if is_skinny(x):
            return skinny_gemm(x, PackedLinear(weight, bias))
        return fp8.linear(x, weight, bias)

    def packed_gated_linear(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        bias: torch.Tensor | None,
        activation: str,
        low_rank: LowRank | None = None,
    ) -> torch.Tensor:
        """See `ops.gated_linear`."""
        return self.gate(self.packed_linear(x, weight, bias, low_rank), activation)

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
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `ops.paged_attention`; every request has a new token."""
        if position_bias is not None:
            arguments = (query, kv_cache, block_tables, cu_seqlens_q, seq_lens, scale, window, softcap)
            return reference.paged_attention(*arguments, position_bias, sinks)
        cache = _paged(kv_cache)
        if len(query) == len(seq_lens):
            return decode_attention(query, cache, block_tables, seq_lens, scale, window, softcap, sinks=sinks)
        arguments = (query, cache, block_tables, cu_seqlens_q, seq_lens, scale, window, softcap)
        return prefill_attention(*arguments, sinks=sinks)

    def gate(self, stacked: torch.Tensor, activation: str) -> torch.Tensor:
        """Gate the second half of each row by the first."""
        return self.silu_and_mul(stacked) if activation == "silu" else self.gelu_tanh_and_mul(stacked)

    def sample_rows(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        uniform: torch.Tensor,
        is_greedy: torch.Tensor,
        masks: RowMasks | None = None,
    ) -> SampledRows:
        """See `ops.sample_rows`."""
        if masks is not None:
            check_mask_shapes(masks.lines, masks.bits, logits.shape[1])
        return sampling.sample_rows(logits, temperature, top_k, top_p, min_p, uniform, is_greedy, masks)

    # Torch's products read weights as they are; a stack of layers has a rotation of its own.
    pack = staticmethod(reference.pack)
    encoder_stack = staticmethod(reference.encoder_stack)
    packed_embedding = staticmethod(reference.packed_embedding)
    packed_grouped_gemm = staticmethod(reference.packed_grouped_gemm)
    rotary_embedding = staticmethod(reference.rotary_embedding)
    grouped_gemm = staticmethod(grouped_gemm)
    moe_combine = staticmethod(moe_combine)
    add_low_rank_ = staticmethod(low_rank_terms.add_low_rank_)
    argmax = staticmethod(argmax)
    mask_rows_ = staticmethod(mask_rows_)
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
        raise ValueError(f"GPU kernels need a PagedKVCache, got a {type(kv_cache).__name__}")
    return kv_cache
