"""Protocol of the readers of quantized formats, and what they read: tensors by name, and config.json's settings."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.models.quantized.quantized_matrix import QuantizedMatrix


class TensorSource(Protocol):
    """The tensors of a checkpoint."""

    @property
    def tensor_names(self) -> Collection[str]:
        """Every tensor's name."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; raises ModelLoadError where it is missing."""

    def dtype(self, name: str) -> torch.dtype:
        """Return a tensor's dtype."""

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor, a view of the file."""


class FormatReader(Protocol):
    """One quantized format: which tensors make a matrix, and what they mean."""

    @property
    def description(self) -> str:
        """The format in a few words, such as "gptq, 4 bits, groups of 128"."""

    def matrices(self, names: Collection[str], tensors: TensorSource) -> dict[str, frozenset[str]]:
        """Name each quantized matrix as a plain checkpoint does, with the tensors that it is made of."""

    def shape(self, tensors: TensorSource, matrix: str) -> tuple[int, ...]:
        """Return a matrix's shape, [..., out_features, in_features], without reading its data."""

    def read(self, tensors: TensorSource, matrix: str) -> QuantizedMatrix:
        """Read one matrix; raises ModelLoadError that names the tensor that does not fit."""


@dataclass(frozen=True, slots=True)
class QuantizationSettings:
    """The `quantization_config` of a config.json; every error names the file and the field."""

    file: Path
    fields: Mapping[str, Any]
    method: str

    def refuse(self, what: str, remedy: str) -> NoReturn:
        """Raise ModelLoadError for a variant that is not read."""
        raise ModelLoadError(f"{self.file}: quantization_config: {self.method} with {what} is not supported: {remedy}")

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a whole number."""
        value = self.fields.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelLoadError(f"{self.file}: quantization_config: {name} must be a whole number, got {value!r}")
        return value

    def word(self, name: str, default: str) -> str:
        """Return a word, in lower case."""
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            raise ModelLoadError(f"{self.file}: quantization_config: {name} must be a string, got {value!r}")
        return value.lower()

    def require(self, name: str, known: Sequence[Any], remedy: str, default: Any = None) -> Any:
        """Return a field's value, which must be one of `known`."""
        value = self.fields.get(name, default)
        if not any(type(value) is type(each) and value == each for each in known):  # 4.0 is not 4
            self.refuse(f"{name} {value!r}", remedy)
        return value


def check_tensor(
    tensors: TensorSource, name: str, shape: Sequence[int], dtypes: Collection[torch.dtype], of: str = ""
) -> None:
    """Raise ModelLoadError unless a tensor has this shape and one of these dtypes."""
    found = tensors.shape(name)
    if found != tuple(shape):
        raise ModelLoadError(f"tensor {name} has shape {found}, expected {tuple(shape)}{of}")
    if tensors.dtype(name) not in dtypes:
        words = " or ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise ModelLoadError(f"tensor {name} has dtype {tensors.dtype(name)}, expected {words}")


SCALES = (torch.float16, torch.bfloat16, torch.float32)


def with_suffix(
    names: Collection[str], marker: str, suffixes: Collection[str], weight: str = ".weight"
) -> dict[str, frozenset[str]]:
    """Find the layers that have a tensor `.marker`: the weight's name, and all of their tensors with these suffixes."""
    known = frozenset(names)
    found = {}
    for name in names:
        if match := re.fullmatch(rf"(.+)\.{re.escape(marker)}", name):
            layer = match[1]
            found[f"{layer}{weight}"] = frozenset(f"{layer}.{suffix}" for suffix in suffixes) & known
    return found


def layer_of(matrix: str) -> str:
    """Return the name of the layer whose weight this is."""
    return matrix.removesuffix(".weight")


def two_axes(tensors: TensorSource, name: str) -> tuple[int, int]:
    """Return the shape of a tensor that must be a matrix."""
    shape = tensors.shape(name)
    if len(shape) != 2:
        raise ModelLoadError(f"tensor {name} has shape {shape}, expected two axes")
    return shape[0], shape[1]
