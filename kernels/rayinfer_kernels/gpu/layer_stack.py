"""All layers of a decoder, in as few launches as their data dependencies allow."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from rayinfer_kernels.gpu.activations import gelu_tanh_and_mul, silu_and_mul
from rayinfer_kernels.gpu.decode_attention import decode_attention
from rayinfer_kernels.gpu.fp8 import linear as float8_linear
from rayinfer_kernels.gpu.norms import add_rms_norm, rms_norm
from rayinfer_kernels.gpu.paged_cache import PagedKVCache
from rayinfer_kernels.gpu.prefill_attention import prefill_attention
from rayinfer_kernels.gpu.rope_and_write import rope_and_write
from rayinfer_kernels.gpu.skinny_gemm import Norm, is_skinny, skinny_gemm
from rayinfer_kernels.kv_cache import KVCache
from rayinfer_kernels.layer_stack import LayerWeights, PackedLinear, StackShape, StepTensors
from rayinfer_kernels.packed_weight import PackedWeight


class GpuLayerStack:
    """A LayerStack whose weights are plain tensors, or quantized.

    A layer is nine launches: norm of the sum, projection, rotation and cache, attention, projection, norm of the sum,
    gate and up, gate, down; its numbers are those of the layers run one by one. Of few rows in 16 bits it is six, for
    norms, gate and sums are fused into the products: fewer roundings, so the last digits differ. Nothing is read
    back from the device.
    """

    takes_adapters = False  # such steps run layer by layer

    def __init__(self, layers: Sequence[LayerWeights], last_norm: torch.Tensor, shape: StackShape) -> None:
        if shape.activation not in ("silu", "gelu_tanh"):
            raise ValueError(f"there is no gate called {shape.activation!r}")
        self._layers, self._last_norm, self._shape = list(layers), last_norm, shape
        self._gate = silu_and_mul if shape.activation == "silu" else gelu_tanh_and_mul
        self._caches: list[PagedKVCache] = []
        self._cos = self._sin = last_norm.new_empty(0, 0)
        self._unrotated = self._cos, self._sin

    def bind(self, kv_caches: Sequence[KVCache], cos: torch.Tensor, sin: torch.Tensor) -> None:
        """See LayerStack."""
        paged = [cache for cache in kv_caches if isinstance(cache, PagedKVCache)]
        if len(paged) != len(self._layers):
            raise ValueError(f"{len(self._layers)} layers need a PagedKVCache each, got {len(paged)} of them")
        if cos.shape[1] > self._shape.head_dim:
            raise ValueError(f"rotary_dim must be even and at most head_dim={self._shape.head_dim}, got {cos.shape[1]}")
        self._caches, self._cos, self._sin = paged, cos.contiguous(), sin.contiguous()
        if not all(layer.is_rotated for layer in self._layers):
            self._unrotated = torch.ones_like(self._cos), torch.zeros_like(self._sin)

    def run(self, x: torch.Tensor, step: StepTensors) -> torch.Tensor:
        """See LayerStack."""
        if not self._caches:
            raise ValueError("bind the KV caches before running the layers")
        x = self._run_skinny(x.contiguous(), step) if is_skinny(x) else self._run_wide(x.contiguous(), step)
        return x if step.outputs is None else x[step.outputs.lines]

    def _run_wide(self, residual: torch.Tensor, step: StepTensors) -> torch.Tensor:
        eps, added = self._shape.eps, None
        for layer, cache in zip(self._layers, self._caches, strict=True):
            # Nothing was added to the sum before the first layer.
            norm = layer.attention_norm
            normed = rms_norm(residual, norm, eps) if added is None else add_rms_norm(added, residual, norm, eps)
            attended = self._attend(_multiply(normed, layer.qkv), layer, cache, step)
            normed = add_rms_norm(_multiply(attended, layer.output), residual, layer.feed_forward_norm, eps)
            added = _multiply(self._gate(_multiply(normed, layer.gate_up)), layer.down)
        assert added is not None, "a stack has layers"
        return add_rms_norm(added, residual, self._last_norm, eps)

    def _run_skinny(self, residual: torch.Tensor, step: StepTensors) -> torch.Tensor:
        eps, activation = self._shape.eps, self._shape.activation
        for layer, cache in zip(self._layers, self._caches, strict=True):
            qkv = skinny_gemm(residual, layer.qkv, norm=Norm(layer.attention_norm, eps))
            skinny_gemm(self._attend(qkv, layer, cache, step), layer.output, residual=residual)
            norm = Norm(layer.feed_forward_norm, eps)
            gated = skinny_gemm(residual, layer.gate_up, norm=norm, gate=activation)
            skinny_gemm(gated, layer.down, residual=residual)
        return rms_norm(residual, self._last_norm, eps)

    def _attend(self, qkv: torch.Tensor, layer: LayerWeights, cache: PagedKVCache, step: StepTensors) -> torch.Tensor:
        shape = self._shape
        angles = (self._cos, self._sin) if layer.is_rotated else self._unrotated
        query = rope_and_write(
            *(qkv, shape.num_heads, shape.num_kv_heads, *angles, step.positions, step.slot_mapping, cache),
            *(layer.query_norm, layer.key_norm, shape.eps),
        )
        tables, lengths, window = step.block_tables, step.seq_lens, layer.window
        count = len(query) if len(query) == len(lengths) else step.num_decodes
        attended = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        decoding = query[:count], cache, tables[:count], lengths[:count]
        decode_attention(*decoding, shape.scale, window, out=attended[:count])
        chunks = query[count:], cache, tables[count:], step.cu_seqlens_q[count:], lengths[count:]
        prefill_attention(*chunks, shape.scale, window, out=attended[count:])
        return attended.flatten(1)


def _multiply(x: torch.Tensor, linear: PackedLinear) -> torch.Tensor:
    if isinstance(linear.weight, PackedWeight):
        return float8_linear(x, linear.weight, linear.bias)
    return F.linear(x, linear.weight, linear.bias)
