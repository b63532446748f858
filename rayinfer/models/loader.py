"""Loader of checkpoints into decoders, tensor by tensor, without holding weights twice."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.layers.checkpoint_slices import CheckpointSlice, Index
from rayinfer.layers.weight_copies import copies_for_shard
from rayinfer.models.architectures.registry import architecture_class
from rayinfer.models.checkpoints.checkpoint import Checkpoint
from rayinfer.models.decoder import Decoder
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.models.predictor_kind import predictor_kind
from rayinfer.models.quantized.kept_groups import keep_groups
from rayinfer.models.quantized.quantized_checkpoint import QuantizedCheckpoint, open_checkpoint
from rayinfer.models.sharding import shard_decoder
from rayinfer.tensor_parallel import UNSHARDED, RankCoordinates, Shard, SingleRankGroup


def load_decoder(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    shard: Shard = UNSHARDED,
    *,
    when_filled: Callable[[torch.nn.Module, str], None] | None = None,
    keeps_quantized: bool = False,
) -> Decoder:
    """Build the checkpoint's decoder, or one rank's shard of it, and fill it.

    The parameters take memory once, in `dtype`; the checkpoint's pages are given back while they are read, and those
    that only other ranks need are not touched. A parameter takes memory when its first tensor is read, and when its
    last one was `when_filled`, given the decoder and the name, may replace it before others are read. Matrices that
    were published in groups of few bits are dequantized, or with `keeps_quantized` packed as they are. Raises
    ModelLoadError, one line that names the file or the tensor, and ConfigError where there are too many ranks for the
    model.
    """
    decoder = empty_decoder(folder)
    assert isinstance(decoder, torch.nn.Module)
    fill_model(decoder, folder, dtype, device, shard, when_filled=when_filled, keeps_quantized=keeps_quantized)
    return decoder


def fill_model(
    model: torch.nn.Module,
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    shard: Shard = UNSHARDED,
    *,
    when_filled: Callable[[torch.nn.Module, str], None] | None = None,
    keeps_quantized: bool = False,
) -> None:
    """Fill a whole model on the meta device that has `checkpoint_slices` and `known_name`; see `load_decoder`."""
    checkpoint = open_checkpoint(folder, dtype)
    slices = _match_tensors(model, checkpoint, folder)
    whole = {name: parameter.shape for name, parameter in model.named_parameters()}
    cuts = {} if shard.is_unsharded else shard_decoder(model, shard)  # type: ignore[arg-type]
    model.to(dtype)
    parameters = dict(model.named_parameters())
    copies = {
        name: copies_for_shard(part, whole[part.parameter], cuts.get(part.parameter))
        for name, part in slices.items()
        if part.parameter in parameters
    }
    copies = {name: pieces for name, pieces in copies.items() if pieces}
    if keeps_quantized and isinstance(checkpoint, QuantizedCheckpoint):
        kept = keep_groups(model, checkpoint, slices, copies)
        copies = {name: pieces for name, pieces in copies.items() if name not in kept}
        parameters = dict(model.named_parameters())
    num_lacking = Counter(slices[name].parameter for name in copies)
    with torch.no_grad():
        for name, tensor in checkpoint.tensors(copies):
            part = slices[name]
            if parameters[part.parameter].is_meta:
                parameters[part.parameter] = _allocate(model, part.parameter, device)
            for piece in copies[name]:
                source = tensor.mT if part.is_transposed else tensor
                parameters[part.parameter][piece.target].copy_(source[piece.source])
            num_lacking[part.parameter] -= 1
            if not num_lacking[part.parameter]:
                del parameters[part.parameter]
                if when_filled is not None:
                    when_filled(model, part.parameter)
        for name in parameters:  # none of whose tensors this rank needs
            _allocate(model, name, device)
    checkpoint.log_conversion()


def _allocate(decoder: torch.nn.Module, name: str, device: torch.device) -> torch.nn.Parameter:
    parent, _, kind = name.rpartition(".")
    owner = decoder.get_submodule(parent)
    like: torch.Tensor = getattr(owner, kind)
    empty = torch.empty(like.shape, dtype=like.dtype, device=device)  # empty_like of a meta tensor would import sympy
    parameter = torch.nn.Parameter(empty, requires_grad=False)
    setattr(owner, kind, parameter)
    return parameter


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """A tensor of the checkpoint, transposed as the model has it: a parameter of this shape, or the part at `index`."""

    tensor: torch.Tensor  # a view of the file, to be used before the next piece is asked for
    parameter: str
    shape: torch.Size
    index: Index


def read_parameters(folder: Path, names: Collection[str]) -> Iterator[ParameterSlice]:
    """Yield all pieces of these parameters of the whole model; raises ModelLoadError as `load_decoder` does."""
    checkpoint, decoder = open_checkpoint(folder), empty_decoder(folder)
    assert isinstance(decoder, torch.nn.Module)
    slices = {
        name: part for name, part in _match_tensors(decoder, checkpoint, folder).items() if part.parameter in names
    }
    for name, tensor in checkpoint.tensors(slices):
        part = slices[name]
        shape, index = decoder.get_parameter(part.parameter).shape, () if part.index is None else part.index
        yield ParameterSlice(tensor.mT if part.is_transposed else tensor, part.parameter, shape, index)


def check_checkpoint(folder: Path) -> None:
    """Raise ModelLoadError for what `load_decoder` would refuse, in a moment and without reading any weight."""
    decoder = empty_decoder(folder)
    assert isinstance(decoder, torch.nn.Module)
    _match_tensors(decoder, open_checkpoint(folder), folder)


def check_num_ranks(folder: Path, ranks: RankCoordinates) -> None:
    """Raise ConfigError where there are too many ranks for a model, before any of them is started."""
    empty_decoder(folder, Shard(ranks, _UnconnectedGroup(ranks)))


class _UnconnectedGroup(SingleRankGroup):
    """The sizes of a tensor group that does not exist."""

    def __init__(self, ranks: RankCoordinates) -> None:
        self.rank, self.size = ranks.tensor_rank, ranks.tensor_parallel_size


def empty_decoder(folder: Path, shard: Shard = UNSHARDED) -> Decoder:
    """Build the checkpoint's decoder, or one rank's shard of it, on the meta device, where it has no weights."""
    config = read_model_config(folder)
    if predictor_kind(folder) == "decoder":  # no head is needed, and often there is none
        config = replace(config, tie_word_embeddings=True)
    try:
        with torch.device("meta"):
            decoder: Decoder = architecture_class(config.architecture)(config)
    except (KeyError, TypeError, ValueError) as error:  # of fields that only this architecture reads
        raise ModelLoadError(f"{folder / 'config.json'}: missing or wrong field: {error}") from None
    if not isinstance(decoder, torch.nn.Module):  # another package's class
        raise ModelLoadError(f"architecture {config.architecture!r}: its class builds no torch module")
    shard_decoder(decoder, shard)
    decoder.eval()
    return decoder


def _match_tensors(decoder: torch.nn.Module, checkpoint: Checkpoint, folder: Path) -> dict[str, CheckpointSlice]:
    """Match every tensor with its slice of a parameter before any is read; raises ModelLoadError for any misfit."""
    parameters, needed = dict(decoder.named_parameters()), decoder.checkpoint_slices()  # type: ignore[operator]
    slices: dict[str, CheckpointSlice] = {}
    found: set[str] = set()
    for name in sorted(checkpoint.tensor_names):
        known_name = decoder.known_name(name)  # type: ignore[operator]
        if known_name is None:
            continue
        if (part := needed.get(known_name)) is None:
            raise ModelLoadError(f"{folder}: the model has no parameter for tensor {name}")
        if part.is_transposed and checkpoint.is_quantized(name):
            raise ModelLoadError(
                f"{folder}: tensor {name} is transposed in this architecture, and quantized: this is not supported"
            )
        shape = _slice_of(parameters[part.parameter], part).shape
        wanted = (*shape[:-2], shape[-1], shape[-2]) if part.is_transposed else tuple(shape)
        if checkpoint.shape(name) != wanted:
            raise ModelLoadError(f"{folder}: tensor {name} has shape {checkpoint.shape(name)}, expected {wanted}")
        if not checkpoint.dtype(name).is_floating_point:
            raise ModelLoadError(f"{folder}: tensor {name} has dtype {checkpoint.dtype(name)}, expected floating point")
        slices[name] = part
        found |= part.replaces or {known_name}
    if lacking := sorted(name for name, part in needed.items() if not part.replaces and name not in found):
        raise ModelLoadError(
            f"{folder}: the checkpoint lacks {', '.join(lacking[:3])}{' and more' * (len(lacking) > 3)}"
        )
    return slices


def _slice_of(parameter: torch.Tensor, part: CheckpointSlice) -> torch.Tensor:
    return parameter if part.index is None else parameter[part.index]


def torch_dtype(name: str, own: ModelConfig | str) -> torch.dtype:
    """The arithmetic asked for; "auto" is the checkpoint's own."""
    word = (own if isinstance(own, str) else own.dtype) if name == "auto" else name
    word = word.removeprefix("torch.")
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}.get(word)
    if dtype is None:
        raise ModelLoadError(f"dtype {word!r} is not supported: choose float32, bfloat16 or float16")
    return dtype
