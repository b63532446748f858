"""All layers of an encoder in plain torch, in float32 from the first to the last."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
import torch.nn.functional as F

from rayinfer_kernels.encoder_stack import (
    EmbeddingWeights,
    EncoderLayerWeights,
    EncoderStack,
    EncoderStackShape,
    NormWeights,
    StackPooling,
    TokenRows,
)
from rayinfer_kernels.layer_stack import PackedLinear
from rayinfer_kernels.packed_weight import PackedWeight
from rayinfer_kernels.reference.elementwise import gelu, gelu_tanh
from rayinfer_kernels.reference.linear import packed_linear

_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": torch.relu, "silu": F.silu}
)

_POOLINGS: Mapping[StackPooling, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {"mean": lambda text: text.mean(0), "cls": lambda text: text[0], "last": lambda text: text[-1]}
)


def encoder_stack(
    layers: Sequence[EncoderLayerWeights],
    shape: EncoderStackShape,
    position_bias: torch.Tensor | None = None,
    embeddings: EmbeddingWeights | None = None,
) -> EncoderStack | None:
    """See `ops.encoder_stack`."""
    return TorchEncoderStack(layers, shape, position_bias, embeddings)


class TorchEncoderStack:
    """An EncoderStack of torch's operations."""

    def __init__(
        self,
        layers: Sequence[EncoderLayerWeights],
        shape: EncoderStackShape,
        position_bias: torch.Tensor | None,
        embeddings: EmbeddingWeights | None,
    ) -> None:
        self._layers, self._shape, self._position_bias = layers, shape, position_bias
        self._embeddings = embeddings

    def run(self, x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """See EncoderStack."""
        return self._run_layers(x.float(), lengths).to(x.dtype)

    def run_tokens(
        self, tokens: TokenRows, lengths: Sequence[int], pooling: StackPooling | None = None
    ) -> torch.Tensor:
        """See EncoderStack."""
        tables = self._embeddings
        assert tables is not None, "it has no embeddings"
        sums = tables.tokens[tokens.ids].float()
        if tables.types is not None:
            sums = sums + tables.types[tokens.types].float()
        if tables.positions is not None:
            sums = sums + tables.positions[tokens.positions].float()
        found = self._run_layers(self._norm(sums, tables.norm), lengths)
        if pooling is not None:
            found = torch.stack([_POOLINGS[pooling](text) for text in torch.split(found, list(lengths))])
        return found.to(tables.tokens.dtype)

    def _run_layers(self, sums: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        for layer in self._layers:
            heads = _multiply(sums, layer.qkv).view(len(sums), 3, self._shape.num_heads, self._shape.head_dim)
            attended = torch.cat([self._attend(text) for text in torch.split(heads, list(lengths))])
            sums = self._norm(sums + _multiply(attended, layer.output), layer.attention_norm)
            inner = _multiply(sums, layer.up)
            if isinstance(layer.up.weight, PackedWeight) and layer.up.weight.is_gated:
                gate, up = inner.chunk(2, -1)
                inner = _ACTIVATIONS[self._shape.activation](gate) * up
            else:
                inner = _ACTIVATIONS[self._shape.activation](inner)
            sums = self._norm(sums + _multiply(inner, layer.down), layer.feed_forward_norm)
        return sums

    def _attend(self, heads: torch.Tensor) -> torch.Tensor:
        query, key, value = heads.permute(1, 2, 0, 3)
        scores = query @ key.mT * self._shape.head_dim**-0.5
        if self._position_bias is not None:
            most, positions = self._position_bias.shape[1] // 2, torch.arange(len(heads))
            distances = (positions[:, None] - positions).clamp(-most, most)
            scores = scores + self._position_bias[:, distances + most]
        attended: torch.Tensor = scores.softmax(-1) @ value
        return attended.transpose(0, 1).flatten(1)

    def _norm(self, x: torch.Tensor, norm: NormWeights) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], norm.weight.float(), norm.bias.float(), self._shape.eps)


def _multiply(x: torch.Tensor, linear: PackedLinear) -> torch.Tensor:
    bias = None if linear.bias is None else linear.bias.float()
    weight = linear.weight
    if isinstance(weight, PackedWeight):
        if weight.format.is_quantized:
            return packed_linear(x, weight, bias)
        weight = weight.rows(torch.arange(weight.num_rows))
    return F.linear(x, weight.float(), bias)
