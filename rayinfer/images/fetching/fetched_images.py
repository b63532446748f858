"""Images of URLs in the bodies of all protocols, and their contents in place of these."""

import base64
from collections.abc import Mapping
from typing import Any

_LISTS = ("messages", "input")  # of a conversation, whose contents are lists of parts
_FIELDS = ("image", "images")  # of a classification


def with_fetched_images(body: Mapping[str, Any], images: Mapping[str, bytes]) -> dict[str, Any]:
    """Return a body that has images in data: URLs where it named them by a URL; the body itself is left as it is.

    Places of images are `image_url` of a content part, as a string or an object with `url` (OpenAI), `source` with
    `url` (Anthropic, also within results of tools), and the fields of classification.
    """
    urls = {url: "data:;base64," + base64.b64encode(content).decode() for url, content in images.items()}
    taken = {name: _with_parts(body[name], urls) for name in _LISTS if isinstance(body.get(name), list)}
    fields = {name: _replaced(body[name], urls) for name in _FIELDS if name in body}
    return {**body, **taken, **fields}


def _with_parts(messages: list[Any], urls: Mapping[str, str]) -> list[Any]:
    return [
        {**message, "content": [_with_image(part, urls) for part in message["content"]]}
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def _with_image(part: Any, urls: Mapping[str, str]) -> Any:
    if not isinstance(part, dict):
        return part
    changed = dict(part)
    if isinstance(part.get("content"), list):  # of a tool's result
        changed["content"] = [_with_image(each, urls) for each in part["content"]]
    for name in ("image_url", "source"):
        value = part.get(name)
        if isinstance(value, dict) and "url" in value:
            changed[name] = {**value, "url": _replaced(value["url"], urls)}
        elif name == "image_url" and value is not None:
            changed[name] = _replaced(value, urls)
    return changed


def _replaced(value: Any, urls: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_replaced(each, urls) for each in value]
    return urls.get(value, value) if isinstance(value, str) else value
