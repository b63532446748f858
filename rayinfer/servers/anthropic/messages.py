"""Anthropic's conversations in the form that chat templates read."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rayinfer.errors import InvalidParameter
from rayinfer.servers.anthropic.schemas import AnthropicMessage, AnthropicToolChoice

_IGNORED = ("thinking", "redacted_thinking")  # of earlier turns, which models do not read again


def conversation(
    system: str | Sequence[dict[str, Any]] | None, messages: Sequence[AnthropicMessage]
) -> list[dict[str, Any]]:
    """Turn a conversation into messages of chat templates; raises InvalidParameter for what is not supported."""
    if not messages:
        raise InvalidParameter("messages must hold at least one message", "messages")
    result: list[dict[str, Any]] = []
    if system:
        result.append({"role": "system", "content": _text(system, "system")})
    for position, message in enumerate(messages):
        result += _template_messages(message, f"messages.{position}.content")
    return result


def openai_tools(tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return tools in OpenAI's form; raises InvalidParameter for those that Anthropic itself would run."""
    return None if tools is None else [_openai_tool(tool, f"tools.{index}") for index, tool in enumerate(tools)]


def openai_tool_choice(choice: AnthropicToolChoice | None) -> str | dict[str, Any] | None:
    """Return the choice of tools in OpenAI's form; raises InvalidParameter."""
    if choice is None:
        return None
    if choice.type != "tool":
        return "required" if choice.type == "any" else choice.type
    if choice.name is None:
        raise InvalidParameter("tool_choice.name is required for the type tool", "tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}


def _openai_tool(tool: dict[str, Any], path: str) -> dict[str, Any]:
    kind = tool.get("type", "custom")
    if kind not in (None, "custom"):
        raise InvalidParameter(
            f"{path}: tools of type {kind!r:.80} are not supported, only the client's own",
            f"{path}.type",
            "unsupported_parameter",
        )
    if not isinstance(tool.get("name"), str) or not isinstance(tool.get("input_schema"), dict):
        raise InvalidParameter(f"{path} must have a name and an input_schema", path)
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    function |= {field: tool[field] for field in ("description", "strict") if tool.get(field) is not None}
    return {"type": "function", "function": function}


def _template_messages(message: AnthropicMessage, path: str) -> Iterator[dict[str, Any]]:
    """Yield a message's results of tools as messages of their own, then the rest of it with the images of all."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    texts: list[str] = []
    parts: list[dict[str, Any]] = []  # of a message with images, in OpenAI's form
    calls: list[dict[str, Any]] = []
    num_results = 0
    for position, block in enumerate(message.content):
        here = f"{path}.{position}"
        match block.get("type"):
            case "text":
                texts.append(_text([block], path, position))
                parts.append({"type": "text", "text": texts[-1]})
            case "image" if message.role == "user":
                parts.append(_image(block, here))
            case "tool_use" if message.role == "assistant":
                calls.append(_tool_call(block, here))
            case "tool_result" if message.role == "user":
                num_results += 1
                result, images = _tool_result(block, here)
                parts += images
                yield result
            case kind if kind in _IGNORED and message.role == "assistant":
                pass
            case kind:
                raise _unsupported(kind, here)
    if len(parts) > len(texts):
        yield {"role": message.role, "content": parts}
    elif calls:
        yield {"role": message.role, "content": "".join(texts), "tool_calls": calls}
    elif texts or not num_results:
        yield {"role": message.role, "content": "".join(texts)}


def _image(block: dict[str, Any], path: str) -> dict[str, Any]:
    """Return an image in OpenAI's form; one of a URL is refused there."""
    given = block.get("source")
    source: dict[str, Any] = given if isinstance(given, dict) else {}
    match source.get("type"):
        case "base64":
            url = f"data:{source.get('media_type', '')};base64,{source.get('data', '')}"
        case "url":
            url = str(source.get("url", ""))
        case _:
            raise InvalidParameter(
                f"{path}: an image must have a source of type base64 with its media_type and data", f"{path}.source"
            )
    return {"type": "image_url", "image_url": {"url": url}}


def _tool_call(block: dict[str, Any], path: str) -> dict[str, Any]:
    if not isinstance(block.get("name"), str) or not isinstance(block.get("input"), dict):
        raise InvalidParameter(f"{path} must have a name and an input", path)
    function = {"name": block["name"], "arguments": json.dumps(block["input"])}
    return {"id": str(block.get("id", "")), "type": "function", "function": function}


def _tool_result(block: dict[str, Any], path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a result's message, and its images, which templates read in messages of users only."""
    if not isinstance(block.get("tool_use_id"), str):
        raise InvalidParameter(f"{path}.tool_use_id must be a string", f"{path}.tool_use_id")
    content = block.get("content") or ""
    if not isinstance(content, str | list):
        raise InvalidParameter(f"{path}.content must be a string or a list of blocks", f"{path}.content")
    images: list[dict[str, Any]] = []
    texts = [content] if isinstance(content, str) else []
    for position, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and part.get("type") == "image":
            images.append(_image(part, f"{path}.content.{position}"))
        else:
            texts.append(_text([part], f"{path}.content", position))
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": "".join(texts)}, images


def _text(content: str | Sequence[Any], path: str, first: int = 0) -> str:
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for position, block in enumerate(content, start=first):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind != "text":
            raise _unsupported(kind, f"{path}.{position}")
        if not isinstance(block.get("text"), str):
            raise InvalidParameter(f"{path}.{position}.text must be a string", f"{path}.{position}.text")
        texts.append(block["text"])
    return "".join(texts)


def _unsupported(kind: object, path: str) -> InvalidParameter:
    return InvalidParameter(
        f"{path}: content of type {kind!r:.80} is not supported here", f"{path}.type", "unsupported_parameter"
    )
