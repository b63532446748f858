"""Sizes of a model's images, and the messages between an engine and the processes that decode them."""

import json
import struct
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rayinfer.errors import ModelLoadError
from rayinfer.predictions import ImageLimits

PREPROCESSOR_FILE = "preprocessor_config.json"

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
    shortest_edge: int = 0  # resized to before the middle is cut out; 0: resized to the size itself
    resample: int = 2  # Pillow's: 0 nearest, 1 Lanczos, 2 bilinear, 3 bicubic


def read_image_shape(folder: Path, image_size: int) -> ImageShape:
    """Read how a model's images are resized and cut; without a file for it they are resized to `image_size`.

    Raises ModelLoadError for a file that cannot be read.
    """
    path = folder / PREPROCESSOR_FILE
    if not path.is_file():
        return ImageShape(height=image_size, width=image_size)
    try:
        settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        size, resample = settings.get("size") or image_size, int(settings.get("resample", 2))
        if isinstance(size, dict):
            shortest, size = size.get("shortest_edge", 0), size.get("height", image_size)
        else:
            shortest = 0
        if settings.get("do_center_crop") and shortest:
            crop = settings.get("crop_size") or image_size
            crop = crop.get("height", image_size) if isinstance(crop, dict) else crop
            return ImageShape(height=int(crop), width=int(crop), shortest_edge=int(shortest), resample=resample)
        edge = int(shortest or size)
        return ImageShape(height=edge, width=edge, resample=resample)
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from None


def worker_command(shape: ImageShape, limits: ImageLimits) -> list[str]:
    """Return the command that starts the process."""
    call = f"decode_for_parent({asdict(shape)!r}, {asdict(limits)!r})"
    program = f"from rayinfer.predictors.image_worker import decode_for_parent; {call}"
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {program}"]
