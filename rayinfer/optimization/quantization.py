"""Quantization of a decoder's matrices."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from rayinfer.errors import ConfigError
from rayinfer.layers.decoder_layer import DecoderLayer
from rayinfer.layers.expert_linear import ExpertLinear
from rayinfer.layers.matrix import Matrix
from rayinfer.layers.mixture_of_experts import MixtureOfExperts
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.shards import ShardSlice
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.decoder import Decoder
from rayinfer.models.loader import empty_decoder, load_decoder
from rayinfer.models.sharding import shard_decoder
from rayinfer.optimization.calibration import calibrated_weights
from rayinfer.optimization.four_bit_grids import keep_grid
from rayinfer.optimization.packed_model import packed_matrix
from rayinfer.optimization.sharded_weights import INPUTS, largest_by_output, shard_of
from rayinfer.optimization.smoothing import smooth_decoder
from rayinfer.optimization.tensor_file import StoredTensors
from rayinfer.tensor_parallel import UNSHARDED, Shard
from rayinfer_kernels import ops

INT8, INT8_DYNAMIC, INT4, FP8 = "int8", "int8-dynamic", "int4", "fp8"
_EXPERT_MODES = (INT8, INT8_DYNAMIC)  # of mixtures of experts: their numbers are found matrix by matrix
# What is inside the layers, and what stands before and behind them: embedding and head.
_LAYER_FORMATS: Mapping[str, ops.WeightFormat] = MappingProxyType(
    {INT8: ops.WeightFormat.INT8, INT8_DYNAMIC: ops.WeightFormat.INT8_DYNAMIC, INT4: ops.WeightFormat.INT4_DYNAMIC}
)
_END_FORMATS: Mapping[str, ops.WeightFormat] = MappingProxyType(
    {INT8: ops.WeightFormat.INT8, INT8_DYNAMIC: ops.WeightFormat.INT8_DYNAMIC, INT4: ops.WeightFormat.INT8_DYNAMIC}
)


def load_float8_decoder(folder: Path, dtype: torch.dtype, device: torch.device, shard: Shard = UNSHARDED) -> Decoder:
    """Load a checkpoint onto a GPU; a matrix of its layers is rounded to e4m3 as soon as it is there.

    So no more than one of them is ever held in `dtype`. Embedding and head stay as they are. A rank of several scales
    its own part of a matrix.
    """

    def round_matrix(decoder: torch.nn.Module, parameter: str) -> None:
        name, _, kind = parameter.rpartition(".")
        matrix = decoder.get_submodule(name)
        if kind == "weight" and isinstance(matrix, Matrix) and _is_within(name, _layer_names(decoder)):
            matrix.use_packed(ops.quantize_float8(matrix.weight, is_gated=matrix.is_gated))

    return load_decoder(folder, dtype, device, shard, when_filled=round_matrix)


def check_can_quantize(decoder: object, quantization: str) -> None:
    """Raise ConfigError for a model whose products this mode cannot compute."""
    if not isinstance(decoder, CausalDecoder):
        raise ConfigError(f"quantization {quantization!r} is for decoder-only models, and this one also has an encoder")
    if quantization not in _EXPERT_MODES and any(isinstance(module, ExpertLinear) for module in decoder.modules()):
        supported = " and ".join(map(repr, _EXPERT_MODES))
        raise ConfigError(
            f"quantization {quantization!r} is not supported for mixtures of experts, only {supported} on CPUs"
        )


def quantize_decoder(decoder: torch.nn.Module, quantization: str, folder: Path, dtype: torch.dtype) -> None:
    """Replace every matrix of a decoder that `load_decoder` returned for `folder`.

    Norms and biases stay, but where rows of a norm's are smoothed before they get eight bits.
    """
    if quantization == INT8_DYNAMIC:
        smooth_decoder(decoder, folder, dtype)
    formats = matrix_formats(decoder, quantization)
    found = _kept_grids(decoder, _with_four_bits(formats))
    if to_calibrate := [name for name in _with_four_bits(formats) if name not in found]:
        found |= calibrated_weights(folder, dtype, to_calibrate)
    _replace_matrices(
        decoder, formats, lambda name, weight: found.pop(name, None) or ops.quantize(weight, formats[name])
    )


def quantize_shard(
    decoder: torch.nn.Module,
    quantization: str,
    folder: Path,
    dtype: torch.dtype,
    shard: Shard,
    whole: Callable[[], StoredTensors],
) -> None:
    """Do the same to one rank's shard: its numbers are those that the whole model's matrices have there.

    Where rows get eight bits, too, they are found for the whole model only: so they are cut, with its norms, from the
    packed tensors that `whole` returns.
    """
    formats, cuts = matrix_formats(decoder, quantization), shard_decoder(empty_decoder(folder), shard)
    if not any(format.is_dynamic for format in formats.values()):
        cut_inputs = [name for name in formats if (cut := cuts.get(f"{name}.weight")) and cut.axis == INPUTS]
        largest = largest_by_output(folder, cut_inputs, dtype)
        _replace_matrices(decoder, formats, lambda name, weight: ops.quantize(weight, formats[name], largest.get(name)))
        return
    packed = whole()
    _copy_norms(decoder, packed.tensors, cuts)
    _replace_matrices(
        decoder,
        formats,
        lambda name, _: shard_of(ops.unpack_quantized(packed_matrix(packed, name)), cuts.get(f"{name}.weight")),
    )


@torch.no_grad()
def _copy_norms(decoder: torch.nn.Module, whole: Mapping[str, torch.Tensor], cuts: Mapping[str, ShardSlice]) -> None:
    for name, module in decoder.named_modules():
        if isinstance(module, RMSNorm):
            weight = f"{name}.weight"
            # A norm of all heads' queries is cut with them.
            module.weight.copy_(cuts[weight].of(whole[weight]) if weight in cuts else whole[weight])


def _with_four_bits(formats: Mapping[str, ops.WeightFormat]) -> list[str]:
    return [name for name, format in formats.items() if format is ops.WeightFormat.INT4_DYNAMIC]


def _kept_grids(decoder: torch.nn.Module, names: Iterable[str]) -> dict[str, ops.QuantizedWeight]:
    matrices = {name: decoder.get_submodule(name) for name in names}
    kept = {name: keep_grid(matrix.weight) for name, matrix in matrices.items() if isinstance(matrix, Matrix)}
    return {name: quantized for name, quantized in kept.items() if quantized is not None}


def _replace_matrices(
    decoder: torch.nn.Module, names: Iterable[str], choose: Callable[[str, torch.Tensor], ops.QuantizedWeight]
) -> None:
    for name in names:
        matrix = decoder.get_submodule(name)
        assert isinstance(matrix, Matrix)
        matrix.use_packed(ops.pack_quantized(choose(name, matrix.weight), is_gated=matrix.is_gated))


def matrix_formats(decoder: torch.nn.Module, quantization: str) -> dict[str, ops.WeightFormat]:
    """Return the format of every matrix by name, but of routers: a rounded one would choose other experts."""
    layers = _layer_names(decoder)
    in_layer, at_end = _LAYER_FORMATS[quantization], _END_FORMATS[quantization]
    routers = {module.gate for module in decoder.modules() if isinstance(module, MixtureOfExperts)}
    return {
        name: in_layer if _is_within(name, layers) else at_end
        for name, module in decoder.named_modules()
        if isinstance(module, Matrix) and module not in routers
    }


def _layer_names(decoder: torch.nn.Module) -> tuple[str, ...]:
    return tuple(name for name, module in decoder.named_modules() if isinstance(module, DecoderLayer))


def _is_within(name: str, parents: tuple[str, ...]) -> bool:
    return name.startswith(tuple(f"{parent}." for parent in parents))
