"""Which matrices of a decoder get fewer bits, and how many."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from rayinfer.errors import ConfigError
from rayinfer.layers.decoder_layer import DecoderLayer
from rayinfer.layers.expert_linear import ExpertLinear
from rayinfer.layers.matrix import Matrix
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.optimization.calibrated_weights import calibrated_weights
from rayinfer_kernels.packed_weight import WeightFormat
from rayinfer_kernels.quantized_weight import pack_quantized, quantize

INT4 = "int4"
# What is inside the layers, and what stands before and behind them: embedding and head.
_LAYER_FORMATS: Mapping[str, WeightFormat] = MappingProxyType(
    {"int8": WeightFormat.INT8, "int8-dynamic": WeightFormat.INT8_DYNAMIC, INT4: WeightFormat.INT4_DYNAMIC}
)
_END_FORMATS: Mapping[str, WeightFormat] = MappingProxyType(
    {"int8": WeightFormat.INT8, "int8-dynamic": WeightFormat.INT8_DYNAMIC, INT4: WeightFormat.INT8_DYNAMIC}
)


def check_can_quantize(decoder: object, quantization: str) -> None:
    """Raise ConfigError for a model whose products are not all those of plain linear layers."""
    if not isinstance(decoder, CausalDecoder):
        raise ConfigError(f"quantization {quantization!r} is for decoder-only models, and this one also has an encoder")
    if any(isinstance(module, ExpertLinear) for module in decoder.modules()):
        raise ConfigError(f"quantization {quantization!r} is not supported for mixtures of experts")


def quantize_decoder(decoder: torch.nn.Module, quantization: str, folder: Path, dtype: torch.dtype) -> None:
    """Replace every matrix of a decoder that `load_decoder` returned for `folder`; norms and biases stay."""
    formats = matrix_formats(decoder, quantization)
    to_calibrate = [name for name, format in formats.items() if format is WeightFormat.INT4_DYNAMIC]
    found = calibrated_weights(folder, dtype, to_calibrate) if to_calibrate else {}
    for name, format in formats.items():
        matrix = decoder.get_submodule(name)
        assert isinstance(matrix, Matrix)
        quantized = found.pop(name, None) or quantize(matrix.weight, format)
        matrix.use_packed(pack_quantized(quantized, is_gated=matrix.is_gated))


def matrix_formats(decoder: torch.nn.Module, quantization: str) -> dict[str, WeightFormat]:
    """Say for every matrix by name what becomes of it."""
    layers = tuple(name for name, module in decoder.named_modules() if isinstance(module, DecoderLayer))
    in_layer, at_end = _LAYER_FORMATS[quantization], _END_FORMATS[quantization]
    return {
        name: in_layer if _is_within(name, layers) else at_end
        for name, module in decoder.named_modules()
        if isinstance(module, Matrix)
    }


def _is_within(name: str, parents: tuple[str, ...]) -> bool:
    return name.startswith(tuple(f"{parent}." for parent in parents))
