"""The C++ kernels as operations on tensors: checks what must be contiguous and passes plain pointers."""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int, c_int32, c_int64, c_void_p
from typing import Any, ClassVar

import torch

from rayinfer_kernels.cpu.layer_stack import ACTIVATIONS, SIGNATURE, CpuLayerStack
from rayinfer_kernels.implementation import RowMax
from rayinfer_kernels.kv_cache import KVCache
from rayinfer_kernels.layer_stack import LayerStack, LayerWeights, StackShape
from rayinfer_kernels.packed_weight import PackedWeight, WeightArgument, WeightFormat, pack

_SIZE, _POINTER = c_int64, c_void_p
_WEIGHT = ctypes.POINTER(WeightArgument)
_STRIDED_HEADS = (_POINTER, _SIZE, _SIZE)
_CACHE = (_POINTER, _POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _SIZE)
_ROWS_TO_ROWS = (_POINTER, _SIZE, _POINTER, _SIZE, _SIZE, c_int)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "write_kv": (*_STRIDED_HEADS, *_STRIDED_HEADS, *_CACHE, _POINTER, _SIZE, _SIZE, c_int),
    "run_layers": SIGNATURE,
    "linear": (_POINTER, _SIZE, _WEIGHT, _POINTER, c_int32, _POINTER, _SIZE, c_int),
    "grouped_linear": (_POINTER, _SIZE, _WEIGHT, _POINTER, _SIZE, _POINTER, _SIZE, c_int),
    "take_rows": (_WEIGHT, _POINTER, _SIZE, _POINTER, c_int),
    "row_max": (_POINTER, _SIZE, _POINTER, _POINTER, _SIZE, _SIZE, c_int),
    "combine_rows": (_POINTER, _POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _SIZE, c_int),
    "paged_attention": (
        *(*_STRIDED_HEADS, _POINTER, *_CACHE, _POINTER, _SIZE, _POINTER, _POINTER),
        *(_SIZE, _SIZE, _SIZE, c_float, _SIZE, c_float, _POINTER, _SIZE, c_int),
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
        functions = {}
        for name, signature in _SIGNATURES.items():
            function = library[f"rayinfer_{name}_{self.DTYPES[dtype]}"]
            function.argtypes, function.restype = signature, None
            functions[name] = function
        self._write_kv = functions["write_kv"]
        self._paged_attention = functions["paged_attention"]
        self._run_layers = functions["run_layers"]
        self._linear = functions["linear"]
        self._grouped_linear = functions["grouped_linear"]
        self._combine_rows = functions["combine_rows"]
        self._row_max = functions["row_max"]
        self._take_rows = functions["take_rows"]
        self._rms_norm = functions["rms_norm"]
        self._rotary_embedding = functions["rotary_embedding"]
        self._layer_norm = functions["layer_norm"]
        self._silu_and_mul = functions["silu_and_mul"]
        self._gelu_tanh_and_mul = functions["gelu_tanh_and_mul"]
        self._gelu, self._gelu_tanh = functions["gelu"], functions["gelu_tanh"]

    def pack(self, weight: torch.Tensor, is_gated: bool = False) -> PackedWeight:
        """See `ops.pack_weight`."""
        return pack(weight, is_gated=is_gated)

    def layer_stack(
        self, layers: Sequence[LayerWeights], last_norm: torch.Tensor, shape: StackShape
    ) -> LayerStack | None:
        """See `ops.layer_stack`."""
        return CpuLayerStack(self._run_layers, layers, last_norm, shape)

    def packed_rows(self, weight: PackedWeight, indices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """See `ops.embedding`."""
        if weight.is_gated or weight.format is WeightFormat.INT4_DYNAMIC:  # no embedding is
            return weight.rows(indices, dtype)
        assert weight.format.is_quantized or weight.panels.dtype == dtype, f"{weight.format.name} rows as {dtype}"
        indices = indices.to(torch.int64).contiguous()
        out = torch.empty((len(indices), weight.in_features), dtype=dtype)
        self._take_rows(weight.argument, indices.data_ptr(), len(indices), out.data_ptr(), torch.get_num_threads())
        return out

    def packed_linear(self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
        """See `ops.linear`."""
        assert not weight.is_gated
        return self._multiply(x, weight, bias, None)

    def packed_gated_linear(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, activation: str
    ) -> torch.Tensor:
        """See `ops.gated_linear`."""
        assert weight.is_gated
        return self._multiply(x, weight, bias, activation)

    def _multiply(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, activation: str | None
    ) -> torch.Tensor:
        rows = _dense_last(x if x.dim() == 2 else x.reshape(-1, x.shape[-1]))
        assert rows.shape[1] == weight.in_features, f"{rows.shape[1]} inputs for a weight of {weight.in_features}"
        out = torch.empty((*x.shape[:-1], weight.out_features), dtype=x.dtype)
        self._linear(
            *(rows.data_ptr(), rows.stride(0), weight.argument, None if bias is None else bias.data_ptr()),
            *(ACTIVATIONS[activation], out.data_ptr(), len(rows), torch.get_num_threads()),
        )
        return out

    def packed_grouped_linear(self, x: torch.Tensor, weight: PackedWeight, group_starts: torch.Tensor) -> torch.Tensor:
        """See `ops.grouped_linear`."""
        x, group_starts = _dense_last(x), group_starts.to(torch.int32).contiguous()
        num_rows, in_features = x.shape
        assert in_features == weight.in_features, f"{in_features} inputs for weights of {weight.in_features}"
        assert len(group_starts) == len(weight.panels) + 1, "a start for each group, and an end"
        out = torch.empty((num_rows, weight.out_features), dtype=x.dtype)
        self._grouped_linear(
            *(x.data_ptr(), x.stride(0), weight.argument, group_starts.data_ptr(), len(group_starts) - 1),
            *(out.data_ptr(), num_rows, torch.get_num_threads()),
        )
        return out

    def combine_rows(self, rows: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See `ops.combine_rows`."""
        rows, indices, weights = rows.contiguous(), indices.to(torch.int64).contiguous(), weights.float().contiguous()
        out = torch.empty((len(indices), rows.shape[1]), dtype=rows.dtype)
        self._combine_rows(
            *(rows.data_ptr(), indices.data_ptr(), weights.data_ptr(), out.data_ptr()),
            *(*indices.shape, rows.shape[1], torch.get_num_threads()),
        )
        return out

    def row_max(self, rows: torch.Tensor) -> RowMax:
        """See `ops.row_max`."""
        rows = _dense_last(rows)
        values, indices = torch.empty(len(rows)), torch.empty(len(rows), dtype=torch.int64)
        self._row_max(
            *(rows.data_ptr(), rows.stride(0), values.data_ptr(), indices.data_ptr()),
            *(*rows.shape, torch.get_num_threads()),
        )
        return RowMax(values, indices)

    def write_kv(self, key: torch.Tensor, value: torch.Tensor, kv_cache: KVCache, slots: torch.Tensor) -> None:
        """See `ops.write_kv`."""
        key, value, slots = _dense_last(key), _dense_last(value), slots.to(torch.int64).contiguous()
        num_tokens, _, head_dim = key.shape
        self._write_kv(
            *(key.data_ptr(), key.stride(0), key.stride(1)),
            *(value.data_ptr(), value.stride(0), value.stride(1)),
            *_cache_arguments(kv_cache, key.dtype),
            *(slots.data_ptr(), num_tokens, head_dim, torch.get_num_threads()),
        )

    def paged_attention(
        self,
        query: torch.Tensor,
        kv_cache: KVCache,
        block_tables: torch.Tensor,
        query_starts: torch.Tensor,
        context_lengths: torch.Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        position_bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `ops.paged_attention`."""
        query = _dense_last(query)
        num_tokens, num_heads, head_dim = query.shape
        out = torch.empty((num_tokens, num_heads, head_dim), dtype=query.dtype)
        block_tables, query_starts, context_lengths = (
            tensor.to(torch.int32).contiguous() for tensor in (block_tables, query_starts, context_lengths)
        )
        self._paged_attention(
            *(query.data_ptr(), query.stride(0), query.stride(1), out.data_ptr()),
            *_cache_arguments(kv_cache, query.dtype),
            *(block_tables.data_ptr(), block_tables.shape[1], query_starts.data_ptr(), context_lengths.data_ptr()),
            *(len(context_lengths), num_heads, head_dim),
            *(scale, window or 0, softcap or 0.0, *_bias_arguments(position_bias), torch.get_num_threads()),
        )
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False) -> torch.Tensor:
        """See `ops.rms_norm`."""
        heads = _dense_last(x if x.dim() == 3 else x.reshape(-1, 1, x.shape[-1]))
        out = torch.empty(x.shape, dtype=x.dtype)
        num_rows, num_heads, width = heads.shape
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
        assert residual.is_contiguous(), "the residual is changed in place"
        x = _dense_last(x)
        out = torch.empty(x.shape, dtype=x.dtype)
        num_rows, width = x.shape
        self._rms_norm(
            *(x.data_ptr(), 1, x.stride(0), 0),
            *(residual.data_ptr(), weight.data_ptr(), out.data_ptr()),
            *(num_rows, width, eps, unit_offset, torch.get_num_threads()),
        )
        return out

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        """See `ops.layer_norm`."""
        x = _dense_last(x)
        out = torch.empty(x.shape, dtype=x.dtype)
        self._layer_norm(
            *(x.data_ptr(), x.stride(0), weight.data_ptr(), bias.data_ptr(), out.data_ptr()),
            *(*x.shape, eps, torch.get_num_threads()),
        )
        return out

    def rotary_embedding(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """See `ops.rotary_embedding`."""
        x, cos, sin = _dense_last(x), cos.contiguous(), sin.contiguous()
        num_tokens, num_heads, head_dim = x.shape
        out = torch.empty((num_tokens, num_heads, head_dim), dtype=x.dtype)
        self._rotary_embedding(
            *(x.data_ptr(), num_heads, x.stride(0), x.stride(1), cos.data_ptr(), sin.data_ptr(), out.data_ptr()),
            *(num_tokens, head_dim, torch.get_num_threads()),
        )
        return out

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """See `ops.silu_and_mul`."""
        return _change_rows(self._silu_and_mul, x, x.shape[1] // 2)

    def gelu_tanh_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """See `ops.gelu_tanh_and_mul`."""
        return _change_rows(self._gelu_tanh_and_mul, x, x.shape[1] // 2)

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        """See `ops.gelu`."""
        return _change_rows(self._gelu, x, x.shape[1])

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        """See `ops.gelu_tanh`."""
        return _change_rows(self._gelu_tanh, x, x.shape[1])


def _change_rows(function: Callable[..., None], x: torch.Tensor, width: int) -> torch.Tensor:
    x = _dense_last(x)
    out = torch.empty((len(x), width), dtype=x.dtype)
    function(x.data_ptr(), x.stride(0), out.data_ptr(), len(x), width, torch.get_num_threads())
    return out


def _dense_last(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _bias_arguments(bias: torch.Tensor | None) -> tuple[int | None, int]:
    if bias is None:
        return None, 0
    assert bias.is_contiguous(), "its rows are read one after the other"
    assert bias.dtype == torch.float32, "it is added to scores of this type, whatever the queries are"
    return bias.data_ptr(), bias.shape[1]


def _cache_arguments(cache: KVCache, dtype: torch.dtype) -> tuple[int | None, ...]:
    scales: tuple[int | None, int | None]
    if cache.scales is None:
        assert cache.key.dtype == dtype, f"a cache of {cache.key.dtype} for heads of {dtype}"
        scales = (None, None)
    else:
        scales = (cache.scales.key.data_ptr(), cache.scales.value.data_ptr())
    numbers = (cache.key.data_ptr(), cache.value.data_ptr())
    return *numbers, *scales, cache.num_kv_heads, cache.block_size, cache.padded_dim
