"""Tensors in one safetensors file, written once and mapped into memory by every process that needs them."""

import json
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from rayinfer.errors import ModelLoadError
from rayinfer.models.checkpoints.checkpoint import TORCH_DTYPES
from rayinfer.models.checkpoints.safetensors_header import LENGTH_BYTES, TensorEntry, read_safetensors_header
from rayinfer.optimization.packed_entries import DATA_FILE

ALIGNMENT = 64  # bytes, a line of the processor's cache
BYTES_AT_ONCE = 16 << 20
_FORMAT_DTYPES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_NO_DIGEST = "0" * 32  # in the header while the digest of header and data is computed


@dataclass(frozen=True, slots=True)
class StoredTensors:
    """Named tensors, and `notes`, further metadata in JSON."""

    tensors: Mapping[str, torch.Tensor]
    notes: Mapping[str, Any]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def write_tensors(folder: Path, stored: StoredTensors) -> None:
    """Write the file into an existing folder; raises OSError where the disk is full."""
    # Whole cache lines first: the format has no gaps, and so all of these begin on one.
    tensors = dict(sorted(stored.tensors.items(), key=lambda item: item[1].nbytes % ALIGNMENT != 0))
    header = _header(tensors, stored.notes, _NO_DIGEST)
    digest = xxhash.xxh3_128(header)
    with (folder / DATA_FILE).open("wb") as stream:
        stream.write(header)
        for tensor in tensors.values():
            data: Any = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            for start in range(0, len(data), BYTES_AT_ONCE):
                piece = data[start : start + BYTES_AT_ONCE]
                stream.write(piece)
                digest.update(piece)
        stream.seek(0)
        stream.write(_header(tensors, stored.notes, digest.hexdigest()))


def read_tensors(folder: Path) -> StoredTensors | None:
    """Map what `write_tensors` wrote; None where it is missing or damaged.

    The tensors are views of the file, whose pages all processes share. What is written into a tensor stays in this
    process. The whole file is read, to be compared with its digest, which also brings its pages into memory.
    """
    file = folder / DATA_FILE
    try:
        entries = read_safetensors_header(file)
        with file.open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        header = mapped[: LENGTH_BYTES + struct.unpack_from("<Q", mapped)[0]]
        metadata = json.loads(header[LENGTH_BYTES:])["__metadata__"]
        digest = xxhash.xxh3_128(header.replace(metadata["digest"].encode(), _NO_DIGEST.encode(), 1))
        notes = json.loads(metadata["notes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ModelLoadError):
        return None
    with memoryview(mapped) as view, view[len(header) :] as data:
        digest.update(data)
    if digest.hexdigest() != metadata["digest"]:
        return None
    return StoredTensors({name: _view(mapped, entry) for name, entry in entries.items()}, notes)


def _header(tensors: Mapping[str, torch.Tensor], notes: Mapping[str, Any], digest: str) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"digest": digest, "notes": json.dumps(dict(notes))}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _FORMAT_DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-(len(encoded) + LENGTH_BYTES) % ALIGNMENT)
    return struct.pack("<Q", len(encoded)) + encoded


def _view(mapped: mmap.mmap, entry: TensorEntry) -> torch.Tensor:
    dtype, shape = TORCH_DTYPES[entry.dtype], torch.Size(entry.shape)
    if shape.numel() == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mapped, dtype=dtype, count=shape.numel(), offset=entry.start).view(shape)
