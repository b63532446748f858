"""Numbers as bytes: their type, their order of bytes, and the metadata beside them, as vLLM names them."""

import base64
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rayinfer.errors import InvalidParameter
from rayinfer.servers.prediction.number_encoding import FloatArray, check_finite

EmbedDtype = Literal["float32", "float16", "bfloat16"]
Endianness = Literal["native", "little", "big"]
MAX_METADATA_BYTES = 2**15  # of a header; clients refuse longer ones
_LARGEST = {"float16": float(np.finfo(np.float16).max)}


@dataclass(frozen=True, slots=True)
class NumberType:
    """A type of numbers and the order of its bytes."""

    dtype: EmbedDtype = "float32"
    endianness: Endianness = "little"

    def encode(self, numbers: FloatArray) -> bytes:
        """Write an array; numbers beyond the type's range become its largest."""
        order = "<" if (sys.byteorder if self.endianness == "native" else self.endianness) == "little" else ">"
        checked = check_finite(numbers)
        if self.dtype == "bfloat16":
            return _bfloat16_bits(checked).astype(f"{order}u2").tobytes()
        if (largest := _LARGEST.get(self.dtype)) is not None:
            checked = checked.clip(-largest, largest)
        return checked.astype(f"{order}f{2 if self.dtype == 'float16' else 4}").tobytes()

    def base64_json(self, numbers: FloatArray) -> bytes:
        """Write an array as a JSON string of base64."""
        return b'"' + base64.b64encode(self.encode(numbers)) + b'"'


FLOAT32 = NumberType()  # that OpenAI's clients read


def numbers_with_metadata(
    arrays: Sequence[FloatArray], number_type: NumberType, head: dict[str, Any]
) -> tuple[bytes, dict[str, str]]:
    """Write arrays one behind the other; returns them and the header that says where each lies.

    Raises InvalidParameter where the header would be too long.
    """
    pieces = [number_type.encode(array) for array in arrays]
    data, start = [], 0
    for index, (array, piece) in enumerate(zip(arrays, pieces, strict=True)):
        place = {"start": start, "end": start + len(piece), "shape": list(array.shape)}
        data.append({"index": index, "embed_dtype": number_type.dtype, "endianness": number_type.endianness} | place)
        start += len(piece)
    metadata = json.dumps(head | {"data": data})
    if len(metadata) > MAX_METADATA_BYTES:
        raise InvalidParameter(
            f"the metadata of {len(arrays)} inputs would take {len(metadata)} bytes of a header, at most"
            f" {MAX_METADATA_BYTES} are sent: send fewer inputs, or encoding_format bytes_only",
            "encoding_format",
        )
    return b"".join(pieces), {"metadata": metadata}


def _bfloat16_bits(numbers: FloatArray) -> npt.NDArray[np.uint32]:
    """Round to the nearest, to even ones in the middle."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    largest = (bits >> 16 & 0x8000) | 0x7F7F  # what would be rounded to infinity
    return np.where((rounded & 0x7FFF) >= 0x7F80, largest, rounded).astype(np.uint32)
