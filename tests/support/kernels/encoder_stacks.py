"""Random encoders of a few layers, with packed weights."""

from dataclasses import dataclass

import torch

from rayinfer_kernels.encoder_stack import (
    EmbeddingWeights,
    EncoderLayerWeights,
    EncoderStackShape,
    NormWeights,
    TokenRows,
)
from rayinfer_kernels.layer_stack import PackedLinear
from rayinfer_kernels.packed_weight import WeightFormat, pack
from rayinfer_kernels.quantized_weight import pack_quantized, quantize


@dataclass(frozen=True, kw_only=True)
class EncoderCase:
    """Sizes of an encoder."""

    hidden: int = 48
    intermediate: int = 80
    num_heads: int = 3
    head_dim: int = 16
    num_layers: int = 2
    activation: str = "gelu"
    is_gated: bool = False
    has_biases: bool = True
    max_distance: int = 0  # of a position bias; 0: none

    @property
    def shape(self) -> EncoderStackShape:
        return EncoderStackShape(
            hidden_size=self.hidden,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            eps=1e-5,
            activation=self.activation,
        )


def random_encoder(
    case: EncoderCase, dtype: torch.dtype, format: WeightFormat | None = None
) -> tuple[list[EncoderLayerWeights], EncoderStackShape, torch.Tensor | None]:
    """Draw the arguments of `encoder_stack`; matrices are quantized if they get a format."""
    bias = torch.randn(case.num_heads, 2 * case.max_distance + 1) if case.max_distance else None
    return [_random_layer(case, dtype, format) for _ in range(case.num_layers)], case.shape, bias


def random_embeddings(case: EncoderCase, dtype: torch.dtype, *, has_all: bool = True) -> EmbeddingWeights:
    """Draw tables for 50 tokens, two types and 400 positions, or for tokens alone."""
    tokens, types, positions = (torch.randn(count, case.hidden).to(dtype) for count in (50, 2, 400))
    norm = NormWeights((1 + 0.1 * torch.randn(case.hidden)).to(dtype), torch.randn(case.hidden).to(dtype))
    more = (types, positions) if has_all else (None, None)
    return EmbeddingWeights(tokens=tokens, types=more[0], positions=more[1], norm=norm)


def random_tokens(lengths: list[int]) -> TokenRows:
    """Draw tokens of texts of these lengths."""
    count = sum(lengths)
    positions = (
        torch.cat([torch.arange(length) for length in lengths]) if lengths else torch.empty(0, dtype=torch.int64)
    )
    return TokenRows(torch.randint(50, (count,)), torch.randint(2, (count,)), positions)


def _random_layer(case: EncoderCase, dtype: torch.dtype, format: WeightFormat | None) -> EncoderLayerWeights:
    def linear(in_features: int, out_features: int, *, is_gated: bool = False) -> PackedLinear:
        weight = (torch.randn(out_features, in_features) * in_features**-0.5).to(dtype)
        bias = torch.randn(out_features).to(dtype) if case.has_biases else None
        if format is None:
            return PackedLinear(pack(weight, is_gated), bias)
        return PackedLinear(pack_quantized(quantize(weight, format), is_gated=is_gated), bias)

    def norm() -> NormWeights:
        return NormWeights((1 + 0.1 * torch.randn(case.hidden)).to(dtype), torch.randn(case.hidden).to(dtype))

    width = case.num_heads * case.head_dim
    return EncoderLayerWeights(
        qkv=linear(case.hidden, 3 * width),
        output=linear(width, case.hidden),
        attention_norm=norm(),
        up=linear(case.hidden, case.intermediate * (2 if case.is_gated else 1), is_gated=case.is_gated),
        down=linear(case.intermediate, case.hidden),
        feed_forward_norm=norm(),
    )
