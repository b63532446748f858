"""One opened GGUF file: its metadata by name, its tensors dequantized one at a time (no torch here)."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture

PLAIN_TYPES: Mapping[str, str] = MappingProxyType({"F32": "F32", "F16": "F16"})


class GgufFile:
    """Metadata and tensors of a GGUF file; raises ModelLoadError that names the file, the key or the tensor."""

    def __init__(self, file: Path) -> None:
        self.path = file
        try:
            self._reader = gguf.GGUFReader(file)
        except (ValueError, IndexError, KeyError, OSError, OverflowError) as error:
            # The reader slices past the end of a truncated file, which numpy reports in its own words.
            raise ModelLoadError(f"{file} is no whole GGUF file: {' '.join(str(error).split())}") from None
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    @property
    def tensor_names(self) -> list[str]:
        """Every tensor's name, in file order."""
        return list(self._tensors)

    @property
    def matrix_dtype(self) -> str:
        """The safetensors dtype for the matrices: their own if they are plain, else "BF16"."""
        kinds = {tensor.tensor_type.name for tensor in self._tensors.values() if len(tensor.shape) > 1}
        return PLAIN_TYPES.get(kinds.pop(), "BF16") if len(kinds) == 1 else "BF16"

    def get(self, key: str, default: Any = None) -> Any:
        """Return a metadata value as plain Python, or `default`."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        """Return a metadata value that must be there."""
        value = self.get(key)
        if value is None:
            raise ModelLoadError(f"{self.path}: the metadata lacks {key!r}")
        return value

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, outermost extent first as in torch."""
        return tuple(int(extent) for extent in reversed(self._tensor(name).shape))

    def kind(self, name: str) -> str:
        """Return how a tensor is quantized, such as "q4_1" or "f32"."""
        return str(self._tensor(name).tensor_type.name).lower()

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor in blocks, a row's behind one another: [out_features, bytes of a row]."""
        rows: npt.NDArray[np.uint8] = self._tensor(name).data
        return rows

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """Dequantize one tensor to float32."""
        tensor = self._tensor(name)
        try:
            values: npt.NDArray[np.float32] = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise UnsupportedArchitecture(
                f"{self.path}: tensor {name!r} is quantized as {tensor.tensor_type.name}, which cannot be unpacked"
            ) from None
        return values.astype(np.float32, copy=False).reshape(self.shape(name))

    def _tensor(self, name: str) -> Any:
        if name not in self._tensors:
            raise ModelLoadError(f"{self.path}: tensor {name!r} is missing")
        return self._tensors[name]
