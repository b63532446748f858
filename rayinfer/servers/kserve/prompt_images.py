"""Images beside the text of an inference request: encoded ones (`image`), and pixels (`pixels`)."""

from collections.abc import Mapping

from rayinfer.errors import InvalidParameter
from rayinfer.images.inputs import PromptImage, check_num_images, checked_image, decode_image_text
from rayinfer.images.png import encode_png
from rayinfer.prediction_specs import IMAGE, PIXELS
from rayinfer.predictions import ImageLimits
from rayinfer.protocols import Tensor
from rayinfer.servers.request_limits import RequestLimits

IMAGE_INPUTS = (IMAGE, PIXELS)


def read_prompt_images(inputs: Mapping[str, Tensor], limits: RequestLimits) -> list[PromptImage]:
    """Check the images of a prompt by their headers; raises InvalidParameter."""
    if IMAGE.name in inputs and PIXELS.name in inputs:
        raise InvalidParameter("either the input 'image' or 'pixels' must be given, not both", PIXELS.name)
    bounds = ImageLimits(
        max_bytes=limits.max_image_bytes, max_pixels=limits.max_image_pixels, max_side=limits.max_image_side
    )
    if (tensor := inputs.get(IMAGE.name)) is not None:
        check_num_images(tensor.data.size, limits.max_images, IMAGE.name)
        places = [(f"{IMAGE.name}.{index}", bytes(each)) for index, each in enumerate(tensor.data.flat)]
        return [checked_image(encoded_image(content, place), place, bounds) for place, content in places]
    return [] if (pixels := inputs.get(PIXELS.name)) is None else _pixel_images(pixels, limits, bounds)


def encoded_image(element: bytes, place: str) -> bytes:
    """Return an image's bytes; texts of JSON cannot hold them, and have their base64 or a data: URL."""
    return decode_image_text(element.decode(), place) if element.isascii() and element else element


def _pixel_images(tensor: Tensor, limits: RequestLimits, bounds: ImageLimits) -> list[PromptImage]:
    images = tensor.data[None] if tensor.data.ndim == 3 else tensor.data
    if images.ndim != 4 or images.shape[-1] != 3 or not images.size:
        raise InvalidParameter(
            "the input 'pixels' must have the shape [height, width, 3] or [-1, height, width, 3], got"
            f" {list(tensor.data.shape)}",
            PIXELS.name,
        )
    check_num_images(len(images), limits.max_images, PIXELS.name)
    if images[0].nbytes > bounds.max_bytes:
        raise InvalidParameter(
            f"the pixels of an image may have {bounds.max_bytes} bytes, got {images[0].nbytes}: send the encoded image"
            " as the input 'image'",
            PIXELS.name,
        )
    return [checked_image(encode_png(image), f"{PIXELS.name}.{index}", bounds) for index, image in enumerate(images)]
