"""Formats and sizes of encoded images, read of their headers: nothing is decoded here."""

import struct
from typing import NamedTuple

from rayinfer.errors import InvalidParameter

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF: the frame's header, which has its size
_BARE_MARKERS = frozenset((0x01, *range(0xD0, 0xD9)))  # without a length


def is_image(content: bytes) -> bool:
    """Return whether bytes begin as a JPEG, PNG or WebP file does."""
    return content.startswith((_PNG, _JPEG)) or (content[:4] == b"RIFF" and content[8:12] == b"WEBP")


class ImageSize(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


def read_image_size(content: bytes, param: str) -> ImageSize:
    """Return the size that an image's header names; raises InvalidParameter for anything but JPEG, PNG and WebP."""
    try:
        if content.startswith(_PNG):
            size = _png_size(content)
        elif content.startswith(_JPEG):
            size = _jpeg_size(content)
        elif content[:4] == b"RIFF" and content[8:12] == b"WEBP":
            size = _webp_size(content)
        else:
            raise InvalidParameter(
                f"{param} must be an image: JPEG, PNG or WebP, in JSON as base64 or a data: URL", param
            )
    except (struct.error, IndexError):
        size = None
    if size is None or not (size.width and size.height):
        raise InvalidParameter(f"{param}: the image's header is broken", param)
    return size


def _png_size(content: bytes) -> ImageSize | None:
    if content[12:16] != b"IHDR":
        return None
    return ImageSize(*struct.unpack_from(">II", content, 16))


def _jpeg_size(content: bytes) -> ImageSize | None:
    position = 2
    while position + 4 <= len(content):
        if content[position] != 0xFF:
            return None
        marker = content[position + 1]
        if marker == 0xFF:  # a byte to fill
            position += 1
        elif marker in _BARE_MARKERS:
            position += 2
        elif marker in _FRAME_MARKERS:
            height, width = struct.unpack_from(">HH", content, position + 5)
            return ImageSize(width, height)
        else:
            (length,) = struct.unpack_from(">H", content, position + 2)
            if length < 2 or marker == 0xDA:
                return None
            position += 2 + length
    return None


def _webp_size(content: bytes) -> ImageSize | None:
    match content[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", content, 26)
            return ImageSize(width & 0x3FFF, height & 0x3FFF)
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", content, 21)
            return ImageSize((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        case b"VP8X":
            width = int.from_bytes(content[24:27], "little") + 1
            height = int.from_bytes(content[27:30], "little") + 1
            return ImageSize(width, height) if len(content) >= 30 else None
    return None
