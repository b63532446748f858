"""Quantisation of a decoder's matrices."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from rayinfer.errors import ConfigError
from rayinfer.layers.decoder_layer import DecoderLayer
from rayinfer.layers.expert_linear import ExpertLinear
from rayinfer.layers.matrix import Matrix
from rayinfer.layers.rms_norm import RMSNorm
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.decoder import Decoder
from rayinfer.models.loader import empty_decoder, load_decoder
from rayinfer.models.sharding import shard
from rayinfer.optimization.calibrated_weights import calibrated_weights
from rayinfer.optimization.shared_weights import INPUTS, largest_by_output, part_of
from rayinfer.optimization.smoothing import smooth_decoder
from rayinfer.tensor_parallel import WHOLE, Share
from rayinfer_kernels.packed_weight import WeightFormat
from rayinfer_kernels.quantized_weight import (
    QuantizedWeight,
    pack_quantized,
    quantize,
    quantize_float8,
    unpack_quantized,
)

INT8_DYNAMIC, INT4, FP8 = "int8-dynamic", "int4", "fp8"
# What is inside the layers, and what stands before and behind them: embedding and head.
_LAYER_FORMATS: Mapping[str, WeightFormat] = MappingProxyType(
    {"int8": WeightFormat.INT8, INT8_DYNAMIC: WeightFormat.INT8_DYNAMIC, INT4: WeightFormat.INT4_DYNAMIC}
)
_END_FORMATS: Mapping[str, WeightFormat] = MappingProxyType(
    {"int8": WeightFormat.INT8, INT8_DYNAMIC: WeightFormat.INT8_DYNAMIC, INT4: WeightFormat.INT8_DYNAMIC}
)


def load_float8_decoder(folder: Path, dtype: torch.dtype, device: torch.device, share: Share = WHOLE) -> Decoder:
    """Load a checkpoint onto a GPU; a matrix of its layers is rounded to e4m3 as soon as it is there.

    So no more than one of them is ever held in `dtype`. Embedding and head stay as they are. A rank of several scales
    its own part of a matrix.
    """

    def round_matrix(decoder: torch.nn.Module, parameter: str) -> None:
        name, _, kind = parameter.rpartition(".")
        matrix = decoder.get_submodule(name)
        if kind == "weight" and isinstance(matrix, Matrix) and _is_within(name, _layer_names(decoder)):
            matrix.use_packed(quantize_float8(matrix.weight, is_gated=matrix.is_gated))

    return load_decoder(folder, dtype, device, share, when_filled=round_matrix)


def check_can_quantize(decoder: object, quantization: str) -> None:
    """Raise ConfigError for a model whose products are not all those of plain linear layers."""
    if not isinstance(decoder, CausalDecoder):
        raise ConfigError(f"quantization {quantization!r} is for decoder-only models, and this one also has an encoder")
    if any(isinstance(module, ExpertLinear) for module in decoder.modules()):
        raise ConfigError(f"quantization {quantization!r} is not supported for mixtures of experts")


def quantize_decoder(decoder: torch.nn.Module, quantization: str, folder: Path, dtype: torch.dtype) -> None:
    """Replace every matrix of a decoder that `load_decoder` returned for `folder`.

    Norms and biases stay, but where rows of a norm's are smoothed before they get eight bits.
    """
    if quantization == INT8_DYNAMIC:
        smooth_decoder(decoder, folder, dtype)
    formats = matrix_formats(decoder, quantization)
    to_calibrate = _with_four_bits(formats)
    found = calibrated_weights(folder, dtype, to_calibrate) if to_calibrate else {}
    _replace_matrices(decoder, formats, lambda name, weight: found.pop(name, None) or quantize(weight, formats[name]))


def quantize_share(
    decoder: torch.nn.Module,
    quantization: str,
    folder: Path,
    dtype: torch.dtype,
    share: Share,
    whole: Callable[[], Decoder],
) -> None:
    """Do the same to one rank's share: its numbers are those that the whole model's matrices have there.

    Where rows get eight bits, too, they are found for the whole model only: so they are taken, with its norms, from the
    one that `whole` returns.
    """
    formats, cuts = matrix_formats(decoder, quantization), shard(empty_decoder(folder), share)
    calibrated = whole() if any(format.is_dynamic for format in formats.values()) else None
    assert calibrated is None or isinstance(calibrated, torch.nn.Module)
    cut_inputs = [name for name in formats if (cut := cuts.get(f"{name}.weight")) and cut.axis == INPUTS]
    largest = largest_by_output(folder, cut_inputs, dtype) if calibrated is None else {}
    if calibrated is not None:
        _copy_norms(decoder, calibrated)

    def choose(name: str, weight: torch.Tensor) -> QuantizedWeight:
        if calibrated is None:
            return quantize(weight, formats[name], largest.get(name))
        matrix = calibrated.get_submodule(name)
        assert isinstance(matrix, Matrix)
        assert matrix.packed is not None
        return part_of(unpack_quantized(matrix.packed), cuts.get(f"{name}.weight"))

    _replace_matrices(decoder, formats, choose)


@torch.no_grad()
def _copy_norms(decoder: torch.nn.Module, whole: torch.nn.Module) -> None:
    for name, module in decoder.named_modules():
        if isinstance(module, RMSNorm):
            norm = whole.get_submodule(name)
            assert isinstance(norm, RMSNorm)
            module.weight.copy_(norm.weight)


def _with_four_bits(formats: Mapping[str, WeightFormat]) -> list[str]:
    return [name for name, format in formats.items() if format is WeightFormat.INT4_DYNAMIC]


def _replace_matrices(
    decoder: torch.nn.Module, names: Iterable[str], choose: Callable[[str, torch.Tensor], QuantizedWeight]
) -> None:
    for name in names:
        matrix = decoder.get_submodule(name)
        assert isinstance(matrix, Matrix)
        matrix.use_packed(pack_quantized(choose(name, matrix.weight), is_gated=matrix.is_gated))


def matrix_formats(decoder: torch.nn.Module, quantization: str) -> dict[str, WeightFormat]:
    """Return the format of every matrix by name."""
    layers = _layer_names(decoder)
    in_layer, at_end = _LAYER_FORMATS[quantization], _END_FORMATS[quantization]
    return {
        name: in_layer if _is_within(name, layers) else at_end
        for name, module in decoder.named_modules()
        if isinstance(module, Matrix)
    }


def _layer_names(decoder: torch.nn.Module) -> tuple[str, ...]:
    return tuple(name for name, module in decoder.named_modules() if isinstance(module, DecoderLayer))


def _is_within(name: str, parents: tuple[str, ...]) -> bool:
    return name.startswith(tuple(f"{parent}." for parent in parents))
