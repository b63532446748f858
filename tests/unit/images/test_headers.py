"""Orientation of images by their headers, beside what Pillow makes of them."""

import struct
import zlib

import pytest
from PIL import ExifTags, Image

from rayinfer.errors import InvalidParameter
from rayinfer.images.headers import ImageSize, read_upright_size
from rayinfer.images.shapes import TiledShape
from rayinfer.images.worker import decode_image
from support.tiny_models.tiny_vision import encoded, picture_of

SHAPE = TiledShape(tile_side=8, longest_edge=32)


def with_orientation(kind, orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return encoded(picture_of(32, 12), kind, exif=exif.tobytes())


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_has_the_size_in_which_it_is_seen(kind, orientation):
    content = with_orientation(kind, orientation)
    size = read_upright_size(content, "image")
    assert size == (ImageSize(12, 32) if orientation > 4 else ImageSize(32, 12))
    # The number of tiles by the header is the one of the decoded image.
    assert decode_image(content, SHAPE).height == 8 * SHAPE.grid(size.height, size.width).num_tiles


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_an_image_without_exif_lies_as_it_is(kind):
    assert read_upright_size(encoded(picture_of(32, 12), kind), "image") == ImageSize(32, 12)


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0II*\0\x08\0\0\0\xff\xff", b"XX"]
)
def test_broken_exif_is_no_exif(exif):
    picture = encoded(picture_of(32, 12), "JPEG")
    content = picture[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + picture[2:]
    assert read_upright_size(content, "image") == ImageSize(32, 12)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_cut_file_has_a_size_or_is_refused(kind):
    content = with_orientation(kind, 6)
    for end in range(len(content)):
        try:
            size = read_upright_size(content[:end], "image")
        except ValueError:
            continue
        assert sorted(size) == [12, 32]


def many_parts(kind, part, count=10_000):
    """A whole picture with as many parts more behind its first bytes."""
    picture = encoded(picture_of(32, 12), kind)
    start = 2 if kind == "JPEG" else 33
    return picture[:start] + part * count + picture[start:]


EMPTY_CHUNK = struct.pack(">I", 0) + b"teXt" + struct.pack(">I", zlib.crc32(b"teXt"))


@pytest.mark.parametrize(
    ("kind", "part"), [("JPEG", b"\xff\xd0"), ("JPEG", b"\xff\xe2\0\2"), ("PNG", EMPTY_CHUNK)], ids=str
)
def test_a_file_of_too_many_parts_is_broken(kind, part):
    with pytest.raises(InvalidParameter, match="header is broken"):
        read_upright_size(many_parts(kind, part), "image")
    if part != b"\xff\xd0":  # which stand within the data only
        assert read_upright_size(many_parts(kind, part, count=50), "image") == ImageSize(32, 12)


def test_fill_bytes_are_one_step_however_many_there_are():
    assert read_upright_size(many_parts("JPEG", b"\xff", count=5_000_000), "image") == ImageSize(32, 12)
