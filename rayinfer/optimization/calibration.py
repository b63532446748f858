"""Finds the four-bit weights of a decoder's layers, each for the inputs that it has behind the ones before it."""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F

from rayinfer.layers.linear import FusedLinear, Linear, StackedLinear
from rayinfer.models.decoder import Decoder
from rayinfer.optimization.gptq import gptq
from rayinfer.optimization.sequence_batches import SequenceBatches
from rayinfer_kernels import ops
from rayinfer_kernels.quantized_weight import QuantizedWeight
from rayinfer_kernels.reference.quantized_rows import quantize_rows


@torch.inference_mode()
def calibrate(
    decoder: Decoder, names: Iterable[str], token_ids: torch.Tensor, on_matrix: Callable[[], None] = lambda: None
) -> dict[str, QuantizedWeight]:
    """Quantise the named linear layers with token_ids [num_sequences, length]; the decoder is of no use afterwards.

    It comes in float32 as `load_decoder` returns it. It computes every sequence twice in one step: as the model is, and
    with the layers that are already quantised. Layers are quantised in order, so each is computed only once.
    """
    assert isinstance(decoder, torch.nn.Module)
    learning = {name: _LearningLinear(decoder.get_submodule(name), on_matrix) for name in names}
    for name, module in learning.items():
        parent, _, child = name.rpartition(".")
        setattr(decoder.get_submodule(parent), child, module)
    num_sequences, length = token_ids.shape
    decoder.prepare(torch.float32, torch.device("cpu"), length)
    batches = SequenceBatches(decoder, torch.float32, 2 * num_sequences, length, shares_memory=True)
    decoder.forward(token_ids.to(torch.int32).repeat(2, 1).flatten(), batches.step(0, length))
    return {name: module.quantized for name, module in learning.items()}


class _LearningLinear(torch.nn.Module):
    """Stands in a linear layer's place: one half of its rows are as the model has them, the other as they will be."""

    packed_linear = None  # so the decoder computes layer by layer

    def __init__(self, linear: torch.nn.Module, on_matrix: Callable[[], None]) -> None:
        super().__init__()
        assert isinstance(linear, Linear)
        self.widths = linear.widths if isinstance(linear, StackedLinear | FusedLinear) else []
        # No parameter of this module: it is not to be packed.
        self._weight, self._bias = linear.weight.data, linear.bias
        self._on_matrix = on_matrix
        self._quantized: QuantizedWeight | None = None

    @property
    def quantized(self) -> QuantizedWeight:
        """The quantised weight."""
        assert self._quantized is not None, "the layer has not run yet"
        return self._quantized

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [2 x num_tokens, in_features] -> [2 x num_tokens, out_features]."""
        plain, lossy = x.chunk(2)
        rows = quantize_rows(lossy)
        lossy = rows.q * rows.scales
        self._quantized = gptq(self._weight, lossy.T @ lossy, (plain - lossy).T @ lossy)
        self._on_matrix()
        return torch.cat(
            (F.linear(plain, self._weight, self._bias), F.linear(lossy, self._quantized.dequantize(), self._bias))
        )

    def gate(self, x: torch.Tensor, activation: ops.Gate) -> torch.Tensor:
        """See Linear."""
        stacked = self.forward(x)
        return ops.silu_and_mul(stacked) if activation == "silu" else ops.gelu_tanh_and_mul(stacked)
