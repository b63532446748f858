"""All layers of an encoder in one call of the C++ kernels."""

import ctypes
import itertools
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int32, c_int64, c_void_p

import torch

from rayinfer_kernels.cpu.arguments import IndexChecks, check_shape, check_vector, check_weight, dense_last
from rayinfer_kernels.cpu.layer_stack import ACTIVATIONS
from rayinfer_kernels.encoder_stack import (
    EmbeddingWeights,
    EncoderLayerWeights,
    EncoderStackShape,
    NormWeights,
    StackPooling,
    TokenRows,
)
from rayinfer_kernels.layer_stack import PackedLinear
from rayinfer_kernels.packed_weight import PackedWeight, WeightArgument

_WEIGHT = ctypes.POINTER(WeightArgument)
_LINEARS = ("qkv", "output", "up", "down")
_POOLINGS: dict[StackPooling | None, int] = {None: 0, "mean": 1, "cls": 2, "last": 3}  # as in encoder_arguments.h


class NormArgument(ctypes.Structure):
    """See encoder/encoder_arguments.h."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


class EncoderLayerArgument(ctypes.Structure):
    """See encoder/encoder_arguments.h."""

    _fields_ = (
        *((name, _WEIGHT) for name in _LINEARS),
        *((f"{name}_bias", c_void_p) for name in _LINEARS),
        ("attention_norm", NormArgument),
        ("feed_forward_norm", NormArgument),
    )


class TextAttentionShape(ctypes.Structure):
    """See encoder/text_attention.h."""

    _fields_ = (
        ("num_heads", c_int64),
        ("head_dim", c_int64),
        ("scale", c_float),
        ("position_bias", c_void_p),
        ("max_distance", c_int64),
    )


class EmbeddingsArgument(ctypes.Structure):
    """See encoder/encoder_arguments.h."""

    _fields_ = (("tokens", c_void_p), ("types", c_void_p), ("positions", c_void_p), ("norm", NormArgument))


class EncoderArgument(ctypes.Structure):
    """See encoder/encoder_arguments.h."""

    _fields_ = (
        ("layers", ctypes.POINTER(EncoderLayerArgument)),
        ("num_layers", c_int64),
        ("hidden_size", c_int64),
        ("attention", TextAttentionShape),
        ("eps", c_float),
        ("activation", c_int32),
        ("embeddings", EmbeddingsArgument),
    )


class TextsArgument(ctypes.Structure):
    """See encoder/encoder_arguments.h."""

    _fields_ = (
        ("x", c_void_p),
        *((name, c_void_p) for name in ("token_ids", "token_types", "positions", "out", "starts")),
        ("num_texts", c_int64),
        ("pooling", c_int32),
    )


RunEncoder = Callable[[EncoderArgument, TextsArgument, int], None]
SIGNATURE = (ctypes.POINTER(EncoderArgument), ctypes.POINTER(TextsArgument), ctypes.c_int)


class CpuEncoderStack:
    """An EncoderStack whose weights are packed."""

    def __init__(
        self,
        run_encoder: RunEncoder,
        checks: IndexChecks,
        layers: Sequence[EncoderLayerWeights],
        shape: EncoderStackShape,
        position_bias: torch.Tensor | None,
        embeddings: EmbeddingWeights | None,
    ) -> None:
        if not layers:
            raise ValueError("an encoder needs a layer")
        self._run_encoder, self._checks = run_encoder, checks
        self._dtype = layers[0].attention_norm.weight.dtype
        for layer in layers:
            _check_layer(layer, layers[0], shape, self._dtype)
        attention = TextAttentionShape(num_heads=shape.num_heads, head_dim=shape.head_dim, scale=shape.head_dim**-0.5)
        if position_bias is not None:
            _check_position_bias(position_bias, shape.num_heads)
            attention.position_bias = position_bias.data_ptr()
            attention.max_distance = position_bias.shape[1] // 2
        self._kept = (list(layers), position_bias)  # the arguments point into them
        self._embeddings = embeddings
        self._layers = (EncoderLayerArgument * len(layers))(*map(_argument, layers))
        self._encoder = EncoderArgument(
            layers=self._layers,
            num_layers=len(layers),
            hidden_size=shape.hidden_size,
            attention=attention,
            eps=shape.eps,
            activation=ACTIVATIONS[shape.activation],
        )
        if embeddings is not None:
            self._encoder.embeddings = _embeddings_argument(embeddings, shape.hidden_size, self._dtype)

    def run(self, x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """See EncoderStack."""
        x = dense_last(x, self._dtype, 2).contiguous()
        check_shape("x", x, len(x), self._encoder.hidden_size)
        return self._run(TextsArgument(x=x.data_ptr()), len(x), lengths)

    def run_tokens(
        self, tokens: TokenRows, lengths: Sequence[int], pooling: StackPooling | None = None
    ) -> torch.Tensor:
        """See EncoderStack."""
        if self._embeddings is None:
            raise ValueError("this encoder has no embeddings")
        if pooling in ("cls", "last") and 0 in lengths:
            raise ValueError(f"a text without tokens has none for the pooling {pooling!r}")
        tables, texts = self._embeddings, TextsArgument(pooling=_POOLINGS[pooling])
        kept = []
        for name, rows, table in (
            ("token_ids", tokens.ids, tables.tokens),
            ("token_types", tokens.types, tables.types),
            ("positions", tokens.positions, tables.positions),
        ):
            check_shape(name, rows, len(tokens.ids))
            if table is not None:
                kept.append(self._checks.within(rows, len(table)))
                setattr(texts, name, kept[-1].data_ptr())
        return self._run(texts, len(tokens.ids), lengths)

    def _run(self, texts: TextsArgument, num_tokens: int, lengths: Sequence[int]) -> torch.Tensor:
        starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        starts = self._checks.group_starts(starts, len(lengths), num_tokens)
        num_rows = len(lengths) if texts.pooling else num_tokens
        out = torch.empty((num_rows, self._encoder.hidden_size), dtype=self._dtype)
        texts.out, texts.starts, texts.num_texts = out.data_ptr(), starts.data_ptr(), len(lengths)
        self._run_encoder(self._encoder, texts, torch.get_num_threads())
        return out


def _argument(layer: EncoderLayerWeights) -> EncoderLayerArgument:
    argument = EncoderLayerArgument(
        attention_norm=_norm_argument(layer.attention_norm), feed_forward_norm=_norm_argument(layer.feed_forward_norm)
    )
    for name in _LINEARS:
        linear: PackedLinear = getattr(layer, name)
        weight, bias = linear.weight, linear.bias
        assert isinstance(weight, PackedWeight)  # as has been checked
        setattr(argument, name, ctypes.pointer(weight.argument))
        setattr(argument, f"{name}_bias", None if bias is None else bias.data_ptr())
    return argument


def _embeddings_argument(embeddings: EmbeddingWeights, width: int, dtype: torch.dtype) -> EmbeddingsArgument:
    argument = EmbeddingsArgument(norm=_norm_argument(embeddings.norm))
    for name in ("tokens", "types", "positions"):
        table = getattr(embeddings, name)
        if table is None and name != "tokens":
            continue
        if table.dtype != dtype or table.dim() != 2 or table.shape[1] != width or not table.is_contiguous():
            raise ValueError(
                f"the table of {name} has to be [num_rows, {width}] of {dtype} in one piece, got {tuple(table.shape)}"
                f" of {table.dtype}"
            )
        setattr(argument, name, table.data_ptr())
    _check_norm("the embeddings' norm", embeddings.norm, width, dtype)
    return argument


def _norm_argument(norm: NormWeights) -> NormArgument:
    return NormArgument(norm.weight.data_ptr(), norm.bias.data_ptr())


def _check_layer(
    layer: EncoderLayerWeights, first: EncoderLayerWeights, shape: EncoderStackShape, dtype: torch.dtype
) -> None:
    width, up = shape.num_heads * shape.head_dim, first.up.weight
    inner = up.out_features if isinstance(up, PackedWeight) else 0
    for name, in_features, out_features in (
        ("qkv", shape.hidden_size, 3 * width),
        ("output", width, shape.hidden_size),
        ("up", shape.hidden_size, inner),
        ("down", inner, shape.hidden_size),
    ):
        linear: PackedLinear = getattr(layer, name)
        weight, of_first = linear.weight, getattr(first, name).weight
        if not isinstance(weight, PackedWeight):
            raise ValueError(f"the weight of {name} must be packed")
        check_weight(weight, in_features, dtype)
        if weight.out_features != out_features or (weight.is_gated and name != "up"):
            raise ValueError(f"{name} must have {out_features} outputs, got {weight.out_features}")
        if (weight.format, weight.is_gated) != (of_first.format, of_first.is_gated):
            raise ValueError(f"the weights of {name} must have one format, got {weight.format} and {of_first.format}")
        check_vector(f"{name}'s bias", linear.bias, weight.num_rows, dtype)
    for norm_name in ("attention_norm", "feed_forward_norm"):
        _check_norm(norm_name, getattr(layer, norm_name), shape.hidden_size, dtype)


def _check_norm(name: str, norm: NormWeights, width: int, dtype: torch.dtype) -> None:
    for kind, vector in norm._asdict().items():
        check_vector(f"{name}'s {kind}", vector, width, dtype)


def _check_position_bias(bias: torch.Tensor, num_heads: int) -> None:
    is_matrix = bias.dim() == 2 and bias.shape[0] == num_heads and bias.shape[1] % 2 == 1
    if bias.dtype != torch.float32 or not is_matrix or not bias.is_contiguous():
        raise ValueError(
            f"position_bias has to be float32 [{num_heads}, 2 x max_distance + 1] in one piece, got"
            f" {tuple(bias.shape)} of {bias.dtype}"
        )
