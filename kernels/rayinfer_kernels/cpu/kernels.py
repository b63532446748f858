"""The C++ kernels as operations on tensors: contiguity is checked, and plain pointers are passed."""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int, c_int32, c_int64, c_void_p
from typing import Any, ClassVar

import torch

from rayinfer_kernels.cpu.arguments import (
    IndexChecks,
    bias_arguments,
    cache_arguments,
    check_attention,
    check_cache,
    check_rotation,
    check_shape,
    check_slots,
    check_vector,
    check_weight,
    dense_last,
    vector,
)
from rayinfer_kernels.cpu.encoder_stack import SIGNATURE as ENCODER_SIGNATURE
from rayinfer_kernels.cpu.encoder_stack import CpuEncoderStack
from rayinfer_kernels.cpu.layer_stack import ACTIVATIONS, SIGNATURE, CpuLayerStack
from rayinfer_kernels.cpu.sampling import SAMPLING_SIGNATURES, CpuSampling, SamplingSettings
from rayinfer_kernels.encoder_stack import EmbeddingWeights, EncoderLayerWeights, EncoderStack, EncoderStackShape
from rayinfer_kernels.implementation import ArgmaxResult, RowMasks, SampledRows
from rayinfer_kernels.kv_cache import KVCache
from rayinfer_kernels.layer_stack import LayerStack, LayerWeights, StackShape
from rayinfer_kernels.low_rank import AdapterArgument, LowRank, add_low_rank_
from rayinfer_kernels.packed_weight import PackedWeight, WeightArgument, WeightFormat, pack
from rayinfer_kernels.reference.elementwise import check_mask_shapes
from rayinfer_kernels.reference.grouped_gemm import grouped_gemm
from rayinfer_kernels.reference.linear import linear

_SIZE, _POINTER = c_int64, c_void_p
_WEIGHT = ctypes.POINTER(WeightArgument)
_STRIDED_HEADS = (_POINTER, _SIZE, _SIZE)
_CACHE = (_POINTER, _POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _SIZE)
_ROWS_TO_ROWS = (_POINTER, _SIZE, _POINTER, _SIZE, _SIZE, c_int)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "write_kv": (*_STRIDED_HEADS, *_STRIDED_HEADS, *_CACHE, _POINTER, _SIZE, _SIZE, c_int),
    "run_layers": SIGNATURE,
    "run_encoder": ENCODER_SIGNATURE,
    "linear": (
        *(_POINTER, _SIZE, _WEIGHT, _POINTER, c_int32),
        *(ctypes.POINTER(AdapterArgument), _POINTER, _SIZE, _POINTER, _SIZE, c_int),
    ),
    "grouped_gemm": (_POINTER, _SIZE, _WEIGHT, _POINTER, _SIZE, _POINTER, _SIZE, c_int),
    "gather_rows": (_WEIGHT, _POINTER, _SIZE, _POINTER, c_int),
    "argmax": (_POINTER, _SIZE, _POINTER, _POINTER, _SIZE, _SIZE, c_int),
    **SAMPLING_SIGNATURES,
    "moe_combine": (_POINTER, _POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _SIZE, c_int),
    "paged_attention": (
        *(*_STRIDED_HEADS, _POINTER, *_CACHE, _POINTER, _SIZE, _POINTER, _POINTER),
        *(_SIZE, _SIZE, _SIZE, c_float, _SIZE, c_float, _POINTER, _SIZE, _POINTER, c_int),
    ),
    "rms_norm": (*(_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _POINTER, _POINTER), _SIZE, _SIZE, c_float, c_int, c_int),
    "layer_norm": (_POINTER, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE, _SIZE, c_float, c_int),
    "rotary_embedding": (_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE, _SIZE, c_int),
    "silu_and_mul": _ROWS_TO_ROWS,
    "gelu_tanh_and_mul": _ROWS_TO_ROWS,
    "gelu": _ROWS_TO_ROWS,
    "gelu_tanh": _ROWS_TO_ROWS,
}


class CpuKernels:
    """An Implementation for CPU tensors of one type."""

    DTYPES: ClassVar = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._checks = IndexChecks(library)
        functions = {}
        for name, signature in _SIGNATURES.items():
            function = library[f"rayinfer_{name}_{self.DTYPES[dtype]}"]
            function.argtypes, function.restype = signature, None
            functions[name] = function
        self._write_kv = functions["write_kv"]
        self._paged_attention = functions["paged_attention"]
        self._run_layers, self._run_encoder = functions["run_layers"], functions["run_encoder"]
        self._linear = functions["linear"]
        self._grouped_gemm = functions["grouped_gemm"]
        self._moe_combine = functions["moe_combine"]
        self._argmax = functions["argmax"]
        self._sampling = CpuSampling(functions["sample_rows"], functions["mask_rows"], functions["uniform"])
        self._gather_rows = functions["gather_rows"]
        self._rms_norm = functions["rms_norm"]
        self._rotary_embedding = functions["rotary_embedding"]
        self._layer_norm = functions["layer_norm"]
        self._silu_and_mul = functions["silu_and_mul"]
        self._gelu_tanh_and_mul = functions["gelu_tanh_and_mul"]
        self._gelu, self._gelu_tanh = functions["gelu"], functions["gelu_tanh"]

    pack = staticmethod(pack)
    linear = staticmethod(linear)
    grouped_gemm = staticmethod(grouped_gemm)
    add_low_rank_ = staticmethod(add_low_rank_)

    def layer_stack(
        self, layers: Sequence[LayerWeights], last_norm: torch.Tensor, shape: StackShape
    ) -> LayerStack | None:
        """See `ops.layer_stack`."""
        if any(not isinstance(linear.weight, PackedWeight) for layer in layers for linear in layer.linears):
            return None
        return CpuLayerStack(self._run_layers, self._checks, layers, last_norm, shape)

    def encoder_stack(
        self,
        layers: Sequence[EncoderLayerWeights],
        shape: EncoderStackShape,
        position_bias: torch.Tensor | None = None,
        embeddings: EmbeddingWeights | None = None,
    ) -> EncoderStack | None:
        """See `ops.encoder_stack`."""
        if any(not isinstance(linear.weight, PackedWeight) for layer in layers for linear in layer.linears):
            return None
        return CpuEncoderStack(self._run_encoder, self._checks, layers, shape, position_bias, embeddings)

    def packed_embedding(self, weight: PackedWeight, indices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """See `ops.embedding`."""
        is_in_groups = weight.format is WeightFormat.INT4_DYNAMIC or weight.format.has_groups
        if weight.is_gated or is_in_groups:  # few embeddings are
            return weight.rows(indices, dtype)
        check_weight(weight, weight.in_features, self.dtype)
        check_shape("indices", indices, indices.numel())
        indices = self._checks.within(indices, weight.num_rows)
        out = torch.empty((len(indices), weight.in_features), dtype=dtype)
        self._gather_rows(weight.argument, indices.data_ptr(), len(indices), out.data_ptr(), torch.get_num_threads())
        return out

    def packed_linear(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, low_rank: LowRank | None = None
    ) -> torch.Tensor:
        """See `ops.linear`."""
        if weight.is_gated:
            raise ValueError("linear takes no gated weight: use gated_linear")
        return self._multiply(x, weight, bias, None, low_rank)

    def packed_gated_linear(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        bias: torch.Tensor | None,
        activation: str,
        low_rank: LowRank | None = None,
    ) -> torch.Tensor:
        """See `ops.gated_linear`."""
        if not weight.is_gated:
            raise ValueError("gated_linear needs a gated weight")
        return self._multiply(x, weight, bias, activation, low_rank)

    def _multiply(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        bias: torch.Tensor | None,
        activation: str | None,
        low_rank: LowRank | None,
    ) -> torch.Tensor:
        rows = dense_last(x if x.dim() == 2 else x.reshape(-1, x.shape[-1]), self.dtype, 2)
        check_weight(weight, rows.shape[1], self.dtype)
        if bias is not None:
            bias = vector("bias", bias, weight.num_rows, self.dtype)
        out = torch.empty((*x.shape[:-1], weight.out_features), dtype=x.dtype)
        if not out.numel():
            return out
        terms: tuple[Any, ...] = (None, None, 0)
        if low_rank is not None:
            slots = low_rank.tokens.by_token
            check_shape("adapter slots", slots, len(rows))
            check_slots(slots, len(low_rank.table.argument))
            terms = (low_rank.table.argument, slots.data_ptr(), low_rank.table.width)
        self._linear(
            *(rows.data_ptr(), rows.stride(0), weight.argument, None if bias is None else bias.data_ptr()),
            *(ACTIVATIONS[activation], *terms, out.data_ptr(), len(rows), torch.get_num_threads()),
        )
        return out

    def packed_grouped_gemm(self, x: torch.Tensor, weight: PackedWeight, group_starts: torch.Tensor) -> torch.Tensor:
        """See `ops.grouped_gemm`."""
        x, num_groups = dense_last(x, self.dtype, 2), len(weight.panels)
        num_rows, in_features = x.shape
        check_weight(weight, in_features, self.dtype)
        if weight.panels.dim() != (4 if weight.format is WeightFormat.INT4_DYNAMIC else 5):
            raise ValueError("grouped_gemm needs a weight for each group")
        if weight.has_offsets or weight.format.has_groups:
            raise ValueError("grouped_gemm takes no weight with offsets or scales of groups")
        group_starts = self._checks.group_starts(group_starts, num_groups, num_rows)
        out = torch.empty((num_rows, weight.out_features), dtype=x.dtype)
        self._grouped_gemm(
            *(x.data_ptr(), x.stride(0), weight.argument, group_starts.data_ptr(), num_groups),
            *(out.data_ptr(), num_rows, torch.get_num_threads()),
        )
        return out

    def moe_combine(self, rows: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See `ops.moe_combine`."""
        rows, weights = dense_last(rows, self.dtype, 2).contiguous(), weights.float().contiguous()
        indices = self._checks.within(indices, len(rows))
        check_shape("indices", indices, len(indices), indices.shape[-1])
        check_shape("weights", weights, *indices.shape)
        out = torch.empty((len(indices), rows.shape[1]), dtype=rows.dtype)
        self._moe_combine(
            *(rows.data_ptr(), indices.data_ptr(), weights.data_ptr(), out.data_ptr()),
            *(*indices.shape, rows.shape[1], torch.get_num_threads()),
        )
        return out

    def argmax(self, rows: torch.Tensor) -> ArgmaxResult:
        """See `ops.argmax`."""
        rows = dense_last(rows, self.dtype, 2)
        values, indices = torch.empty(len(rows)), torch.empty(len(rows), dtype=torch.int64)
        self._argmax(
            *(rows.data_ptr(), rows.stride(0), values.data_ptr(), indices.data_ptr()),
            *(*rows.shape, torch.get_num_threads()),
        )
        return ArgmaxResult(values, indices)

    def mask_rows_(self, rows: torch.Tensor, lines: torch.Tensor, masks: torch.Tensor) -> None:
        """See `ops.mask_rows_`."""
        if rows.dtype != torch.float32 or rows.dim() != 2 or rows.stride(-1) != 1:
            raise ValueError(f"expected rows of float32 in one piece each, got {tuple(rows.shape)} of {rows.dtype}")
        check_mask_shapes(lines, masks, rows.shape[1])
        self._sampling.mask_(rows, RowMasks(self._checks.within(lines, len(rows)), masks.contiguous()))

    def uniform(self, seeds: torch.Tensor, positions: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        """See `ops.uniform`."""
        return self._sampling.uniform(seeds, positions, choices)

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
        logits = dense_last(logits, self.dtype, 2)
        if masks is not None:
            check_mask_shapes(masks.lines, masks.bits, logits.shape[1])
            masks = RowMasks(self._checks.within(masks.lines, len(logits)), masks.bits.contiguous())
        settings = SamplingSettings(temperature, top_k, top_p, min_p, uniform, is_greedy)
        return self._sampling(logits, settings, masks)

    def write_kv(self, key: torch.Tensor, value: torch.Tensor, kv_cache: KVCache, slot_mapping: torch.Tensor) -> None:
        """See `ops.write_kv`."""
        key, value = dense_last(key, self.dtype, 3), dense_last(value, self.dtype, 3)
        num_tokens, _, head_dim = key.shape
        cache = check_cache(kv_cache, head_dim, self.dtype)
        for name, heads in (("key", key), ("value", value)):
            check_shape(name, heads, len(slot_mapping), kv_cache.num_kv_heads, head_dim)
        slot_mapping = self._checks.within(slot_mapping, kv_cache.num_blocks * kv_cache.block_size)
        self._write_kv(
            *(key.data_ptr(), key.stride(0), key.stride(1)),
            *(value.data_ptr(), value.stride(0), value.stride(1)),
            *cache_arguments(cache),
            *(slot_mapping.data_ptr(), num_tokens, head_dim, torch.get_num_threads()),
        )

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
        """See `ops.paged_attention`."""
        query = dense_last(query, self.dtype, 3)
        num_tokens, num_heads, head_dim = query.shape
        out = torch.empty((num_tokens, num_heads, head_dim), dtype=query.dtype)
        block_tables, cu_seqlens_q, seq_lens = (
            tensor.to(torch.int32).contiguous() for tensor in (block_tables, cu_seqlens_q, seq_lens)
        )
        cache = check_cache(kv_cache, head_dim, self.dtype)
        check_attention(kv_cache, num_heads, window)
        check_vector("sinks", sinks, num_heads, torch.float32)
        self._checks.check_requests(block_tables, cu_seqlens_q, seq_lens, num_tokens, kv_cache, window or 0)
        self._paged_attention(
            *(query.data_ptr(), query.stride(0), query.stride(1), out.data_ptr()),
            *cache_arguments(cache),
            *(block_tables.data_ptr(), block_tables.shape[1], cu_seqlens_q.data_ptr(), seq_lens.data_ptr()),
            *(len(seq_lens), num_heads, head_dim),
            *(scale, window or 0, softcap or 0.0, *bias_arguments(position_bias, num_heads)),
            *(None if sinks is None else sinks.data_ptr(), torch.get_num_threads()),
        )
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False) -> torch.Tensor:
        """See `ops.rms_norm`."""
        heads = dense_last(x if x.dim() == 3 else x.reshape(-1, 1, x.shape[-1]), self.dtype, 3)
        out = torch.empty(x.shape, dtype=x.dtype)
        num_rows, num_heads, width = heads.shape
        weight = vector("weight", weight, width, self.dtype)
        self._rms_norm(
            *(heads.data_ptr(), num_heads, heads.stride(0), heads.stride(1)),
            *(None, weight.data_ptr(), out.data_ptr()),
            *(num_rows * num_heads, width, eps, unit_offset, torch.get_num_threads()),
        )
        return out

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False
    ) -> torch.Tensor:
        """See `ops.add_rms_norm`."""
        x = dense_last(x, self.dtype, 2)
        if residual.shape != x.shape or residual.dtype != x.dtype or not residual.is_contiguous():
            raise ValueError(
                f"the residual is changed in place: it has to be {tuple(x.shape)} of {x.dtype} in one piece,"
                f" got {tuple(residual.shape)} of {residual.dtype}"
            )
        out = torch.empty(x.shape, dtype=x.dtype)
        num_rows, width = x.shape
        weight = vector("weight", weight, width, self.dtype)
        self._rms_norm(
            *(x.data_ptr(), 1, x.stride(0), 0),
            *(residual.data_ptr(), weight.data_ptr(), out.data_ptr()),
            *(num_rows, width, eps, unit_offset, torch.get_num_threads()),
        )
        return out

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        """See `ops.layer_norm`."""
        x = dense_last(x, self.dtype, 2)
        weight, bias = (vector("weight and bias", each, x.shape[1], self.dtype) for each in (weight, bias))
        out = torch.empty(x.shape, dtype=x.dtype)
        self._layer_norm(
            *(x.data_ptr(), x.stride(0), weight.data_ptr(), bias.data_ptr(), out.data_ptr()),
            *(*x.shape, eps, torch.get_num_threads()),
        )
        return out

    def rotary_embedding(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """See `ops.rotary_embedding`."""
        x, cos, sin = dense_last(x, self.dtype, 3), cos.contiguous(), sin.contiguous()
        num_tokens, num_heads, head_dim = x.shape
        check_rotation(cos, sin, num_tokens, head_dim, self.dtype)
        out = torch.empty((num_tokens, num_heads, head_dim), dtype=x.dtype)
        self._rotary_embedding(
            *(x.data_ptr(), num_heads, x.stride(0), x.stride(1), cos.data_ptr(), sin.data_ptr(), out.data_ptr()),
            *(num_tokens, head_dim, torch.get_num_threads()),
        )
        return out

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """See `ops.silu_and_mul`."""
        return self._change_rows(self._silu_and_mul, x, 2)

    def gelu_tanh_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """See `ops.gelu_tanh_and_mul`."""
        return self._change_rows(self._gelu_tanh_and_mul, x, 2)

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        """See `ops.gelu`."""
        return self._change_rows(self._gelu, x, 1)

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        """See `ops.gelu_tanh`."""
        return self._change_rows(self._gelu_tanh, x, 1)

    def _change_rows(self, function: Callable[..., None], x: torch.Tensor, num_parts: int) -> torch.Tensor:
        x = dense_last(x, self.dtype, 2)
        if x.shape[1] % num_parts:
            raise ValueError(f"the width must be a multiple of {num_parts}, got {x.shape[1]}")
        out = torch.empty((len(x), x.shape[1] // num_parts), dtype=x.dtype)
        function(x.data_ptr(), x.stride(0), out.data_ptr(), *out.shape, torch.get_num_threads())
        return out
