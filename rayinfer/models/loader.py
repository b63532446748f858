"""Fills a decoder with a checkpoint's weights, tensor by tensor, without ever holding them twice."""

from pathlib import Path

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.models.checkpoint import Checkpoint
from rayinfer.models.decoder import Decoder, WeightPlace
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.models.registry import build_decoder, check_architecture


def load_decoder(folder: Path, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Build the checkpoint's decoder and fill it.

    The parameters take memory once, in `dtype`; the checkpoint's pages are given back while they are read.
    Raises ModelLoadError, one line that names the file or the tensor.
    """
    config = read_model_config(folder)
    check_architecture(config)
    checkpoint = Checkpoint(folder)
    with torch.device("meta"):
        decoder = build_decoder(config)
    assert isinstance(decoder, torch.nn.Module)
    places = _places(decoder, checkpoint, folder)
    decoder.to(dtype).to_empty(device=device)
    parameters = dict(decoder.named_parameters())
    with torch.inference_mode():
        for name, tensor in checkpoint.tensors(places):
            place = places[name]
            target = parameters[place.parameter]
            (target if place.rows is None else target[place.rows]).copy_(tensor)
    return decoder


def _places(decoder: torch.nn.Module, checkpoint: Checkpoint, folder: Path) -> dict[str, WeightPlace]:
    """Match every tensor with its place before any is read: all shapes right, no parameter left without its rows."""
    parameters = dict(decoder.named_parameters())
    missing = {name: parameter.shape[0] for name, parameter in parameters.items()}
    places: dict[str, WeightPlace] = {}
    for name in sorted(checkpoint.tensor_names):
        place = decoder.place_of(name)  # type: ignore[operator]
        if place is None:
            continue
        if place.parameter not in parameters:
            raise ModelLoadError(f"{folder}: the model has no place for tensor {name}")
        target = parameters[place.parameter]
        wanted = tuple((target if place.rows is None else target[place.rows]).shape)
        if checkpoint.shape(name) != wanted:
            raise ModelLoadError(f"{folder}: tensor {name} has shape {checkpoint.shape(name)}, expected {wanted}")
        places[name] = place
        missing[place.parameter] -= wanted[0]
    lacking = sorted(name for name, num_rows in missing.items() if num_rows)
    if lacking:
        raise ModelLoadError(
            f"{folder}: the checkpoint lacks {', '.join(lacking[:3])}{' and more' * (len(lacking) > 3)}"
        )
    return places


def torch_dtype(name: str, config: ModelConfig) -> torch.dtype:
    """The arithmetic asked for; "auto" is the checkpoint's own."""
    word = config.dtype if name == "auto" else name
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}.get(word)
    if dtype is None:
        raise ModelLoadError(f"dtype {word!r} is not supported: choose float32, bfloat16 or float16")
    return dtype
