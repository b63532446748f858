"""SmoothQuant (Xiao et al. 2022): outlier scales of a product's inputs move from the rows to the weight.

A row has one scale, so a few inputs that are always large leave few steps to the others. They are divided by a power of
two where they come from, the norm or the half of the feed-forward that is gated, and their weights are multiplied by
it: the product is the same, to the bit in float32 and bfloat16, and costs nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from rayinfer.layers.decoder_layer import PreNormLayer
from rayinfer.layers.gated_mlp import GatedMLP
from rayinfer.layers.linear import FusedLinear, Linear, StackedLinear
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.self_attention import SelfAttention
from rayinfer.models.decoder import Decoder
from rayinfer.models.loader import load_decoder
from rayinfer.optimization.calibration import own_text
from rayinfer.optimization.sequence_batches import SequenceBatches
from rayinfer_kernels import ops

SMOOTHING_VERSION = 1  # raise it when weights are smoothed in another way: packed ones are kept on the disk
FRACTIONS = (0, 0.35, 0.5, 0.6, 0.7, 0.8)  # of the spread between inputs that may move to the weight
TYPICAL_QUANTILE = 0.99  # of an input's sizes in the rows, which counts as its typical size
ROW_STRIDE = 3  # every third row is computed with every choice
MAX_LOG2_SCALE, EPS = 8, 1e-12
NUM_SEQUENCES, MAX_LENGTH = 16, 96

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class _Product:
    """A linear layer, by name, and the numbers that make its inputs."""

    name: str
    linear: Linear
    source: torch.Tensor  # [in_features, ...], which the inputs are proportional to


@torch.no_grad()
def smooth_decoder(decoder: torch.nn.Module, folder: Path, dtype: torch.dtype) -> None:
    """Smooth every product that can be in a decoder that `load_decoder` returned for `folder`.

    How far is chosen with text that the model writes itself.
    """
    products = list(_products(decoder))
    token_ids = own_text(folder, dtype, NUM_SEQUENCES, MAX_LENGTH)
    scales = _find_scales(load_decoder(folder, dtype, _CPU), [product.name for product in products], token_ids)
    for product in products:
        by_input = scales[product.name].to(dtype)
        product.source.div_(by_input.view(-1, *[1] * (product.source.dim() - 1)))
        product.linear.weight.mul_(by_input)


def choose_scales(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return powers of two [in_features] for rows x [num_tokens, in_features] and weight [out_features, in_features].

    Of those tried, the ones with which rows and weights of eight bits change a row's product least, by its size.
    """
    x, weight = x.float(), weight.float()
    some = x[::ROW_STRIDE]
    wanted = some @ weight.T
    sizes = wanted.square().sum(-1).clamp_min(EPS)
    largest_weights = weight.abs().amax(0)
    best = torch.ones_like(largest_weights)
    least = torch.tensor(torch.inf)
    typical = x.abs().kthvalue(max(1, int(len(x) * TYPICAL_QUANTILE)), 0).values
    for largest in (x.abs().amax(0), typical):
        for fraction in FRACTIONS:
            scales = _powers_of_two(largest, largest_weights, fraction)
            rows, columns = (
                ops.quantize_rows(some / scales),
                ops.quantize(weight * scales, ops.WeightFormat.INT8_DYNAMIC),
            )
            product = (rows.q * rows.scales) @ columns.dequantize().T
            error = ((product - wanted).square().sum(-1) / sizes).mean()
            if error < least:
                best, least = scales, error
    return best


def _powers_of_two(inputs: torch.Tensor, weights: torch.Tensor, fraction: float) -> torch.Tensor:
    is_used = (inputs > EPS) & (weights > EPS)
    if fraction == 0 or not is_used.any():
        return torch.ones_like(inputs)
    wanted = fraction * inputs.clamp_min(EPS).log2() - (1 - fraction) * weights.clamp_min(EPS).log2()
    return torch.where(
        is_used, (wanted - wanted[is_used].mean()).round().clamp(-MAX_LOG2_SCALE, MAX_LOG2_SCALE), 0.0
    ).exp2()


@torch.inference_mode()
def _find_scales(decoder: Decoder, names: Iterable[str], token_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Choose the scales of the named linear layers by token_ids [num_sequences, length]; the decoder is used up."""
    assert isinstance(decoder, torch.nn.Module)
    observers = {name: _ScaleObserver(decoder.get_submodule(name)) for name in names}
    for name, module in observers.items():
        parent, _, child = name.rpartition(".")
        setattr(decoder.get_submodule(parent), child, module)
    num_sequences, length = token_ids.shape
    dtype = next(decoder.parameters()).dtype
    decoder.prepare(dtype, _CPU, length)
    batches = SequenceBatches(decoder, dtype, num_sequences, length, shares_memory=True)
    decoder.forward(token_ids.to(torch.int32).flatten(), batches.step(0, length))
    return {name: module.scales.clone() for name, module in observers.items()}


class _ScaleObserver(torch.nn.Module):
    """Replacement of a linear layer that chooses the scales of its inputs when they come."""

    packed_linear = None  # so the decoder computes layer by layer

    def __init__(self, linear: torch.nn.Module) -> None:
        super().__init__()
        assert isinstance(linear, Linear)
        self.widths = linear.widths if isinstance(linear, StackedLinear | FusedLinear) else []
        # No parameter of this module: it is not to be packed.
        self._weight, self._bias = linear.weight.data, linear.bias
        self.scales = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, in_features] -> [num_tokens, out_features]."""
        self.scales = choose_scales(x, self._weight)
        return F.linear(x, self._weight, self._bias)

    def gate(self, x: torch.Tensor, activation: ops.Gate) -> torch.Tensor:
        """See Linear."""
        stacked = self.forward(x)
        return ops.silu_and_mul(stacked) if activation == "silu" else ops.gelu_tanh_and_mul(stacked)


def _products(decoder: torch.nn.Module) -> Iterator[_Product]:
    for path, layer in decoder.named_modules():
        if not isinstance(layer, PreNormLayer):
            continue
        attention, feed_forward = layer.self_attn, layer.mlp
        before, between = layer.input_layernorm, layer.post_attention_layernorm
        if isinstance(attention, SelfAttention) and isinstance(before, RMSNorm) and before.plain_eps is not None:
            yield _Product(f"{path}.self_attn.qkv_proj", attention.qkv_proj, before.weight)
        if not isinstance(feed_forward, GatedMLP):
            continue
        gate_up = feed_forward.gate_up_proj
        if isinstance(between, RMSNorm) and between.plain_eps is not None:
            yield _Product(f"{path}.mlp.gate_up_proj", gate_up, between.weight)
        if gate_up.bias is None:
            up = gate_up.weight[gate_up.widths[0] :]
            yield _Product(f"{path}.mlp.down_proj", feed_forward.down_proj, up)
