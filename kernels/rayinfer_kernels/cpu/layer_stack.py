"""All layers of a decoder in one call of the C++ kernels."""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int32, c_int64, c_void_p

import torch

from rayinfer_kernels.kv_cache import KVCache
from rayinfer_kernels.layer_stack import LayerWeights, StackShape, StepTensors
from rayinfer_kernels.packed_weight import WeightArgument

ACTIVATIONS = {None: 0, "silu": 1, "gelu_tanh": 2}  # as in linear.h
_WEIGHT = ctypes.POINTER(WeightArgument)


class LayerArgument(ctypes.Structure):
    """See layer_stack.cpp."""

    _fields_ = (
        *((name, c_void_p) for name in ("attention_norm", "feed_forward_norm", "query_norm", "key_norm")),
        *((name, _WEIGHT) for name in ("qkv", "output", "gate_up", "down")),
        *((f"{name}_bias", c_void_p) for name in ("qkv", "output", "gate_up", "down")),
        *((name, c_void_p) for name in ("key", "value", "key_scales", "value_scales")),
        ("window", c_int64),
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
        *((name, c_void_p) for name in ("x", "out", "positions", "slots", "query_starts", "context_lengths")),
        ("block_tables", c_void_p),
        *((name, c_int64) for name in ("block_table_stride", "num_tokens", "num_requests")),
    )


RunLayers = Callable[[StackArgument, StepArgument, int], None]
SIGNATURE = (ctypes.POINTER(StackArgument), ctypes.POINTER(StepArgument), ctypes.c_int)


class CpuLayerStack:
    """A LayerStack whose weights are packed."""

    def __init__(
        self, run_layers: RunLayers, layers: Sequence[LayerWeights], last_norm: torch.Tensor, shape: StackShape
    ) -> None:
        self._run_layers = run_layers
        self._kept = (list(layers), last_norm)  # the arguments point into them
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

    def bind(self, kv_caches: Sequence[KVCache], cos: torch.Tensor, sin: torch.Tensor) -> None:
        """See LayerStack."""
        cos, sin = cos.contiguous(), sin.contiguous()
        self._bound = (list(kv_caches), cos, sin)
        self._stack.cos, self._stack.sin = cos.data_ptr(), sin.data_ptr()
        self._stack.rotary_dim = cos.shape[1]
        self._stack.block_size, self._stack.padded_dim = kv_caches[0].block_size, kv_caches[0].padded_dim
        for layer, cache in zip(self._layers, kv_caches, strict=True):
            layer.key, layer.value = cache.key.data_ptr(), cache.value.data_ptr()
            if cache.scales is None:
                layer.key_scales = layer.value_scales = None
            else:
                layer.key_scales, layer.value_scales = cache.scales.key.data_ptr(), cache.scales.value.data_ptr()

    def run(self, x: torch.Tensor, step: StepTensors) -> torch.Tensor:
        """See LayerStack."""
        x, positions, slots = x.contiguous(), _int64(step.positions), _int64(step.slots)
        query_starts, context_lengths = _int32(step.query_starts), _int32(step.context_lengths)
        block_tables = _int32(step.block_tables)
        out = torch.empty_like(x)
        pointers = (x, out, positions, slots, query_starts, context_lengths, block_tables)
        argument = StepArgument(
            *(tensor.data_ptr() for tensor in pointers), block_tables.shape[1], len(x), len(context_lengths)
        )
        self._run_layers(self._stack, argument, torch.get_num_threads())
        return out


def _argument(layer: LayerWeights) -> LayerArgument:
    argument = LayerArgument(window=layer.window or 0)
    for name in ("attention_norm", "feed_forward_norm", "query_norm", "key_norm"):
        norm: torch.Tensor | None = getattr(layer, name)
        setattr(argument, name, None if norm is None else norm.data_ptr())
    for name in ("qkv", "output", "gate_up", "down"):
        weight, bias = getattr(layer, name)
        setattr(argument, name, ctypes.pointer(weight.argument))
        setattr(argument, f"{name}_bias", None if bias is None else bias.data_ptr())
    return argument


def _int64(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.int64).contiguous()


def _int32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.int32).contiguous()
