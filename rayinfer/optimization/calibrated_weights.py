"""Four-bit weights of a checkpoint, found with text that the model writes itself."""

from collections.abc import Sequence
from pathlib import Path

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.models.loader import load_decoder
from rayinfer.optimization.calibration import calibrate
from rayinfer.optimization.progress_line import progress_line
from rayinfer.optimization.self_samples import sample_sequences
from rayinfer_kernels import ops

CALIBRATION_VERSION = 1  # what is found depends on everything in this folder's calibration: raise it with a change
NUM_SEQUENCES, MAX_LENGTH = 64, 256

_CPU = torch.device("cpu")


def calibrated_weights(folder: Path, dtype: torch.dtype, names: Sequence[str]) -> dict[str, ops.QuantizedWeight]:
    """Quantise the named linear layers of a checkpoint; the model itself writes in `dtype`."""
    token_ids = own_text(folder, dtype, NUM_SEQUENCES, MAX_LENGTH)
    learner = load_decoder(folder, torch.float32, _CPU)
    with progress_line("four-bit weights", len(names)) as advance:
        return calibrate(learner, names, token_ids, advance)


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
