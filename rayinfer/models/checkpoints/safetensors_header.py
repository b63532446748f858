"""Header of a safetensors file: each tensor's position, checked against the file's size (no torch here)."""

import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rayinfer.errors import ModelLoadError

LENGTH_BYTES = 8  # the header's length: unsigned, little-endian
MAX_HEADER_BYTES = 100 << 20  # what the format allows

ELEMENT_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorEntry:
    """A tensor's type, shape and position in its file."""

    name: str
    dtype: str  # the format's word, such as "BF16"
    shape: tuple[int, ...]
    start: int  # first byte, counted from the start of the file
    num_bytes: int


def read_safetensors_header(file: Path) -> dict[str, TensorEntry]:
    """Read the entries in file order; raises ModelLoadError, naming file or tensor, unless header and size agree."""
    with file.open("rb") as stream:
        return read_open_header(file, stream)


def read_open_header(file: Path, stream: BinaryIO) -> dict[str, TensorEntry]:
    """Read the entries of a file that is open at its start, and stays so for what reads its tensors."""
    size = os.fstat(stream.fileno()).st_size
    header = _read_json(file, stream, size)
    data_start = stream.tell()
    header.pop("__metadata__", None)
    entries = sorted(
        (_entry(file, name, description, data_start) for name, description in header.items()),
        key=lambda entry: (entry.start, entry.num_bytes),
    )
    end = data_start
    for entry in entries:
        if entry.start != end:
            raise ModelLoadError(f"{file}: tensor {entry.name!r} starts at byte {entry.start}, expected {end}")
        end += entry.num_bytes
    if end != size:
        kind = "truncated" if size < end else "too long"
        raise ModelLoadError(f"{file} is {kind}: its header describes {end:,} bytes, the file has {size:,}")
    return {entry.name: entry for entry in entries}


def _read_json(file: Path, stream: BinaryIO, size: int) -> dict[str, Any]:
    length_field = stream.read(LENGTH_BYTES)
    if len(length_field) < LENGTH_BYTES:
        raise ModelLoadError(f"{file} is truncated: {size} bytes are too few for a safetensors file")
    (length,) = struct.unpack("<Q", length_field)
    if length > MAX_HEADER_BYTES:
        raise ModelLoadError(f"{file} is no safetensors file: a header of {length:,} bytes")
    if LENGTH_BYTES + length > size:
        raise ModelLoadError(f"{file} is truncated: its header alone has {length:,} bytes, the file has {size:,}")
    try:
        header = json.loads(stream.read(length))
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{file} has a corrupt safetensors header: {error}") from None
    if not isinstance(header, dict):
        raise ModelLoadError(f"{file} has a corrupt safetensors header: no JSON object")
    return header


def _entry(file: Path, name: str, description: Any, data_start: int) -> TensorEntry:
    try:
        dtype, shape = description["dtype"], tuple(description["shape"])
        begin, end = description["data_offsets"]
        well_formed = isinstance(dtype, str)
        well_formed &= all(isinstance(extent, int) and extent >= 0 for extent in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        well_formed = False
    if not well_formed:
        raise ModelLoadError(f"{file}: the header's entry for tensor {name!r} is corrupt")
    if dtype not in ELEMENT_BYTES:
        raise ModelLoadError(f"{file}: tensor {name!r} has the unknown dtype {dtype!r}")
    if end - begin != math.prod(shape) * ELEMENT_BYTES[dtype]:
        raise ModelLoadError(
            f"{file}: tensor {name!r} of shape {list(shape)} and dtype {dtype} cannot take {end - begin} bytes"
        )
    return TensorEntry(name=name, dtype=dtype, shape=shape, start=data_start + begin, num_bytes=end - begin)
