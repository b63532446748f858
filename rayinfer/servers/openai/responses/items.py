"""Items of a response's input, in the form that chat templates read."""

import uuid
from collections.abc import Sequence
from typing import Any

from rayinfer.errors import InvalidParameter

_TEXT_PARTS = ("input_text", "output_text", "text")
_ROLES = ("user", "assistant", "system", "developer")


def input_items(given: str | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items of an input, each with an id and a type; a text is a user's message."""
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    return [{"id": f"item_{uuid.uuid4().hex}", "type": "message", **item} for item in given]


def template_messages(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turn items into messages of chat templates; raises InvalidParameter for what is not supported."""
    messages: list[dict[str, Any]] = []
    for position, item in enumerate(items):
        path = f"input.{position}"
        match item.get("type"):
            case "message":
                messages.append(_message(item, path))
            case "function_call":
                _add_call(messages, item, path)
            case "function_call_output":
                output = _text(item.get("output"), f"{path}.output")
                messages.append({"role": "tool", "tool_call_id": _string(item, "call_id", path), "content": output})
            case "reasoning":
                pass  # of earlier turns, which models do not read again
            case kind:
                raise InvalidParameter(
                    f"{path}: items of type {kind!r:.80} are not supported", f"{path}.type", "unsupported_parameter"
                )
    return messages


def _message(item: dict[str, Any], path: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in _ROLES:
        raise InvalidParameter(f"{path}.role must be one of {', '.join(_ROLES)}", f"{path}.role")
    content = _content(item.get("content"), f"{path}.content", takes_images=role == "user")
    return {"role": "system" if role == "developer" else role, "content": content}


def _content(content: Any, path: str, *, takes_images: bool) -> str | list[dict[str, Any]]:
    """Return a message's text; of a user's with images, its parts in the form of chat completions."""
    if not (takes_images and isinstance(content, list) and any(map(_is_image, content))):
        return _text(content, path)
    parts: list[dict[str, Any]] = []
    for position, part in enumerate(content):
        if _is_image(part):
            if not isinstance(part.get("image_url"), str):
                raise InvalidParameter(
                    f"{path}.{position}.image_url must be a string: a data: URL; files are not supported here",
                    f"{path}.{position}.image_url",
                )
            parts.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
        else:
            parts.append({"type": "text", "text": _text([part], path, position)})
    return parts


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "input_image"


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any], path: str) -> None:
    """Add a call to the assistant's message that it belongs to."""
    function = {"name": _string(item, "name", path), "arguments": _string(item, "arguments", path)}
    call = {"id": _string(item, "call_id", path), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


def _string(item: dict[str, Any], name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidParameter(f"{path}.{name} must be a string", f"{path}.{name}")
    return value


def _text(content: Any, path: str, first: int = 0) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidParameter(f"{path} must be a string or a list of parts", path)
    texts: list[str] = []
    for position, part in enumerate(content, start=first):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS:
            raise InvalidParameter(
                f"{path}.{position}: content of type {kind!r:.80} is not supported, only text",
                f"{path}.{position}.type",
                "unsupported_parameter",
            )
        texts.append(_string(part, "text", f"{path}.{position}"))
    return "".join(texts)
