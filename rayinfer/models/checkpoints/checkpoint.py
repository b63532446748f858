"""Reads a checkpoint's safetensors through memory maps, so that loading costs no second copy of the weights."""

import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.models.checkpoints.model_folder import SINGLE_WEIGHTS, WEIGHTS_INDEX, read_weight_map, weight_files
from rayinfer.models.checkpoints.safetensors_header import TensorEntry, read_safetensors_header

MAPPED_AROUND_BYTES = 2 << 20  # at most, in the page sizes of today

TORCH_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


class Checkpoint:
    """The tensors of one model folder; headers, sizes and shards are all checked when it is built.

    Raises ModelLoadError, in one line that names the file or the tensor.
    """

    def __init__(self, folder: Path) -> None:
        self._entries: dict[Path, dict[str, TensorEntry]] = {}  # by file, each in file order
        for file in weight_files(folder):
            self._entries[file] = read_safetensors_header(file)
        self._file_of = {name: file for file, entries in self._entries.items() for name in entries}
        self._origin = folder / (SINGLE_WEIGHTS if (folder / SINGLE_WEIGHTS).is_file() else WEIGHTS_INDEX)
        if self._origin.name == WEIGHTS_INDEX:
            self._keep_what_the_index_names(folder)

    @property
    def tensor_names(self) -> frozenset[str]:
        """Every tensor's name."""
        return frozenset(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without touching its data."""
        return self._entry(name).shape

    def dtype(self, name: str) -> torch.dtype:
        """Return a tensor's dtype without touching its data."""
        return TORCH_DTYPES[self._entry(name).dtype]

    def is_quantized(self, name: str) -> bool:
        """Return whether a tensor stands for integers with scales; here none does."""
        return False

    def log_conversion(self) -> None:
        """Log what reading has changed; here nothing."""

    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the named tensors (all by default) in file order, each a view of the file.

        Copy a tensor before asking for the next one: its pages are given back then, so that memory grows by one
        tensor at most; what was written into it is lost.
        """
        wanted = self.tensor_names if names is None else frozenset(names)
        for name in sorted(wanted - self.tensor_names):
            self._entry(name)
        for file, entries in self._entries.items():
            chosen = [entry for entry in entries.values() if entry.name in wanted and self._file_of[entry.name] == file]
            if not chosen:
                continue
            mapped = _map(file)
            for entry in chosen:
                yield entry.name, _view(mapped, entry)
                _give_back(mapped, entry)

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor, a view of the file that stays valid as long as it is kept."""
        entry = self._entry(name)
        return _view(_map(self._file_of[name]), entry)

    def _entry(self, name: str) -> TensorEntry:
        if name not in self._file_of:
            raise ModelLoadError(f"{self._origin}: tensor {name!r} is missing")
        return self._entries[self._file_of[name]][name]

    def _keep_what_the_index_names(self, folder: Path) -> None:
        weight_map = read_weight_map(folder)
        for name, shard in weight_map.items():
            if name not in self._entries[folder / shard]:
                raise ModelLoadError(f"{folder / shard}: tensor {name!r} is missing, though {WEIGHTS_INDEX} names it")
        self._file_of = {name: folder / shard for name, shard in weight_map.items()}


def _map(file: Path) -> mmap.mmap:
    with file.open("rb") as stream:
        # Private and writable: torch wants a writable buffer, and nothing written ever reaches the file.
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)


def _view(mapped: mmap.mmap, entry: TensorEntry) -> torch.Tensor:
    dtype = TORCH_DTYPES[entry.dtype]
    if entry.num_bytes == 0:
        return torch.empty(entry.shape, dtype=dtype)
    if entry.start % dtype.itemsize:
        aligned_copy = bytearray(mapped[entry.start : entry.start + entry.num_bytes])
        return torch.frombuffer(aligned_copy, dtype=dtype).view(entry.shape)
    num_elements = entry.num_bytes // dtype.itemsize
    return torch.frombuffer(mapped, dtype=dtype, count=num_elements, offset=entry.start).view(entry.shape)


def _give_back(mapped: mmap.mmap, entry: TensorEntry) -> None:
    # With a page the system maps what lies around it: a bit of the tensors before came back, which are done with.
    first_page = max(0, entry.start - MAPPED_AROUND_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, first_page, entry.start + entry.num_bytes - first_page)
