"""An encoder's layers as one operation of the kernels, where all of them have a form that it knows."""

from collections.abc import Sequence

import torch

from rayinfer.layers.encoder_attention import EncoderAttention
from rayinfer.layers.feed_forward import FeedForward
from rayinfer.layers.linear import Linear
from rayinfer.layers.norms import LayerNorm
from rayinfer.layers.residual import PostNorm
from rayinfer.models.encoder_decoder import EncoderLayer
from rayinfer.models.encoders.encoder import Encoder
from rayinfer_kernels import ops


def stack_layers(encoder: Encoder, num_layers: int | None = None) -> ops.EncoderStack | None:
    """Build the operation for an encoder's first layers, or for all; None where they have another form.

    Weights that are not packed are copied; those of a packed layer are shared with it.
    """
    config = encoder.config
    layers = [_weights(layer) for layer in list(encoder.layers)[:num_layers]]
    activations = {_activation(layer) for layer in encoder.layers}
    found = [layer for layer in layers if layer is not None]
    embeddings = _embeddings(encoder)
    is_complete = embeddings is not None and len(found) == len(layers)
    if encoder.final_norm is not None or not is_complete or None in activations or len(activations) != 1:
        return None
    shape = ops.EncoderStackShape(
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        eps=config.norm_eps,
        activation=str(activations.pop()),
    )
    position_bias = None if encoder.position_bias is None else encoder.position_bias.table
    return ops.encoder_stack(found, shape, position_bias, embeddings)


def run_layers(encoder: Encoder, num_layers: int, x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Run the first layers one by one, x [num_tokens, hidden_size] -> the same shape."""
    for layer in list(encoder.layers)[:num_layers]:
        x = layer.forward(x, lengths)
    return x


def _weights(layer: torch.nn.Module) -> ops.EncoderLayerWeights | None:
    if not isinstance(layer, EncoderLayer):
        return None
    attention, feed_forward = layer.self_attn, layer.mlp
    if not isinstance(attention, PostNorm) or not isinstance(feed_forward, PostNorm):
        return None
    attend, feed = attention.inner, feed_forward.inner
    if not isinstance(attend, EncoderAttention) or not attend.sees_all or not isinstance(feed, FeedForward):
        return None
    norms = [_norm(part.norm) for part in (attention, feed_forward)]
    linears = [_linear(linear) for linear in (attend.qkv_proj, attend.o_proj, feed.up_proj, feed.down_proj)]
    qkv, output, up, down = linears
    first, second = norms
    if first is None or second is None or qkv is None or output is None or up is None or down is None:
        return None
    return ops.EncoderLayerWeights(
        qkv=qkv, output=output, attention_norm=first, up=up, down=down, feed_forward_norm=second
    )


def _embeddings(encoder: Encoder) -> ops.EmbeddingWeights | None:
    tokens, norm = encoder.embed_tokens.operand, _norm(encoder.embed_norm)
    if norm is None or not isinstance(tokens, torch.Tensor):
        return None
    types, positions = (
        None if table is None else table.weight for table in (encoder.embed_types, encoder.embed_positions)
    )
    return ops.EmbeddingWeights(tokens=tokens, types=types, positions=positions, norm=norm)


def _activation(layer: torch.nn.Module) -> str | None:
    feed_forward = layer.mlp.inner if isinstance(layer, EncoderLayer) else None
    return feed_forward.kernel_activation if isinstance(feed_forward, FeedForward) else None


def _norm(norm: torch.nn.Module) -> ops.NormWeights | None:
    if not isinstance(norm, LayerNorm):
        return None
    return ops.NormWeights(norm.weight, torch.zeros_like(norm.weight) if norm.bias is None else norm.bias)


def _linear(linear: Linear) -> ops.PackedLinear | None:
    packed = ops.pack_weight(linear.weight.clone()) if linear.packed is None else linear.packed
    return None if packed is None else ops.PackedLinear(packed, linear.bias)
