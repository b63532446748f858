"""All layers of a decoder in one call of the C++ kernels."""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int32, c_int64, c_void_p

import numpy as np
import torch

from rayinfer_kernels.cpu.arguments import (
    IndexChecks,
    check_attention,
    check_cache,
    check_rotation,
    check_shape,
    check_slots,
    check_vector,
    check_weight,
    dense_last,
)
from rayinfer_kernels.kv_cache import KVCache
from rayinfer_kernels.layer_stack import LayerWeights, OutputTokens, StackShape, StepTensors
from rayinfer_kernels.low_rank import AdapterArgument
from rayinfer_kernels.packed_weight import PackedWeight, WeightArgument

ACTIVATIONS = {None: 0, "silu": 1, "gelu_tanh": 2, "gelu": 3, "relu": 4}  # as in gemm/linear.h
_WEIGHT = ctypes.POINTER(WeightArgument)
_ADAPTERS = ctypes.POINTER(AdapterArgument)


class LayerArgument(ctypes.Structure):
    """See layer_stack.cpp."""

    _fields_ = (
        *((name, c_void_p) for name in ("attention_norm", "feed_forward_norm", "query_norm", "key_norm")),
        *((name, _WEIGHT) for name in ("qkv", "output", "gate_up", "down")),
        *((f"{name}_bias", c_void_p) for name in ("qkv", "output", "gate_up", "down")),
        *((name, c_void_p) for name in ("key", "value", "key_scales", "value_scales")),
        *((f"{name}_adapters", _ADAPTERS) for name in ("qkv", "output", "gate_up", "down")),
        *((name, c_int64) for name in ("window", "is_rotated")),
    )


class StackArgument(ctypes.Structure):
    """See layer_stack.cpp."""

    _fields_ = (
        ("layers", ctypes.POINTER(LayerArgument)),
        *((name, c_void_p) for name in ("last_norm", "cos", "sin")),
        *((name, c_int64) for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim")),
        *((name, c_int64) for name in ("rotary_dim", "block_size", "padded_dim")),
        *((name, c_float) for name in ("eps", "scale", "softcap")),
        ("activation", c_int32),
    )


class StepArgument(ctypes.Structure):
    """See layer_stack.cpp."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "out", "positions", "slot_mapping", "cu_seqlens_q", "seq_lens")),
        *((name, c_void_p) for name in ("block_tables", "adapter_slots", "cu_outputs")),
        *((name, c_int64) for name in ("block_table_stride", "num_tokens", "num_requests", "num_outputs")),
        ("low_rank_width", c_int64),
    )


RunLayers = Callable[[StackArgument, StepArgument, int], None]
SIGNATURE = (ctypes.POINTER(StackArgument), ctypes.POINTER(StepArgument), ctypes.c_int)


class CpuLayerStack:
    """A LayerStack whose weights are packed."""

    takes_adapters = True

    def __init__(
        self,
        run_layers: RunLayers,
        checks: IndexChecks,
        layers: Sequence[LayerWeights],
        last_norm: torch.Tensor,
        shape: StackShape,
    ) -> None:
        self._run_layers, self._checks = run_layers, checks
        self._dtype = last_norm.dtype
        for layer in layers:
            _check_layer(layer, shape, self._dtype)
        check_vector("last_norm", last_norm, shape.hidden_size, self._dtype)
        # The widest: what it lets tokens see, they may see in some layer. 0: everything.
        self._window = 0 if any(not layer.window for layer in layers) else max(layer.window or 0 for layer in layers)
        self._kept = (list(layers), last_norm)  # the arguments point into them
        tables = [linear.low_rank for layer in layers for linear in layer.linears]
        self._low_rank = [table for table in tables if table is not None]
        self._layers = (LayerArgument * len(layers))(*map(_argument, layers))
        self._stack = StackArgument(
            layers=self._layers,
            last_norm=last_norm.data_ptr(),
            num_layers=len(layers),
            hidden_size=shape.hidden_size,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            eps=shape.eps,
            scale=shape.scale,
            activation=ACTIVATIONS[shape.activation],
        )
        self._bound: tuple[object, ...] = ()
        self._cache: KVCache | None = None  # one of them: they are alike
        self._num_positions = 0

    def bind(self, kv_caches: Sequence[KVCache], cos: torch.Tensor, sin: torch.Tensor) -> None:
        """See LayerStack."""
        cos, sin = cos.contiguous(), sin.contiguous()
        check_rotation(cos, sin, len(cos), cos.shape[1], self._dtype)
        if cos.shape[1] > self._stack.head_dim:
            raise ValueError(f"rotary_dim must be even and at most head_dim={self._stack.head_dim}, got {cos.shape[1]}")
        caches = [check_cache(cache, self._stack.head_dim, self._dtype) for cache in kv_caches]
        for cache, layer in zip(caches, self._kept[0], strict=True):
            check_attention(cache, self._stack.num_heads, layer.window)
            sizes = [tuple(tensor.shape) for tensor in cache.tensors]
            if cache.num_kv_heads != self._stack.num_kv_heads or sizes != [
                tuple(tensor.shape) for tensor in caches[0].tensors
            ]:
                raise ValueError(f"all KV caches must be alike, with {self._stack.num_kv_heads} heads, got {sizes}")
        self._cache, self._num_positions = caches[0], len(cos)
        self._bound = (caches, cos, sin)
        self._stack.cos, self._stack.sin = cos.data_ptr(), sin.data_ptr()
        self._stack.rotary_dim = cos.shape[1]
        self._stack.block_size, self._stack.padded_dim = caches[0].block_size, caches[0].padded_dim
        for layer, cache in zip(self._layers, caches, strict=True):
            layer.key, layer.value = cache.key.data_ptr(), cache.value.data_ptr()
            if cache.scales is None:
                layer.key_scales = layer.value_scales = None
            else:
                layer.key_scales, layer.value_scales = cache.scales.key.data_ptr(), cache.scales.value.data_ptr()

    def run(self, x: torch.Tensor, step: StepTensors) -> torch.Tensor:
        """See LayerStack."""
        if self._cache is None:
            raise ValueError("bind the KV caches before running the layers")
        x = dense_last(x, self._dtype, 2).contiguous()
        check_shape("x", x, len(step.positions), self._stack.hidden_size)
        check_shape("slot_mapping", step.slot_mapping, len(x))
        positions = self._checks.within(step.positions, self._num_positions)
        slot_mapping = self._checks.within(step.slot_mapping, self._cache.num_blocks * self._cache.block_size)
        cu_seqlens_q, seq_lens = _int32(step.cu_seqlens_q), _int32(step.seq_lens)
        block_tables = _int32(step.block_tables)
        self._checks.check_requests(block_tables, cu_seqlens_q, seq_lens, len(x), self._cache, self._window)
        cu_outputs = None if step.outputs is None else _checked_outputs(step.outputs, cu_seqlens_q)
        out = x.new_empty(len(x) if step.outputs is None else len(step.outputs.lines), x.shape[1])
        pointers = (x, out, positions, slot_mapping, cu_seqlens_q, seq_lens, block_tables)
        slots, low_rank_width = self._adapter_arguments(step, len(x))
        optional = (slots, None if cu_outputs is None else cu_outputs.data_ptr())
        sizes = (block_tables.shape[1], len(x), len(seq_lens), len(out), low_rank_width)
        argument = StepArgument(*(tensor.data_ptr() for tensor in pointers), *optional, *sizes)
        self._run_layers(self._stack, argument, torch.get_num_threads())
        return out

    def _adapter_arguments(self, step: StepTensors, num_tokens: int) -> tuple[int | None, int]:
        """Return the pointer of the tokens' slots, and the largest rank of an adapter at one layer."""
        if step.adapters is None:
            return None, 0
        slots = step.adapters.by_token
        check_shape("adapter slots", slots, num_tokens)
        check_slots(slots, min((len(table.argument) for table in self._low_rank), default=0))
        return slots.data_ptr(), max(table.width for table in self._low_rank)


def _argument(layer: LayerWeights) -> LayerArgument:
    argument = LayerArgument(window=layer.window or 0, is_rotated=layer.is_rotated)
    for name in ("attention_norm", "feed_forward_norm", "query_norm", "key_norm"):
        norm: torch.Tensor | None = getattr(layer, name)
        setattr(argument, name, None if norm is None else norm.data_ptr())
    for name in ("qkv", "output", "gate_up", "down"):
        weight, bias, low_rank = getattr(layer, name)
        setattr(argument, name, ctypes.pointer(weight.argument))
        setattr(argument, f"{name}_bias", None if bias is None else bias.data_ptr())
        setattr(argument, f"{name}_adapters", None if low_rank is None else ctypes.cast(low_rank.argument, _ADAPTERS))
    return argument


def _check_layer(layer: LayerWeights, shape: StackShape, dtype: torch.dtype) -> None:
    query_width, kv_width = (count * shape.head_dim for count in (shape.num_heads, shape.num_kv_heads))
    gate_up = layer.gate_up.weight
    intermediate = gate_up.out_features if isinstance(gate_up, PackedWeight) else 0
    for name, in_features, out_features in (
        ("qkv", shape.hidden_size, query_width + 2 * kv_width),
        ("output", query_width, shape.hidden_size),
        ("gate_up", shape.hidden_size, intermediate),
        ("down", intermediate, shape.hidden_size),
    ):
        weight, bias, _ = getattr(layer, name)
        if not isinstance(weight, PackedWeight):
            raise ValueError(f"the weight of {name} must be packed")
        check_weight(weight, in_features, dtype)
        if weight.out_features != out_features or weight.is_gated != (name == "gate_up"):
            raise ValueError(f"{name} must have {out_features} outputs, got {weight.out_features}")
        check_vector(f"{name}'s bias", bias, weight.num_rows, dtype)
    for name, width in (("attention_norm", shape.hidden_size), ("feed_forward_norm", shape.hidden_size)):
        check_vector(name, getattr(layer, name), width, dtype)
    for name in ("query_norm", "key_norm"):
        check_vector(name, getattr(layer, name), shape.head_dim, dtype)


def _checked_outputs(outputs: OutputTokens, cu_seqlens_q: torch.Tensor) -> torch.Tensor:
    """Return the cumulative numbers of outputs; raises ValueError where they or the lines are not the last tokens'."""
    cu_outputs = _int32(outputs.cu_seqlens)
    check_shape("the outputs' cu_seqlens", cu_outputs, len(cu_seqlens_q))
    ends, cumulative = cu_seqlens_q.numpy(), cu_outputs.numpy()  # a fifth of torch's time for so few numbers
    counts = np.diff(cumulative)
    fits = bool(cumulative[0] == 0 and (counts >= 0).all() and (counts <= np.diff(ends)).all())
    if fits:
        lines = np.repeat(ends[1:] - cumulative[1:], counts)
        fits = np.array_equal(outputs.lines.numpy(), lines + np.arange(len(lines)))
    if not fits:
        raise ValueError(f"outputs {cu_outputs.tolist()} do not fit the tokens {cu_seqlens_q.tolist()}")
    return cu_outputs


def _int32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.int32 and tensor.is_contiguous() else tensor.to(torch.int32).contiguous()
