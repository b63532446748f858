"""Sizes of a model's images, and the messages between an engine and the processes that decode them."""

import struct
import sys
from dataclasses import asdict, dataclass

from rayinfer.predictions import ImageLimits

LONGEST_SIDE = 64  # of a scaled image, over its shortest: the rest of a longer one is squeezed

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


def worker_command(shape: ImageShape, limits: ImageLimits) -> list[str]:
    """Return the command that starts the process."""
    call = f"decode_for_parent({asdict(shape)!r}, {asdict(limits)!r})"
    program = f"from rayinfer.predictors.image_worker import decode_for_parent; {call}"
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {program}"]
