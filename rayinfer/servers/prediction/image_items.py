"""Encoded images as items within the limits; they are decoded behind the router."""

from collections.abc import Sequence

from rayinfer.errors import InvalidParameter
from rayinfer.images.headers import read_image_size
from rayinfer.predictions import PredictionInput, PredictorDescription
from rayinfer.servers.prediction.service import PredictionItem
from rayinfer.servers.request_limits import RequestLimits


def image_items(
    images: Sequence[bytes], description: PredictorDescription, limits: RequestLimits, param: str
) -> list[PredictionItem]:
    """Make an item of each image, whose header alone is read; raises InvalidParameter."""
    if not 1 <= len(images) <= limits.max_images:
        raise InvalidParameter(f"{param} must hold 1 to {limits.max_images} images, got {len(images)}", param)
    for index, image in enumerate(images):
        place = f"{param}.{index}"
        if len(image) > limits.max_image_bytes:
            raise InvalidParameter(
                f"{place}: an image may have {limits.max_image_bytes} bytes, got {len(image)}", place
            )
        width, height = read_image_size(image, place)
        if max(width, height) > limits.max_image_side or width * height > limits.max_image_pixels:
            raise InvalidParameter(
                f"{place}: an image may have {limits.max_image_side} pixels a side and {limits.max_image_pixels} "
                f"in all, got {width} x {height}",
                place,
            )
    cost = description.image_cost
    return [PredictionItem([], PredictionInput(task="classify", image=image, cost=cost)) for image in images]
