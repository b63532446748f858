"""Images of prompts, checked by their headers; they are decoded in another process."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayinfer.errors import InvalidParameter, NotSupported
from rayinfer.images.headers import ImageSize, read_upright_size
from rayinfer.predictions import DEFAULT_IMAGE_LIMITS, ImageInput, ImageLimits

MAX_IMAGES = 8  # of a prompt, unless a service allows another number
_FETCHED = ("http", "https")
_URL = re.compile(r"\s{0,99}([a-zA-Z][a-zA-Z0-9+.-]{0,99}):")  # no base64 has a colon
IMAGE_PARTS = ("image_url", "image", "image_pil")  # types of content parts with an image, which hold it by this name


class RemoteImages(NotSupported):
    """Images that a request names by URLs, which only a service with allowed hosts fetches; `param` is one's place."""

    def __init__(self, urls: Sequence[str], param: str) -> None:
        super().__init__(
            "Images are not fetched from URLs: send a data: URL, base64 or the image itself"
            " (--allowed-media-domains names hosts to fetch from).",
            param,
        )
        self.urls = urls

    @staticmethod
    def check(values: Sequence[Any], param: str) -> None:
        """Raise the error where values are URLs over HTTP."""
        if urls := [each for each in values if isinstance(each, str) and _scheme(each) in _FETCHED]:
            raise RemoteImages(urls, param)


@dataclass(frozen=True, slots=True)
class PromptImage:
    """An image of a prompt, with its size as it is seen."""

    image: ImageInput
    size: ImageSize


def checked_image(content: bytes, place: str, limits: ImageLimits = DEFAULT_IMAGE_LIMITS) -> PromptImage:
    """Check an encoded image's header against the limits; raises InvalidParameter."""
    if len(content) > limits.max_bytes:
        raise InvalidParameter(f"{place}: an image may have {limits.max_bytes} bytes, got {len(content)}", place)
    size = read_upright_size(content, place)
    if max(size) > limits.max_side or size.width * size.height > limits.max_pixels:
        raise InvalidParameter(
            f"{place}: an image may have {limits.max_side} pixels a side and {limits.max_pixels} in all, "
            f"got {size.width} x {size.height}",
            place,
        )
    return PromptImage(ImageInput.of(content), size)


def check_num_images(count: int, limit: int, place: str) -> None:
    """Raise InvalidParameter for more images than a request may have."""
    if count > limit:
        raise InvalidParameter(f"{place}: a request may have {limit} images, got {count}", place)


def decode_image_text(value: Any, param: str) -> bytes:
    """Return the bytes of a data: URL or of base64; raises InvalidParameter, and RemoteImages for a URL over HTTP."""
    if not isinstance(value, str) or not value:
        raise InvalidParameter(f"{param} must be a data: URL or base64", param)
    RemoteImages.check([value], param)
    scheme = _scheme(value)
    if scheme not in ("", "data"):
        raise NotSupported(
            f"{param}: images are not fetched from URLs of {scheme[:20]!r}: send a data: URL or base64.", param
        )
    if scheme:
        head, comma, value = value.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise InvalidParameter(f"{param} must be a data: URL with base64", param)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidParameter(f"{param} is not valid base64", param) from None


def _scheme(value: str) -> str:
    """Return the scheme of a URL in lower case, as browsers read it: behind spaces; empty of anything else."""
    found = _URL.match(value)
    return found[1].lower() if found else ""


@dataclass(frozen=True, slots=True)
class FoundImage:
    """Image as a content part holds it, and the place of the part."""

    value: Any
    place: str
    kind: str = ""  # of the part


def take_images(messages: Sequence[Any], field: str = "messages") -> tuple[list[Any], list[FoundImage]]:
    """Return messages whose parts with an image only say so, as chat templates read them, and the images in order.

    `field` is what the client calls the messages.
    """
    found: list[FoundImage] = []
    taken: list[Any] = []
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, Sequence) or isinstance(content, str | bytes):
            taken.append(message)
            continue
        parts = []
        for number, part in enumerate(content):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in IMAGE_PARTS:
                value = part.get(kind)
                url = value.get("url") if kind == "image_url" and isinstance(value, Mapping) else value
                found.append(FoundImage(url, f"{field}.{index}.content.{number}", kind))
                part = {"type": "image"}
            parts.append(part)
        taken.append({**message, "content": parts})
    return taken, found
