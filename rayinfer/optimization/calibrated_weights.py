"""Four-bit weights of a checkpoint, found with text that the model writes itself."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rayinfer.errors import ModelLoadError
from rayinfer.models.loader import load_decoder
from rayinfer.optimization.calibration import calibrate
from rayinfer.optimization.self_samples import sample_sequences
from rayinfer_kernels.quantized_weight import QuantizedWeight

CALIBRATION_VERSION = 1  # what is found depends on everything in this folder's calibration: raise it with a change
NUM_SEQUENCES, MAX_LENGTH = 64, 256

_CPU = torch.device("cpu")


def calibrated_weights(folder: Path, dtype: torch.dtype, names: Sequence[str]) -> dict[str, QuantizedWeight]:
    """Quantise the named linear layers of a checkpoint; the model itself writes in `dtype`."""
    with _progress_bar() as bar:
        token_ids = _own_text(folder, dtype, bar)
        task = bar.add_task("four-bit weights", total=len(names))
        learner = load_decoder(folder, torch.float32, _CPU)
        return calibrate(learner, names, token_ids, lambda: bar.advance(task))


def _own_text(folder: Path, dtype: torch.dtype, bar: Progress) -> torch.Tensor:
    writer = load_decoder(folder, dtype, _CPU)
    length = min(MAX_LENGTH, writer.config.max_position_embeddings)
    writer.prepare(dtype, _CPU, length)
    task = bar.add_task("text of the model's own", total=length - 1)
    try:
        return sample_sequences(writer, dtype, NUM_SEQUENCES, length, lambda: bar.advance(task))
    except ValueError as error:
        raise ModelLoadError(
            f"{folder}: the model cannot write the text that four bits are chosen with: {error}"
        ) from None


def _progress_bar() -> Progress:
    """Shown where somebody looks on: on standard error, if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)
