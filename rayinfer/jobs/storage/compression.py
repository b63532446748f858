"""Compression of inputs and outputs by the ending of their names: gzip and Zstandard."""

import gzip
import importlib
import io
import sys
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import IO, BinaryIO, Literal, cast

from rayinfer.jobs.interfaces import JobError

Compression = Literal["gzip", "zstd"]
_ENDINGS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3


def split_compression(name: str) -> tuple[str, Compression | None]:
    """Return a name without the ending of its compression, and the compression."""
    for ending, compression in _ENDINGS.items():
        if name.endswith(ending):
            return name.removesuffix(ending), compression
    return name, None


def open_decompressed(file: IO[bytes], compression: Compression | None) -> IO[bytes]:
    """Return a file's content as a stream; of several members or frames all are read."""
    if compression == "gzip":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file, mode="rb"))
    if compression == "zstd":
        reader = _zstandard(JobError).ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return io.BufferedReader(reader, 1 << 18)
    return file


def compress(data: bytes, compression: Compression | None) -> bytes:
    """Return data as one gzip member or Zstandard frame, always of the same bytes."""
    if compression == "gzip":
        return gzip.compress(data, _GZIP_LEVEL, mtime=0)
    if compression == "zstd":
        return bytes(_zstandard(JobError).ZstdCompressor(level=_ZSTD_LEVEL).compress(data))
    return data


def check_compression(compression: Compression | None, error: Callable[[str], JobError]) -> None:
    """Raise the caller's error if the compression's package is missing."""
    if compression == "zstd":
        _zstandard(error)


def decompression_errors() -> tuple[type[Exception], ...]:
    """Return what damaged compressed data raises."""
    zstandard = sys.modules.get("zstandard")  # without it nothing of its kind was opened
    errors = (EOFError, gzip.BadGzipFile, zlib.error)
    return errors if zstandard is None else (*errors, zstandard.ZstdError)


def _zstandard(error: Callable[[str], JobError]) -> ModuleType:
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        raise error(".zst files need the package zstandard: install rayinfer[jobs]") from None
