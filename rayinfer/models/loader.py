"""Fills a decoder with a checkpoint's weights, tensor by tensor, without ever holding them twice."""

from pathlib import Path

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.layers.linear import StackedLinear
from rayinfer.models.checkpoint import Checkpoint
from rayinfer.models.decoder import Decoder, WeightPlace
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.models.registry import build_decoder, check_architecture


def load_decoder(folder: Path, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Build the checkpoint's decoder and fill it.

    The parameters take memory once, in `dtype`; the checkpoint's pages are given back while they are read.
    Raises ModelLoadError, one line that names the file or the tensor.
    """
    checkpoint, decoder = Checkpoint(folder), _empty_decoder(folder)
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


def check_checkpoint(folder: Path) -> None:
    """Raise ModelLoadError for what `load_decoder` would refuse, in a moment and without reading any weight."""
    decoder = _empty_decoder(folder)
    assert isinstance(decoder, torch.nn.Module)
    _places(decoder, Checkpoint(folder), folder)


def _empty_decoder(folder: Path) -> Decoder:
    config = read_model_config(folder)
    check_architecture(config)
    with torch.device("meta"):
        return build_decoder(config)


def _places(decoder: torch.nn.Module, checkpoint: Checkpoint, folder: Path) -> dict[str, WeightPlace]:
    """Match every tensor with its place before any is read: all shapes right, nothing lacking, nothing left over."""
    parameters = dict(decoder.named_parameters())
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
        if not checkpoint.dtype(name).is_floating_point:
            raise ModelLoadError(f"{folder}: tensor {name} has dtype {checkpoint.dtype(name)}, expected floating point")
        places[name] = place
    if lacking := sorted(_tensor_names(decoder) - places.keys()):
        raise ModelLoadError(
            f"{folder}: the checkpoint lacks {', '.join(lacking[:3])}{' and more' * (len(lacking) > 3)}"
        )
    return places


def _tensor_names(decoder: torch.nn.Module) -> set[str]:
    """What the checkpoint must hold, with the parts of stacked layers by their own names."""
    names: set[str] = set()
    for path, module in decoder.named_modules():
        parent = path.rpartition(".")[0]
        paths = [f"{parent}.{part}" for part in module.rows] if isinstance(module, StackedLinear) else [path]
        names |= {f"{each}.{kind}" for kind, _ in module.named_parameters(recurse=False) for each in paths}
    return names


def torch_dtype(name: str, config: ModelConfig) -> torch.dtype:
    """The arithmetic asked for; "auto" is the checkpoint's own."""
    word = config.dtype if name == "auto" else name
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}.get(word)
    if dtype is None:
        raise ModelLoadError(f"dtype {word!r} is not supported: choose float32, bfloat16 or float16")
    return dtype
