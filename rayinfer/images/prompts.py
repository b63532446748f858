"""Places of images in prompts: a model's marker for an image becomes as many tokens as the image has embeddings."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from rayinfer.errors import InvalidParameter, ModelLoadError
from rayinfer.images.headers import ImageSize
from rayinfer.images.shapes import PatchedShape, TiledShape, TileGrid

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")  # the first holds the second in new folders
IMAGE_MARKER = "<image>"
FRAME_MARKER = "<fake_token_around_image>"
WHOLE_MARKER = "<global-img>"
_CLIP = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]  # mean and deviation of its images


@dataclass(frozen=True, kw_only=True)
class ImagePrompts(ABC):
    """A model's images in prompts, as its processor in transformers writes them."""

    marker: ClassVar[str] = IMAGE_MARKER  # stands for an image in a prompt, and for each of its embeddings
    image_text: ClassVar[str] = IMAGE_MARKER  # is what a chat template writes for an image

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # by channel, of values from 0 to 1
    deviation: tuple[float, ...] = (0.5, 0.5, 0.5)

    @staticmethod
    def from_folder(folder: Path) -> "TiledPrompts | PatchedPrompts | None":
        """Read a model's processor settings; None where it reads no images. Raises ModelLoadError for wrong ones."""
        raw = _read(folder / "config.json")
        architectures = raw.get("architectures")
        names = ARCHITECTURES.keys() & set(map(str, architectures)) if isinstance(architectures, list) else set()
        if not names:
            return None
        settings = _processor_settings(folder)
        try:
            return ARCHITECTURES[names.pop()].read(raw, settings)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelLoadError(f"{folder}: wrong settings of its image processor: {error}") from None

    @abstractmethod
    def written(self, size: ImageSize) -> str:
        """Return what takes the place of the marker of an image of this size."""

    @abstractmethod
    def num_tokens(self, size: ImageSize) -> int:
        """Return how many embeddings an image of this size has."""

    def refusal(self, size: ImageSize) -> str | None:
        """Return why the model's processor refuses an image of this size; None if it does not."""
        return None

    def expand(self, text: str, sizes: Sequence[ImageSize], param: str) -> str:
        """Write each image's tokens in place of its marker; raises InvalidParameter unless each image has one."""
        pieces = text.split(self.marker)
        if len(pieces) != len(sizes) + 1:
            raise InvalidParameter(
                f"{param}: the prompt has the marker {self.marker} {len(pieces) - 1} times, for {len(sizes)} images:"
                " there must be one for each image, and none in other texts",
                param,
            )
        for reason in filter(None, map(self.refusal, sizes)):
            raise InvalidParameter(f"{param}: of an image {reason}", param)
        return pieces[0] + "".join(self.written(size) + piece for size, piece in zip(sizes, pieces[1:], strict=True))


@dataclass(frozen=True, kw_only=True)
class TiledPrompts(ImagePrompts):
    """Idefics3's and SmolVLM's way: the tiles row by row, then the whole image."""

    shape: TiledShape
    tokens_per_tile: int

    @classmethod
    def read(cls, raw: Mapping[str, Any], settings: Mapping[str, Any]) -> "TiledPrompts":
        """Read config.json and the processor's settings; raises ValueError."""
        _check_processing(settings)
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
        return cls(shape=shape, tokens_per_tile=tokens_per_tile, **_normalization(settings, 0.5, 0.5))

    def num_embeddings(self, grid: TileGrid) -> int:
        """Return how many tokens stand for an image with these tiles, markers not counted."""
        return grid.num_tiles * self.tokens_per_tile

    def num_tokens(self, size: ImageSize) -> int:
        """See ImagePrompts."""
        return self.num_embeddings(self.shape.grid(size.height, size.width))

    def written(self, size: ImageSize) -> str:
        """See ImagePrompts."""
        grid = self.shape.grid(size.height, size.width)
        tokens = IMAGE_MARKER * self.tokens_per_tile
        whole = f"{FRAME_MARKER}{WHOLE_MARKER}{tokens}{FRAME_MARKER}"
        if not grid.num_rows:
            return whole
        rows = (
            "".join(f"{FRAME_MARKER}<row_{row + 1}_col_{column + 1}>{tokens}" for column in range(grid.num_columns))
            for row in range(grid.num_rows)
        )
        return "".join(f"{row}\n" for row in rows) + f"\n{whole}"


@dataclass(frozen=True, kw_only=True)
class PatchedPrompts(ImagePrompts):
    """Qwen2-VL's and Qwen2.5-VL's way: an image near its own size, and a token for each square of patches."""

    marker: ClassVar[str] = "<|image_pad|>"
    image_text: ClassVar[str] = "<|vision_start|><|image_pad|><|vision_end|>"

    shape: PatchedShape
    patch_size: int  # pixels a side
    merge_size: int  # patches a side that one embedding stands for

    @classmethod
    def read(cls, raw: Mapping[str, Any], settings: Mapping[str, Any]) -> "PatchedPrompts":
        """Read config.json and the processor's settings; raises ValueError."""
        _check_processing(settings)
        vision = raw["vision_config"]
        patch, merge = _positive(vision, "patch_size", 14), _positive(vision, "spatial_merge_size", 2)
        for name, theirs, default in (("patch_size", patch, 14), ("merge_size", merge, 2)):
            if (given := settings.get(name, default)) != theirs:
                raise ValueError(f"{name} is {given!r}, but the model's is {theirs}")
        size = settings.get("size") or {}
        least = settings.get("min_pixels") or size.get("shortest_edge") or size.get("min_pixels") or 56 * 56
        most = settings.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels") or 28 * 28 * 1280
        shape = PatchedShape(
            unit=patch * merge,
            min_pixels=_positive({"min_pixels": least}, "min_pixels"),
            max_pixels=_positive({"max_pixels": most}, "max_pixels"),
            resample=int(settings.get("resample", 3)),
        )
        return cls(shape=shape, patch_size=patch, merge_size=merge, **_normalization(settings, *_CLIP))

    def refusal(self, size: ImageSize) -> str | None:
        """See ImagePrompts."""
        return self.shape.refusal(size.height, size.width)

    def num_tokens(self, size: ImageSize) -> int:
        """See ImagePrompts."""
        return self.shape.grid(size.height, size.width).num_embeddings

    def written(self, size: ImageSize) -> str:
        """See ImagePrompts: what stands around an image is the chat template's."""
        return self.marker * self.num_tokens(size)


# By the architecture that a checkpoint names.
ARCHITECTURES: Mapping[str, type[TiledPrompts] | type[PatchedPrompts]] = MappingProxyType(
    {
        "Idefics3ForConditionalGeneration": TiledPrompts,
        "SmolVLMForConditionalGeneration": TiledPrompts,
        "Qwen2VLForConditionalGeneration": PatchedPrompts,
        "Qwen2_5_VLForConditionalGeneration": PatchedPrompts,
    }
)


def _check_processing(settings: Mapping[str, Any]) -> None:
    for name in ("do_resize", "do_rescale", "do_normalize"):
        if not settings.get(name, True):
            raise ValueError(f"{name} must be true: images come in any size")


def _normalization(settings: Mapping[str, Any], mean: Any, deviation: Any) -> dict[str, tuple[float, ...]]:
    read = {
        "mean": _channels(settings.get("image_mean", mean)),
        "deviation": _channels(settings.get("image_std", deviation)),
    }
    if min(read["deviation"]) <= 0:
        raise ValueError(f"image_std must be above 0, got {settings['image_std']!r}")
    return read


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
