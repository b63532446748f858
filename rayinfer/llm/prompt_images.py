"""Prompts of `LLM` with images: Pillow's, encoded ones and data: URLs."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from rayinfer.errors import InvalidParameter, NotSupported, shown
from rayinfer.images.inputs import (
    MAX_IMAGES,
    FoundImage,
    PromptImage,
    RemoteImages,
    check_num_images,
    checked_image,
    decode_image_text,
    take_images,
)
from rayinfer.images.prompts import ImagePrompts
from rayinfer.llm.arguments import Message, Prompt
from rayinfer.predictions import ImageInput
from rayinfer.tokenization.chat_template import ChatTemplate

PNG_EFFORT = 1  # of 9: files are read once, by a process of this machine


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A prompt, with a marker's tokens for each image, and its images."""

    prompt: Prompt
    images: tuple[ImageInput, ...] = ()


class PromptReader:
    """Reads prompts and conversations of a model, with images where it takes them."""

    def __init__(self, template: ChatTemplate, image_prompts: ImagePrompts | None) -> None:
        self._template = template
        self._image_prompts = image_prompts

    def read(self, prompt: Any) -> ImagePrompt:
        """Read a text, token ids, or vLLM's mapping of either with `multi_modal_data`; raises InvalidParameter."""
        if isinstance(prompt, ImagePrompt):
            return prompt
        if not isinstance(prompt, Mapping):
            return ImagePrompt(prompt)
        names = [name for name in ("prompt", "prompt_token_ids") if prompt.get(name) is not None]
        if len(names) != 1:
            raise InvalidParameter("a prompt with images must have either prompt or prompt_token_ids", "prompt")
        data = prompt.get("multi_modal_data") or {}
        if not isinstance(data, Mapping) or not data.keys() <= {"image"}:
            raise InvalidParameter(f"multi_modal_data may hold image alone, got {shown(data)}", "multi_modal_data")
        found = data.get("image", ())
        found = list(found) if isinstance(found, list | tuple) else [found]
        images = self._checked([FoundImage(each, f"image {index}") for index, each in enumerate(found)])
        (name,) = names
        if name == "prompt_token_ids" or not images:
            return ImagePrompt(prompt[name], _inputs(images))
        return self._expanded(str(prompt[name]), images, "prompt")

    def read_chat(self, messages: Sequence[Message], template_arguments: Mapping[str, Any]) -> ImagePrompt:
        """Write a conversation by the model's chat template; images are parts of messages. Raises InvalidParameter."""
        marked, found = take_images(messages)
        images = self._checked(found)
        if not images:
            return ImagePrompt(self._template.render(messages, **template_arguments))
        assert self._image_prompts is not None, "checked with the images"
        image_text = self._image_prompts.image_text
        text = self._template.render(marked, image_text=image_text, **template_arguments)
        return self._expanded(text, images, "messages")

    def _expanded(self, text: str, images: Sequence[PromptImage], param: str) -> ImagePrompt:
        assert self._image_prompts is not None, "checked with the images"
        return ImagePrompt(self._image_prompts.expand(text, [image.size for image in images], param), _inputs(images))

    def _checked(self, found: Sequence[FoundImage]) -> list[PromptImage]:
        if found and self._image_prompts is None:
            raise InvalidParameter("this model takes no images", found[0].place)
        check_num_images(len(found), MAX_IMAGES, "prompt")
        return [checked_image(_encoded(each), each.place) for each in found]


def _inputs(images: Sequence[PromptImage]) -> tuple[ImageInput, ...]:
    return tuple(each.image for each in images)


def _encoded(found: FoundImage) -> bytes:
    """Return the bytes of an encoded image, a data: URL or one of Pillow's."""
    value = found.value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        try:
            return decode_image_text(value, found.place)
        except RemoteImages:
            raise NotSupported(
                "Images are not fetched from URLs: give a data: URL, bytes or an image of Pillow.", found.place
            ) from None
    if not isinstance(value, Image.Image):
        raise InvalidParameter(f"{found.place} must be an image of Pillow, bytes or a data: URL", found.place)
    out = io.BytesIO()
    value.convert("RGB").save(out, "PNG", compress_level=PNG_EFFORT)
    return out.getvalue()
