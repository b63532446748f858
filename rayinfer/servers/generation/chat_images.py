"""Images in conversations of every protocol: content parts of type `image_url` with a data: URL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayinfer.errors import InvalidParameter
from rayinfer.images.inputs import (
    PromptImage,
    RemoteImages,
    check_num_images,
    checked_image,
    decode_image_text,
    take_images,
)
from rayinfer.images.prompts import IMAGE_MARKER
from rayinfer.predictions import ImageInput, ImageLimits
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.servers.served_model import ServedModel

MAX_BYTES_OF_CHOICES = 128 * 2**20  # of images times choices, each of which is sent to an engine


@dataclass(frozen=True, slots=True)
class ChatImages:
    """A conversation in which images only have their places, and the images."""

    messages: Sequence[Mapping[str, Any]]
    images: Sequence[PromptImage] = ()

    @classmethod
    def of(
        cls,
        messages: Sequence[Mapping[str, Any]],
        model: ServedModel,
        limits: RequestLimits,
        *,
        num_choices: int = 1,
        field: str = "messages",
    ) -> "ChatImages":
        """Take the images out of messages and check them by their headers; raises InvalidParameter, NotSupported.

        `field` is what the client calls the messages.
        """
        marked, found = take_images(messages, field)
        if not found:
            return cls(messages)
        if model.image_prompts is None or not model.takes_images:
            raise InvalidParameter(
                f"{found[0].place}: content of type {found[0].kind!r} is not supported: the model {model.name!r} reads"
                " text only (input_modalities of GET /v1/models)",
                f"{found[0].place}.type",
                "unsupported_parameter",
            )
        check_num_images(len(found), limits.max_images, field)
        RemoteImages.check([each.value for each in found], field)
        bounds = ImageLimits(
            max_bytes=limits.max_image_bytes, max_pixels=limits.max_image_pixels, max_side=limits.max_image_side
        )
        images = [checked_image(decode_image_text(each.value, each.place), each.place, bounds) for each in found]
        num_bytes = num_choices * sum(len(each.image.content) for each in images)
        if num_bytes > MAX_BYTES_OF_CHOICES:
            raise InvalidParameter(
                f"n: {num_choices} choices with these images have {num_bytes} bytes, at most {MAX_BYTES_OF_CHOICES}"
                " are sent to an engine: ask for fewer choices",
                "n",
            )
        return cls(marked, images)

    @property
    def template_settings(self) -> dict[str, Any]:
        """Settings of the chat template that images need."""
        return {"image_text": IMAGE_MARKER} if self.images else {}

    @property
    def inputs(self) -> tuple[ImageInput, ...]:
        """The images for the engine."""
        return tuple(each.image for each in self.images)

    def expand(self, text: str, model: ServedModel, param: str) -> str:
        """Write the tokens of images into a prompt; raises InvalidParameter."""
        if not self.images:
            return text
        assert model.image_prompts is not None, "checked with the images"
        return model.image_prompts.expand(text, [each.size for each in self.images], param)
