"""Formats, sizes and orientations of encoded images, read of their headers: nothing is decoded here."""

import re
import struct
from typing import NamedTuple

from rayinfer.errors import InvalidParameter

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF: the frame's header, which has its size
_EXIF = b"Exif\0\0"
_ORIENTATION, _SHORT = 0x0112, 3  # a tag of TIFF, and the kind of its value
_ON_THE_SIDE = frozenset((5, 6, 7, 8))  # orientations that change width and height
_BARE_MARKERS = frozenset((0x01, *range(0xD0, 0xD9)))  # without a length
_FILL = re.compile(rb"\xff*")
_MAX_PARTS = 4096  # markers, segments or chunks of a file that are looked at: real ones have a few dozen


def is_image(content: bytes) -> bool:
    """Return whether bytes begin as a JPEG, PNG or WebP file does."""
    return content.startswith((_PNG, _JPEG)) or (content[:4] == b"RIFF" and content[8:12] == b"WEBP")


class _TooManyParts(Exception):
    """A file of more parts than are looked at."""


class ImageSize(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int

    @property
    def turned(self) -> "ImageSize":
        """The size of the image lying on its side."""
        return ImageSize(self.height, self.width)


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


def read_upright_size(content: bytes, param: str) -> ImageSize:
    """Return the size of an image as it is seen: turned where Exif says that it lies on its side.

    Raises InvalidParameter as `read_image_size` does.
    """
    size = read_image_size(content, param)
    try:
        lies_on_its_side = _orientation(_exif(content)) in _ON_THE_SIDE
    except (struct.error, IndexError):  # broken, or cut off: decoders then take the image as it lies
        lies_on_its_side = False
    except _TooManyParts:
        raise InvalidParameter(f"{param}: the image's header is broken", param) from None
    return size.turned if lies_on_its_side else size


def _exif(content: bytes) -> bytes:
    """Return the TIFF structure of an image's Exif; empty where it has none."""
    if content.startswith(_JPEG):
        return _jpeg_exif(content)
    if content.startswith(_PNG):
        position, head, kind = 8, ">I", slice(4, 8)
    else:
        position, head, kind = 12, "<I", slice(0, 4)
    for _ in range(_MAX_PARTS):
        if position + 8 > len(content):
            break
        chunk = content[position : position + 8]
        (length,) = struct.unpack(head, chunk[:4] if head == ">I" else chunk[4:])
        if chunk[kind] in (b"eXIf", b"EXIF"):
            return content[position + 8 : position + 8 + length].removeprefix(_EXIF)
        # A PNG's chunk ends with a checksum, a WebP's with a byte where its length is odd.
        position += 8 + length + (4 if head == ">I" else length % 2)
    else:
        raise _TooManyParts
    return b""


def _jpeg_exif(content: bytes) -> bytes:
    position = 2
    for _ in range(_MAX_PARTS):
        if position + 4 > len(content) or content[position] != 0xFF:
            break
        position = _behind_fill(content, position)
        marker = content[position + 1]
        (length,) = struct.unpack_from(">H", content, position + 2)
        data = content[position + 4 : position + 2 + length]
        if marker == 0xE1 and data.startswith(_EXIF):
            return data.removeprefix(_EXIF)
        if length < 2 or marker in (0xDA, 0xD9):
            break
        position += 2 + length
    else:
        raise _TooManyParts
    return b""


def _orientation(tiff: bytes) -> int:
    """Read the orientation in a TIFF structure's first directory; 1 where there is none: upright."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    (start,) = struct.unpack_from(f"{order}I", tiff, 4)
    (num_entries,) = struct.unpack_from(f"{order}H", tiff, start)
    for index in range(num_entries):
        tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, start + 2 + 12 * index)
        if tag == _ORIENTATION and kind == _SHORT:
            return int(value)
    return 1


def _png_size(content: bytes) -> ImageSize | None:
    if content[12:16] != b"IHDR":
        return None
    return ImageSize(*struct.unpack_from(">II", content, 16))


def _jpeg_size(content: bytes) -> ImageSize | None:
    position = 2
    for _ in range(_MAX_PARTS):
        if position + 4 > len(content) or content[position] != 0xFF:
            return None
        position = _behind_fill(content, position)
        marker = content[position + 1]
        if marker in _BARE_MARKERS:
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


def _behind_fill(content: bytes, position: int) -> int:
    """Return the place of a marker's last 0xFF: any number of these may stand in front of its kind."""
    found = _FILL.match(content, position)
    assert found is not None, "it matches nothing, too"
    return found.end() - 1


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
