"""Sizes that images are brought to, and the messages between an engine and the processes that decode them."""

import math
import struct
import sys
from dataclasses import dataclass
from typing import NamedTuple

from rayinfer.predictions import ImageLimits

MAX_ASPECT_RATIO = 200  # of an image that is cut into patches, as in Qwen2-VL's image processor
LONGEST_SIDE = 64  # of a scaled image, over its shortest: the rest of a longer one is squeezed
MAX_TILED_SIDE = 4096  # of an image before it is cut into tiles, whatever the model's processor says

# To a process: the length of an image, the height and width of one that is pixels (0 of others), then the image.
# Its answers: kind, height and width (of an error: length and 0), then the pixels or the error's text.
IMAGE = struct.Struct("<QII")
ANSWER = struct.Struct("<BII")
PIXELS, REFUSED = 0, 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageShape:
    """Size that images are brought to, as a model's image processor does it."""

    height: int
    width: int
    shortest_edge: int = 0  # resized to before the middle is cut out; 0: resized to `scaled`
    scaled: tuple[int, int] | None = None  # height and width before the middle is cut out; None: the size itself
    resample: int = 2  # Pillow's: 0 nearest, 1 Lanczos, 2 bilinear, 3 bicubic

    def scaled_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image is resized to, before its middle is cut out."""
        edge = self.shortest_edge
        if not edge:
            return self.scaled or (self.height, self.width)
        longer = min(int(edge * max(height, width) / min(height, width)), LONGEST_SIDE * edge)
        return (edge, longer) if height <= width else (longer, edge)

    def is_result(self, height: int, width: int) -> bool:
        """Whether a decoded image may have this size."""
        return (height, width) == (self.height, self.width)


class TileGrid(NamedTuple):
    """Rows and columns of an image's tiles; both are 0 where the image is one tile."""

    num_rows: int
    num_columns: int

    @property
    def num_tiles(self) -> int:
        """Tiles of the image, the whole image in the size of one tile included."""
        return self.num_rows * self.num_columns + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class TiledShape:
    """Square tiles that an image is cut into, as Idefics3's image processor does it, and the whole image as the last.

    The tiles of a decoded image lie one below the other: [num_tiles * tile_side, tile_side, 3].
    """

    tile_side: int  # pixels
    longest_edge: int  # that an image is scaled to before it is cut
    splits: bool = True  # False: the whole image alone
    resample: int = 1  # Pillow's

    def grid(self, height: int, width: int) -> TileGrid:
        """Return the tiles of an image of this size in pixels."""
        if not self.splits:
            return TileGrid(0, 0)
        height, width = self.cut_size(*self.scaled_size(height, width))
        if max(height, width) <= self.tile_side:
            return TileGrid(0, 0)
        return TileGrid(height // self.tile_side, width // self.tile_side)

    def scaled_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of an image whose longer edge is `longest_edge`; the shorter one is even."""
        longest, ratio = self.longest_edge, width / height
        if width >= height:
            height, width = _even(int(longest / ratio)), longest
        else:
            height, width = longest, _even(int(longest * ratio))
        height, width = max(height, 1), max(width, 1)
        ratio = width / height
        if max(height, width) > MAX_TILED_SIDE:
            if width >= height:
                height, width = int(MAX_TILED_SIDE / ratio), MAX_TILED_SIDE
            else:
                height, width = MAX_TILED_SIDE, int(MAX_TILED_SIDE * ratio)
        return max(height, 1), max(width, 1)

    def cut_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width, multiples of a tile's side, that a scaled image is resized to."""
        ratio = width / height
        if width >= height:
            width = self._whole_tiles(width)
            return self._whole_tiles(int(width / ratio)), width
        height = self._whole_tiles(height)
        return height, self._whole_tiles(int(height * ratio))

    def is_result(self, height: int, width: int) -> bool:
        """Whether a decoded image may have this size."""
        most = self._whole_tiles(min(self.longest_edge, MAX_TILED_SIDE)) // self.tile_side
        num_tiles, rest = divmod(height, self.tile_side)
        return width == self.tile_side and not rest and 1 <= num_tiles <= most**2 + 1

    def _whole_tiles(self, length: int) -> int:
        return max(1, math.ceil(length / self.tile_side)) * self.tile_side


class PatchGrid(NamedTuple):
    """Rows and columns of an image's embeddings, each of a square of patches."""

    num_rows: int
    num_columns: int

    @property
    def num_embeddings(self) -> int:
        """Embeddings of the image."""
        return self.num_rows * self.num_columns


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchedShape:
    """Sizes near an image's own, in whole squares of patches, as Qwen2-VL's image processor chooses them."""

    unit: int  # pixels a side of the square that one embedding stands for: a patch's side times `merge_size`
    min_pixels: int
    max_pixels: int
    resample: int = 3  # Pillow's

    def refusal(self, height: int, width: int) -> str | None:
        """Return why an image of this size is not read; None if it is."""
        if max(height, width) <= MAX_ASPECT_RATIO * min(height, width):
            return None
        return f"one side may be {MAX_ASPECT_RATIO} times as long as the other, got {width} x {height} pixels"

    def scaled_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image is resized to: multiples of `unit`."""
        unit = self.unit
        scaled = round(height / unit) * unit, round(width / unit) * unit
        if scaled[0] * scaled[1] > self.max_pixels:
            factor = math.sqrt(height * width / self.max_pixels)
            return max(unit, int(height / factor / unit) * unit), max(unit, int(width / factor / unit) * unit)
        if scaled[0] * scaled[1] < self.min_pixels:
            factor = math.sqrt(self.min_pixels / (height * width))
            return math.ceil(height * factor / unit) * unit, math.ceil(width * factor / unit) * unit
        return scaled

    def grid(self, height: int, width: int) -> PatchGrid:
        """Return the embeddings of an image of this size in pixels."""
        return self.grid_of_result(*self.scaled_size(height, width))

    def grid_of_result(self, height: int, width: int) -> PatchGrid:
        """Return the embeddings of a decoded image."""
        return PatchGrid(height // self.unit, width // self.unit)

    def is_result(self, height: int, width: int) -> bool:
        """Whether a decoded image may have this size."""
        # The smallest image is at least one unit a side, whatever the limits: then they may be passed.
        longest = MAX_ASPECT_RATIO * self.unit * self.unit
        most = max(self.max_pixels, 4 * self.min_pixels, longest)
        return not height % self.unit and not width % self.unit and 0 < height * width <= most


AnyShape = ImageShape | TiledShape | PatchedShape


def worker_command(shape: AnyShape, limits: ImageLimits) -> list[str]:
    """Return the command that starts the process."""
    shapes = f"from rayinfer.images.shapes import {type(shape).__name__}"
    names = f"{shapes}; from rayinfer.predictions import ImageLimits"
    program = f"{names}; from rayinfer.images.worker import decode_for_parent; decode_for_parent({shape!r}, {limits!r})"
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {program}"]


def _even(length: int) -> int:
    return length + length % 2
