"""Places of images in prompts: a model's marker for an image becomes as many tokens as the image has embeddings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayinfer.errors import InvalidParameter, ModelLoadError
from rayinfer.images.headers import ImageSize
from rayinfer.images.shapes import TiledShape, TileGrid

ARCHITECTURES = frozenset(("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"))  # that read images
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")  # the first holds the second in new folders
IMAGE_MARKER = "<image>"
FRAME_MARKER = "<fake_token_around_image>"
WHOLE_MARKER = "<global-img>"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePrompts:
    """A model's images in prompts, as Idefics3's processor writes them: the tiles row by row, then the whole image."""

    shape: TiledShape
    tokens_per_tile: int
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # by channel, of values from 0 to 1
    deviation: tuple[float, ...] = (0.5, 0.5, 0.5)

    @classmethod
    def from_folder(cls, folder: Path) -> "ImagePrompts | None":
        """Read a model's processor settings; None where it reads no images. Raises ModelLoadError for wrong ones."""
        raw = _read(folder / "config.json")
        architectures = raw.get("architectures")
        if not isinstance(architectures, list) or not ARCHITECTURES.intersection(map(str, architectures)):
            return None
        settings = _processor_settings(folder)
        try:
            return _prompts(raw, settings)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelLoadError(f"{folder}: wrong settings of its image processor: {error}") from None

    def num_embeddings(self, grid: TileGrid) -> int:
        """Return how many tokens stand for an image with these tiles, markers not counted."""
        return grid.num_tiles * self.tokens_per_tile

    def expand(self, text: str, sizes: Sequence[ImageSize], param: str) -> str:
        """Write each image's tokens in place of its marker; raises InvalidParameter unless each image has one."""
        pieces = text.split(IMAGE_MARKER)
        if len(pieces) != len(sizes) + 1:
            raise InvalidParameter(
                f"{param}: the prompt has the marker {IMAGE_MARKER} {len(pieces) - 1} times, for {len(sizes)} images:"
                " there must be one for each image, and none in other texts",
                param,
            )
        grids = [self.shape.grid(size.height, size.width) for size in sizes]
        return pieces[0] + "".join(self._written(grid) + piece for grid, piece in zip(grids, pieces[1:], strict=True))

    def _written(self, grid: TileGrid) -> str:
        tokens = IMAGE_MARKER * self.tokens_per_tile
        whole = f"{FRAME_MARKER}{WHOLE_MARKER}{tokens}{FRAME_MARKER}"
        if not grid.num_rows:
            return whole
        rows = (
            "".join(f"{FRAME_MARKER}<row_{row + 1}_col_{column + 1}>{tokens}" for column in range(grid.num_columns))
            for row in range(grid.num_rows)
        )
        return "".join(f"{row}\n" for row in rows) + f"\n{whole}"


def _prompts(raw: Mapping[str, Any], settings: Mapping[str, Any]) -> ImagePrompts:
    for name in ("do_resize", "do_rescale", "do_normalize"):
        if not settings.get(name, True):
            raise ValueError(f"{name} must be true: images come in any size")
    side = _positive(settings.get("max_image_size") or {"longest_edge": 364}, "longest_edge")
    shape = TiledShape(
        tile_side=side,
        longest_edge=_positive(settings.get("size") or {"longest_edge": 4 * 364}, "longest_edge"),
        splits=bool(settings.get("do_image_splitting", True)),
        resample=int(settings.get("resample", 1)),
    )
    patch, factor = _positive(raw["vision_config"], "patch_size", 32), _positive(raw, "scale_factor", 2)
    if side % (patch * factor):
        raise ValueError(f"max_image_size {side} is no multiple of patch_size {patch} x scale_factor {factor}")
    tokens_per_tile = (side // patch // factor) ** 2
    if (given := settings.get("image_seq_len", tokens_per_tile)) != tokens_per_tile:
        raise ValueError(f"image_seq_len is {given}, but a tile has {tokens_per_tile} embeddings")
    deviation = _channels(settings.get("image_std", 0.5))
    if min(deviation) <= 0:
        raise ValueError(f"image_std must be above 0, got {settings['image_std']!r}")
    return ImagePrompts(
        shape=shape,
        tokens_per_tile=tokens_per_tile,
        mean=_channels(settings.get("image_mean", 0.5)),
        deviation=deviation,
    )


def _processor_settings(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in reversed(PROCESSOR_FILES):
        if (folder / name).is_file():
            raw = _read(folder / name)
            nested = raw.get("image_processor")
            settings |= {**raw, **(nested if isinstance(nested, dict) else {})}
    if not settings:
        raise ModelLoadError(f"{folder}: the model reads images, but there is no {' or '.join(PROCESSOR_FILES)}")
    return settings


def _read(file: Path) -> dict[str, Any]:
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file}: not readable as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ModelLoadError(f"{file}: not a JSON object")
    return raw


def _positive(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number above 0, got {value!r}")
    return value


def _channels(value: Any) -> tuple[float, ...]:
    channels = tuple(float(each) for each in value) if isinstance(value, list) else (float(value),) * 3
    if len(channels) != 3:
        raise ValueError(f"three channels expected, got {value!r}")
    return channels
