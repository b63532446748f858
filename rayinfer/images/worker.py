"""The process that decodes images; what a file does to it, it does to no other."""

import contextlib
import io
import os
import resource
import sys
import warnings
from typing import IO

from PIL import Image, ImageOps

from rayinfer.images.headers import is_image
from rayinfer.images.shapes import ANSWER, IMAGE, PIXELS, REFUSED, AnyShape, ImageShape, PatchedShape, TiledShape
from rayinfer.predictions import DEFAULT_IMAGE_LIMITS, ImageLimits

FORMATS = ("JPEG", "PNG", "WEBP")
MEMORY_BYTES = 2 * 2**30  # of addresses: 25 megapixels need a tenth of it
NICENESS = 5  # below the engine, which computes
DRAFT_PIXELS = 2_000_000  # JPEGs above this are decoded at a fraction of their size, at least twice what is needed


class RefusedImage(Exception):
    """An image that cannot be decoded, or is beyond a limit."""


def decode_image(content: bytes, shape: AnyShape | None, limits: ImageLimits = DEFAULT_IMAGE_LIMITS) -> Image.Image:
    """Decode an image to RGB at the model's size, or with None at its own; raises RefusedImage."""
    if len(content) > limits.max_bytes:
        raise RefusedImage(f"the image has {len(content):,} bytes, the limit is {limits.max_bytes:,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            _check_header(image, limits)
            upright = _upright(image, shape)
            return upright if shape is None else _in_shape(upright, shape)
    except RefusedImage:
        raise
    except Exception as error:  # Pillow's decoders raise errors of a dozen kinds for broken files
        raise RefusedImage(f"the image is {'broken' if is_image(content) else 'no JPEG, PNG or WebP image'}") from error


def _check_header(image: Image.Image, limits: ImageLimits) -> None:
    """Check what the header says, before anything is decoded."""
    width, height = image.size
    if max(width, height) > limits.max_side:
        raise RefusedImage(f"the image has {width} x {height} pixels, the limit is {limits.max_side:,} a side")
    if width * height > limits.max_pixels:
        raise RefusedImage(f"the image has {width * height:,} pixels, the limit is {limits.max_pixels:,}")
    # Of a phone's photograph with a preview (MPO) the first frame is the photograph.
    if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
        raise RefusedImage("the image has several frames, the limit is 1")


def _upright(image: Image.Image, shape: AnyShape | None) -> Image.Image:
    # An image that is cut into tiles or patches keeps its size, of which their number follows.
    if isinstance(shape, ImageShape) and image.width * image.height > DRAFT_PIXELS:
        needed = 2 * max(shape.height, shape.width, shape.shortest_edge, *(shape.scaled or ()))
        image.draft("RGB", (needed, needed))  # of JPEGs only
    ImageOps.exif_transpose(image, in_place=True)
    return image if image.mode == "RGB" else image.convert("RGB")


def _in_shape(image: Image.Image, shape: AnyShape) -> Image.Image:
    if isinstance(shape, PatchedShape):
        return _whole(image, shape)
    return _tiled(image, shape) if isinstance(shape, TiledShape) else _resized(image, shape)


def _whole(image: Image.Image, shape: PatchedShape) -> Image.Image:
    if (reason := shape.refusal(image.height, image.width)) is not None:
        raise RefusedImage(f"the image has no size that is read: {reason}")
    height, width = shape.scaled_size(image.height, image.width)
    return image.resize((width, height), shape.resample)


def _tiled(image: Image.Image, shape: TiledShape) -> Image.Image:
    """Cut an image into tiles, row by row, and put them below each other, the whole image as the last one."""
    side, grid = shape.tile_side, shape.grid(image.height, image.width)
    height, width = shape.scaled_size(image.height, image.width)
    image = image.resize((width, height), shape.resample)
    if shape.splits:
        height, width = shape.cut_size(height, width)
        image = image.resize((width, height), shape.resample)
    out = Image.new("RGB", (side, grid.num_tiles * side))
    for row in range(grid.num_rows):
        for column in range(grid.num_columns):
            left, top = column * side, row * side
            tile = image.crop((left, top, left + side, top + side))
            out.paste(tile, (0, (row * grid.num_columns + column) * side))
    out.paste(image.resize((side, side), shape.resample), (0, (grid.num_tiles - 1) * side))
    return out


def _resized(image: Image.Image, shape: ImageShape) -> Image.Image:
    height, width = shape.scaled_size(image.height, image.width)
    image = image.resize((width, height), shape.resample)
    left, top = (image.width - shape.width) // 2, (image.height - shape.height) // 2
    return image.crop((left, top, left + shape.width, top + shape.height))


def decode_for_parent(shape: AnyShape, limits: ImageLimits) -> None:
    """Decode images from standard input until it ends; the program of the process."""
    Image.MAX_IMAGE_PIXELS = None  # the limits here are smaller, and errors rather than warnings
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            height, width, content = _read(sys.stdin.buffer)
            try:
                if height:
                    pixels = Image.frombytes("RGB", (width, height), content)
                    _check_header(pixels, limits)
                    image = _in_shape(pixels, shape)
                else:
                    image = decode_image(content, shape, limits)
                head, body = ANSWER.pack(PIXELS, image.height, image.width), image.tobytes()
            except RefusedImage as error:
                body = str(error).encode()
                head = ANSWER.pack(REFUSED, len(body), 0)
            sys.stdout.buffer.write(head + body)
            sys.stdout.buffer.flush()


def _read(stream: IO[bytes]) -> tuple[int, int, bytes]:
    """Read height, width and bytes of an image; the sizes are 0 of one that is encoded."""
    head = stream.read(IMAGE.size)
    if len(head) < IMAGE.size:
        raise EOFError
    length, height, width = IMAGE.unpack(head)
    content = stream.read(length)
    if len(content) < length:
        raise EOFError
    return height, width, content
