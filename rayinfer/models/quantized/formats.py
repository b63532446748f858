"""Formats of published quantized checkpoints by the name that config.json gives them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from rayinfer.errors import ModelLoadError
from rayinfer.models.quantized.awq import AwqReader
from rayinfer.models.quantized.bitsandbytes import BitsAndBytesReader
from rayinfer.models.quantized.compressed_tensors import CompressedTensorsReader
from rayinfer.models.quantized.float8 import Float8Reader
from rayinfer.models.quantized.format_reader import FormatReader, QuantizationSettings
from rayinfer.models.quantized.gguf_blocks import GgufReader
from rayinfer.models.quantized.gptq import GptqReader
from rayinfer.models.quantized.mxfp4 import Mxfp4Reader

READERS: Mapping[str, Callable[[QuantizationSettings], FormatReader]] = MappingProxyType(
    {
        "awq": AwqReader,
        "bitsandbytes": BitsAndBytesReader,
        "compressed-tensors": CompressedTensorsReader,
        "fp8": Float8Reader,
        "gguf": GgufReader,
        "gptq": GptqReader,
        "mxfp4": Mxfp4Reader,
    }
)


def format_reader(folder: Path) -> FormatReader | None:
    """Return the reader for a folder whose config.json has a `quantization_config`; None where it has none.

    Raises ModelLoadError for a format or a variant that is not read, by its name.
    """
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # its other readers say what is wrong with it
    if not isinstance(config, dict):
        return None
    text_config = config.get("text_config")
    fields = config.get("quantization_config") or config.get("compression_config")
    if fields is None and isinstance(text_config, dict):
        fields = text_config.get("quantization_config")
    if fields is None:
        return None
    if not isinstance(fields, dict):
        raise ModelLoadError(f"{file}: quantization_config must be an object, got {fields!r}")
    method = _method(fields)
    if (reader := READERS.get(method)) is None:
        raise ModelLoadError(
            f"{file}: quantization_config: the method {method!r} is not supported, known: {', '.join(READERS)};"
            " use the unquantized checkpoint, which --quantization quantizes"
        )
    return reader(QuantizationSettings(file, fields, method))


def _method(fields: Mapping[str, object]) -> str:
    if "quant_method" in fields:
        return str(fields["quant_method"]).lower().replace("_", "-")
    if fields.get("load_in_4bit") or fields.get("load_in_8bit"):
        return "bitsandbytes"  # of before the field was there
    return "none"
