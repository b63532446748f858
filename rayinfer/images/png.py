"""Pixels as a PNG that is not compressed: how they travel to an engine, which knows images by their files' digests."""

import struct
import zlib

import numpy as np
import numpy.typing as npt

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB8 = (8, 2, 0, 0, 0)  # bits a channel, colour, and the only methods that there are


def encode_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Write pixels [height, width, 3] as a file."""
    height, width = pixels.shape[:2]
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    head = struct.pack(">II5B", width, height, *_RGB8)
    parts = (b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 0)), (b"IEND", b"")
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
