"""Tensors in one raw file beside an index, written once and mapped into memory by every process that needs them."""

import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from rayinfer.optimization.packed_entries import INDEX_FILE

DATA_FILE = "weights.bin"
ALIGNMENT = 64  # bytes, a line of the processor's cache
BYTES_AT_ONCE = 16 << 20


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
    """Fill an existing, empty folder; raises OSError where there is no room."""
    digest, position, entries = xxhash.xxh3_128(), 0, {}
    with (folder / DATA_FILE).open("wb") as stream:
        for name, tensor in stored.tensors.items():
            padding = -position % ALIGNMENT
            position += padding
            entries[name] = {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "start": position,
            }
            position += tensor.nbytes
            data: Any = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            for piece in (
                bytes(padding),
                *(data[at : at + BYTES_AT_ONCE] for at in range(0, len(data), BYTES_AT_ONCE)),
            ):
                stream.write(piece)
                digest.update(piece)
    contents = {"bytes": position, "digest": digest.hexdigest(), "tensors": entries, "notes": dict(stored.notes)}
    # The index vouches for the data, and its own digest for the index.
    index = {"digest": _digest_of(contents), "contents": contents}
    (folder / INDEX_FILE).write_text(json.dumps(index), encoding="utf-8")


def read_tensors(folder: Path) -> StoredTensors | None:
    """Map what `write_tensors` wrote; None where it is not there or not what it was.

    The tensors are views of the file, whose pages all processes share. What is written into a tensor stays in this
    process. The whole file is read, to be compared with its digest, which also brings its pages into memory.
    """
    try:
        index = json.loads((folder / INDEX_FILE).read_bytes())
        contents = index["contents"]
        if index["digest"] != _digest_of(contents):
            return None
        with (folder / DATA_FILE).open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if len(mapped) != contents["bytes"] or xxhash.xxh3_128_hexdigest(mapped) != contents["digest"]:
        return None
    tensors = {name: _view(mapped, entry) for name, entry in contents["tensors"].items()}
    return StoredTensors(tensors, contents["notes"])


def _view(mapped: mmap.mmap, entry: Mapping[str, Any]) -> torch.Tensor:
    dtype, shape = getattr(torch, entry["dtype"]), torch.Size(entry["shape"])
    if shape.numel() == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mapped, dtype=dtype, count=shape.numel(), offset=entry["start"]).view(shape)


def _digest_of(contents: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(contents, sort_keys=True).encode())
