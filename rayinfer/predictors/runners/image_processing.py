"""From decoded images to a model's input, by the settings of preprocessor_config.json, as transformers has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from rayinfer.errors import ModelLoadError
from rayinfer.images.shapes import ImageShape
from rayinfer.models.config_fields import RawConfig, count, flag, number, read_json
from rayinfer.predictors.runners.image_resizing import RESAMPLINGS, Pixels, Resampling, resize

PREPROCESSOR = "preprocessor_config.json"
CROPPED_UP_TO = 384  # pixels; ConvNeXt's processor, which ResNets have, crops smaller images, and squeezes larger ones
_CONVNEXT = {"do_center_crop": False, "resample": 2, "size": {"shortest_edge": 384}, "crop_pct": 224 / 256}
_VIT = {"do_center_crop": False, "resample": 2, "size": {"height": 224, "width": 224}}
_MOBILENET = {"do_center_crop": True, "resample": 2, "size": {"shortest_edge": 256}}
_KINDS: Mapping[str, RawConfig] = MappingProxyType(
    {
        "ConvNextImageProcessor": {
            **_CONVNEXT,
            "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225],
        },
        "MobileNetV2ImageProcessor": {**_MOBILENET, "crop_size": {"height": 224, "width": 224}},
        "ViTImageProcessor": _VIT,
    }
)
_STANDARD = [0.5, 0.5, 0.5]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageProcessing:
    """Resizing, cropping, scaling and normalization."""

    size: tuple[int, int] | None  # height and width; None: the shortest edge
    shortest_edge: int
    crop: tuple[int, int] | None
    resampling: Resampling
    scale: float
    mean: npt.NDArray[np.float32]
    std: npt.NDArray[np.float32]

    @property
    def image_size(self) -> int:
        """Pixels of the model's input, of its longer side."""
        return max(self.input_size)

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the model's input."""
        return self.crop or self.size or (self.shortest_edge, self.shortest_edge)

    @property
    def shape(self) -> ImageShape:
        """How images are resized and cut, as the processes that decode them do it."""
        height, width = self.input_size
        return ImageShape(
            height=height,
            width=width,
            shortest_edge=0 if self.size else self.shortest_edge,
            scaled=self.size,
            resample=self.resampling.number,
        )

    def run(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        """Pixels [height, width, 3] -> [3, new height, new width]."""
        return self.normalize(self.resize(pixels))

    def normalize(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        """Pixels of the model's size -> [3, height, width], whose channels lie last in memory."""
        levels = pixels.astype(np.float32)
        levels *= np.float32(self.scale)
        levels -= self.mean
        levels /= self.std
        return levels.transpose(2, 0, 1)

    def resize(self, pixels: Pixels) -> Pixels:
        """Pixels [height, width, 3] -> the model's size."""
        height, width = self.shape.scaled_size(*pixels.shape[:2])
        pixels = resize(pixels, height, width, self.resampling)
        if self.crop is not None:
            top, left = (height - self.crop[0]) // 2, (width - self.crop[1]) // 2
            pixels = pixels[top : top + self.crop[0], left : left + self.crop[1]]
        return pixels


def read_image_processing(folder: Path) -> ImageProcessing:
    """Read preprocessor_config.json; raises ModelLoadError that names the file and what is not supported."""
    file = folder / PREPROCESSOR
    raw = read_json(file)
    kind = str(raw.get("image_processor_type") or raw.get("feature_extractor_type") or "")
    kind = kind.removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")
    if kind not in _KINDS:
        raise ModelLoadError(f"{file}: image processor {kind!r} is not supported, only {', '.join(_KINDS)}")
    try:
        return _from_raw({**_KINDS[kind], **raw}, is_convnext=kind == "ConvNextImageProcessor")
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{file}: missing or wrong field: {error}") from None


def _from_raw(raw: RawConfig, *, is_convnext: bool) -> ImageProcessing:
    if not flag(raw, "do_resize", default=True) or raw.get("do_pad"):
        raise ValueError("images that are not resized, or are padded, are not supported")
    if raw["resample"] not in RESAMPLINGS:
        raise ValueError(f"resample must be 2 (bilinear) or 3 (bicubic), got {raw['resample']!r}")
    size, shortest_edge = _size(raw["size"])
    crop = _size(raw["crop_size"])[0] if flag(raw, "do_center_crop") else None
    if is_convnext and size is None:
        edge = shortest_edge
        is_cropped = edge < CROPPED_UP_TO
        shortest_edge = int(edge / number(raw, "crop_pct")) if is_cropped else edge
        size, crop = (None, (edge, edge)) if is_cropped else ((edge, edge), None)
    least = size or (shortest_edge, shortest_edge)
    if crop is not None and (crop[0] > least[0] or crop[1] > least[1]):
        raise ValueError(f"crop_size {crop} is larger than size {least}")
    if size is None and crop is None:
        raise ValueError("size has a shortest_edge, and do_center_crop is false: images would have many sizes")
    normalizes = flag(raw, "do_normalize", default=True)
    return ImageProcessing(
        size=size,
        shortest_edge=shortest_edge,
        crop=crop,
        resampling=RESAMPLINGS[raw["resample"]],
        scale=number(raw, "rescale_factor", default=1 / 255) if flag(raw, "do_rescale", default=True) else 1.0,
        mean=_channels(raw, "image_mean") if normalizes else np.zeros(3, dtype=np.float32),
        std=_channels(raw, "image_std") if normalizes else np.ones(3, dtype=np.float32),
    )


def _size(value: Any) -> tuple[tuple[int, int] | None, int]:
    """Return height and width, or the shortest edge; old files have a number for a square."""
    if isinstance(value, int):
        return (value, value), value
    if not isinstance(value, Mapping):
        raise ValueError(f"size must be an object, got {value!r:.80}")
    if value.get("shortest_edge") is not None:
        return None, count(value, "shortest_edge")
    height, width = count(value, "height"), count(value, "width")
    return (height, width), min(height, width)


def _channels(raw: RawConfig, name: str) -> npt.NDArray[np.float32]:
    values = np.array(raw.get(name) or _STANDARD, dtype=np.float32)
    if values.shape != (3,) or not np.isfinite(values).all() or (name == "image_std" and not values.all()):
        raise ValueError(f"{name} must be three numbers, got {raw.get(name)!r:.80}")
    return values
