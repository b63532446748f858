"""Fills a decoder with a checkpoint's weights, tensor by tensor, without ever holding them twice."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.layers.weight_copies import copies_of_part
from rayinfer.layers.weight_places import Index, WeightPlace
from rayinfer.models.architectures.registry import build_decoder
from rayinfer.models.checkpoints.checkpoint import Checkpoint
from rayinfer.models.decoder import Decoder
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.models.sharding import shard
from rayinfer.tensor_parallel import UNSHARDED, Shard


def load_decoder(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    share: Shard = UNSHARDED,
    *,
    when_filled: Callable[[torch.nn.Module, str], None] | None = None,
) -> Decoder:
    """Build the checkpoint's decoder, or one rank's share of it, and fill it.

    The parameters take memory once, in `dtype`; the checkpoint's pages are given back while they are read, and those
    that only other ranks need are not touched. A parameter takes memory when its first tensor is read, and when its
    last one was `when_filled`, given the decoder and the name, may replace it before others are read. Raises
    ModelLoadError, one line that names the file or the tensor, and ConfigError where there are too many ranks for the
    model.
    """
    checkpoint, decoder = Checkpoint(folder), empty_decoder(folder)
    assert isinstance(decoder, torch.nn.Module)
    places = _places(decoder, checkpoint, folder)
    whole = {name: parameter.shape for name, parameter in decoder.named_parameters()}
    cuts = shard(decoder, share)
    decoder.to(dtype)
    parameters = dict(decoder.named_parameters())
    copies = {
        name: copies_of_part(place, whole[place.parameter], cuts.get(place.parameter))
        for name, place in places.items()
        if place.parameter in parameters
    }
    copies = {name: pieces for name, pieces in copies.items() if pieces}
    num_lacking = Counter(places[name].parameter for name in copies)
    with torch.no_grad():
        for name, tensor in checkpoint.tensors(copies):
            place = places[name]
            if parameters[place.parameter].is_meta:
                parameters[place.parameter] = _take_memory(decoder, place.parameter, device)
            for piece in copies[name]:
                source = tensor.T if place.is_transposed else tensor
                parameters[place.parameter][piece.target].copy_(source[piece.source])
            num_lacking[place.parameter] -= 1
            if not num_lacking[place.parameter]:
                del parameters[place.parameter]
                if when_filled is not None:
                    when_filled(decoder, place.parameter)
        for name in parameters:  # of which this rank has nothing
            _take_memory(decoder, name, device)
    return decoder


def _take_memory(decoder: torch.nn.Module, name: str, device: torch.device) -> torch.nn.Parameter:
    parent, _, kind = name.rpartition(".")
    owner = decoder.get_submodule(parent)
    parameter = torch.nn.Parameter(torch.empty_like(getattr(owner, kind), device=device), requires_grad=False)
    setattr(owner, kind, parameter)
    return parameter


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor of the checkpoint, turned as the model has it: a parameter of this shape, or the part at `index`."""

    tensor: torch.Tensor  # a view of the file, to be used before the next piece is asked for
    parameter: str
    shape: torch.Size
    index: Index


def read_parameters(folder: Path, names: Collection[str]) -> Iterator[Piece]:
    """Yield all pieces of these parameters of the whole model; raises ModelLoadError as `load_decoder` does."""
    checkpoint, decoder = Checkpoint(folder), empty_decoder(folder)
    assert isinstance(decoder, torch.nn.Module)
    places = {name: place for name, place in _places(decoder, checkpoint, folder).items() if place.parameter in names}
    for name, tensor in checkpoint.tensors(places):
        place = places[name]
        shape, index = decoder.get_parameter(place.parameter).shape, () if place.index is None else place.index
        yield Piece(tensor.T if place.is_transposed else tensor, place.parameter, shape, index)


def check_checkpoint(folder: Path) -> None:
    """Raise ModelLoadError for what `load_decoder` would refuse, in a moment and without reading any weight."""
    decoder = empty_decoder(folder)
    assert isinstance(decoder, torch.nn.Module)
    _places(decoder, Checkpoint(folder), folder)


def empty_decoder(folder: Path, share: Shard = UNSHARDED) -> Decoder:
    """Build the checkpoint's decoder, or one rank's share of it, on the meta device, where it has no weights."""
    config = read_model_config(folder)
    try:
        with torch.device("meta"):
            decoder = build_decoder(config)
    except (KeyError, TypeError, ValueError) as error:  # of fields that only this architecture reads
        raise ModelLoadError(f"{folder / 'config.json'}: missing or wrong field: {error}") from None
    shard(decoder, share)
    return decoder


def _places(decoder: torch.nn.Module, checkpoint: Checkpoint, folder: Path) -> dict[str, WeightPlace]:
    """Match every tensor with its place before any is read: all shapes right, nothing lacking, nothing left over."""
    parameters, needed = dict(decoder.named_parameters()), decoder.weight_places()  # type: ignore[operator]
    places: dict[str, WeightPlace] = {}
    found: set[str] = set()
    for name in sorted(checkpoint.tensor_names):
        known_name = decoder.known_name(name)  # type: ignore[operator]
        if known_name is None:
            continue
        if (place := needed.get(known_name)) is None:
            raise ModelLoadError(f"{folder}: the model has no place for tensor {name}")
        shape = _filled_part(parameters[place.parameter], place).shape
        wanted = tuple(reversed(shape) if place.is_transposed else shape)
        if checkpoint.shape(name) != wanted:
            raise ModelLoadError(f"{folder}: tensor {name} has shape {checkpoint.shape(name)}, expected {wanted}")
        if not checkpoint.dtype(name).is_floating_point:
            raise ModelLoadError(f"{folder}: tensor {name} has dtype {checkpoint.dtype(name)}, expected floating point")
        places[name] = place
        found |= place.instead_of or {known_name}
    if lacking := sorted(name for name, place in needed.items() if not place.instead_of and name not in found):
        raise ModelLoadError(
            f"{folder}: the checkpoint lacks {', '.join(lacking[:3])}{' and more' * (len(lacking) > 3)}"
        )
    return places


def _filled_part(parameter: torch.Tensor, place: WeightPlace) -> torch.Tensor:
    return parameter if place.index is None else parameter[place.index]


def torch_dtype(name: str, config: ModelConfig) -> torch.dtype:
    """The arithmetic asked for; "auto" is the checkpoint's own."""
    word = config.dtype if name == "auto" else name
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}.get(word)
    if dtype is None:
        raise ModelLoadError(f"dtype {word!r} is not supported: choose float32, bfloat16 or float16")
    return dtype
