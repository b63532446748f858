"""Loads an encoder with weights ready for its products."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.layers.linear import Linear
from rayinfer.models.encoders.bert import build_bert
from rayinfer.models.encoders.encoder import Encoder
from rayinfer.models.encoders.encoder_config import EncoderConfig, read_encoder_config
from rayinfer.models.encoders.modern_bert import build_modern_bert
from rayinfer.models.encoders.nomic_bert import build_nomic_bert
from rayinfer.models.encoders.registry import Family
from rayinfer.models.loader import fill_model
from rayinfer_kernels import ops

BUILDERS: Mapping[Family, Callable[[EncoderConfig], Encoder]] = MappingProxyType(
    {
        "bert": build_bert,
        "roberta": build_bert,
        "distilbert": build_bert,
        "mpnet": build_bert,
        "modernbert": build_modern_bert,
        "nomic_bert": build_nomic_bert,
    }
)
FORMATS = MappingProxyType({"int8": ops.WeightFormat.INT8, "int8-dynamic": ops.WeightFormat.INT8_DYNAMIC})


def load_encoder(folder: Path, dtype: torch.dtype, device: torch.device, *, quantization: str | None = None) -> Encoder:
    """Build a checkpoint's encoder and fill it; raises ModelLoadError and ConfigError."""
    if quantization is not None and (quantization not in FORMATS or device.type != "cpu"):
        raise ConfigError(
            f"quantization {quantization!r} is not supported for encoders on this device, only"
            f" {' and '.join(FORMATS)} on CPUs"
        )
    encoder = empty_encoder(read_encoder_config(folder), folder)
    fill_model(encoder, folder, dtype, device)
    encoder.prepare(dtype, device)
    if quantization is not None:
        _quantize(encoder, FORMATS[quantization])
    return encoder.eval()


def empty_encoder(config: EncoderConfig, folder: Path) -> Encoder:
    """Build an encoder on the meta device, where it has no weights."""
    try:
        with torch.device("meta"):
            return BUILDERS[config.architecture.family](config)
    except (KeyError, TypeError, ValueError) as error:  # of fields that only this family reads
        raise ModelLoadError(f"{folder / 'config.json'}: missing or wrong field: {error}") from None


def _quantize(encoder: Encoder, format: ops.WeightFormat) -> None:
    """Replace the matrices of the layers; embeddings and the head stay as they are."""
    for module in encoder.layers.modules():
        if isinstance(module, Linear):
            quantized = ops.quantize(module.weight, format)
            module.use_packed(ops.pack_quantized(quantized, is_gated=module.is_gated))
