"""Writes safetensors one tensor at a time, bfloat16 included, without torch."""

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rayinfer.models.checkpoints.safetensors_header import ELEMENT_BYTES

FloatArray = npt.NDArray[np.float32]

DATA_ALIGNMENT = 64  # bytes; the format asks for 8, a cache line costs nothing
ELEMENTS_AT_ONCE = 1 << 22  # rounding works in pieces: its scratch arrays stay below 64 MiB


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """A tensor that will be written."""

    name: str
    shape: tuple[int, ...]


def write_safetensors(file: Path, dtype: str, specs: list[TensorSpec], tensors: Iterable[npt.NDArray[Any]]) -> None:
    """Write `tensors`, which come in the order of `specs`, as `dtype`: float32 as BF16, F16 or F32, bytes as U8."""
    with file.open("wb") as stream:
        stream.write(_header(dtype, specs))
        for spec, tensor in zip(specs, tensors, strict=True):
            if tensor.shape != spec.shape:
                raise ValueError(f"tensor {spec.name!r} has shape {tensor.shape}, expected {spec.shape}")
            flat = tensor.reshape(-1)
            for start in range(0, flat.size, ELEMENTS_AT_ONCE):
                stream.write(_encode(flat[start : start + ELEMENTS_AT_ONCE], dtype))


def round_to_bfloat16(values: FloatArray) -> npt.NDArray[np.uint16]:
    """Round to the nearest bfloat16, ties to even, as torch does; the bits come as uint16."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    round_up = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + round_up) >> np.uint32(16)).astype(np.uint16)
    # A NaN whose mantissa lies in the lower half would round to infinity.
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def _header(dtype: str, specs: list[TensorSpec]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in specs:
        end = offset + math.prod(spec.shape) * ELEMENT_BYTES[dtype]
        entries[spec.name] = {"dtype": dtype, "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-(len(header) + 8) % DATA_ALIGNMENT)
    return struct.pack("<Q", len(header)) + header


def _encode(values: npt.NDArray[Any], dtype: str) -> bytes:
    match dtype:
        case "BF16":
            return round_to_bfloat16(values).astype("<u2").tobytes()
        case "F16":
            return values.astype("<f2").tobytes()
        case "F32":
            return values.astype("<f4").tobytes()
        case "U8":
            return values.tobytes()
    raise ValueError(f"cannot write the dtype {dtype!r}")
