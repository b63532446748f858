"""Calibration: four-bit weights of a decoder's layers, with text that the model writes itself."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from rayinfer.errors import ModelLoadError
from rayinfer.layers.linear import FusedLinear, Linear, StackedLinear
from rayinfer.models.decoder import Decoder
from rayinfer.models.loader import load_decoder
from rayinfer.optimization.gptq import gptq
from rayinfer.optimization.progress_line import progress_line
from rayinfer.optimization.self_samples import sample_sequences
from rayinfer.optimization.sequence_batches import SequenceBatches
from rayinfer_kernels import ops

CALIBRATION_VERSION = 2  # of everything that decides the found weights: raise it with a change
NUM_SEQUENCES, MAX_LENGTH = 64, 256

_CPU = torch.device("cpu")


@torch.inference_mode()
def calibrate(
    decoder: Decoder, names: Iterable[str], token_ids: torch.Tensor, on_matrix: Callable[[], None] = lambda: None
) -> dict[str, ops.QuantizedWeight]:
    """Quantize the named linear layers with token_ids [num_sequences, length]; the decoder is of no use afterwards.

    It comes in float32 as `load_decoder` returns it. It computes every sequence twice in one step: as the model is, and
    with the layers that are already quantized. Layers are quantized in order, so each is computed only once.
    """
    assert isinstance(decoder, torch.nn.Module)
    calibrating = {name: _CalibratingLinear(decoder.get_submodule(name), on_matrix) for name in names}
    for name, module in calibrating.items():
        parent, _, child = name.rpartition(".")
        setattr(decoder.get_submodule(parent), child, module)
    num_sequences, length = token_ids.shape
    decoder.prepare(torch.float32, _CPU, length)
    batches = SequenceBatches(decoder, torch.float32, 2 * num_sequences, length, shares_memory=True)
    decoder.forward(token_ids.to(torch.int32).repeat(2, 1).flatten(), batches.step(0, length))
    return {name: module.quantized for name, module in calibrating.items()}


class _CalibratingLinear(torch.nn.Module):
    """Replacement of a linear layer during calibration: half of its rows are the model's, half the quantized one's."""

    packed_linear = None  # so the decoder computes layer by layer

    def __init__(self, linear: torch.nn.Module, on_matrix: Callable[[], None]) -> None:
        super().__init__()
        assert isinstance(linear, Linear)
        self.widths = linear.widths if isinstance(linear, StackedLinear | FusedLinear) else []
        # No parameter of this module: it is not to be packed.
        self._weight, self._bias = linear.weight.data, linear.bias
        self._on_matrix = on_matrix
        self._quantized: ops.QuantizedWeight | None = None

    @property
    def quantized(self) -> ops.QuantizedWeight:
        """The quantized weight."""
        assert self._quantized is not None, "the layer has not run yet"
        return self._quantized

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [2 x num_tokens, in_features] -> [2 x num_tokens, out_features]."""
        plain, lossy = x.chunk(2)
        rows = ops.quantize_rows(lossy)
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


def calibrated_weights(folder: Path, dtype: torch.dtype, names: Sequence[str]) -> dict[str, ops.QuantizedWeight]:
    """Quantize the named linear layers of a checkpoint; the model itself writes in `dtype`."""
    token_ids = own_text(folder, dtype, NUM_SEQUENCES, MAX_LENGTH)
    reference = load_decoder(folder, torch.float32, _CPU)
    with progress_line("four-bit weights", len(names)) as advance:
        return calibrate(reference, names, token_ids, advance)


def own_text(folder: Path, dtype: torch.dtype, num_sequences: int, max_length: int) -> torch.Tensor:
    """Have the model write token ids [num_sequences, length]; raises ModelLoadError where it cannot."""
    writer = load_decoder(folder, dtype, _CPU)
    length = min(max_length, writer.config.max_position_embeddings)
    writer.prepare(dtype, _CPU, length)
    try:
        with progress_line("text of the model's own", length - 1) as advance:
            return sample_sequences(writer, dtype, num_sequences, length, advance)
    except ValueError as error:
        raise ModelLoadError(
            f"{folder}: the model cannot write the text that its numbers of few bits are chosen with: {error}"
        ) from None
