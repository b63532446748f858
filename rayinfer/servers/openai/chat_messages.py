"""A client's conversation, checked field by field, for the chat template to render."""

from collections.abc import Sequence
from typing import Any

from rayinfer.errors import InvalidParameter
from rayinfer.servers.openai.schemas import MAX_LIST_ITEMS, MAX_MESSAGE_FIELDS, ChatMessage, ConversationBody
from rayinfer.tokenization.chat_template import RESERVED_NAMES, ChatTemplate


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Turn every message into what templates expect; raises InvalidParameter for what they do not support."""
    if not messages:
        raise InvalidParameter("messages must hold at least one message", "messages")
    num_parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    num_tool_calls = sum(len(message.tool_calls or ()) for message in messages)
    for what, number in (("parts of content", num_parts), ("tool_calls", num_tool_calls)):
        if number > MAX_LIST_ITEMS:
            raise InvalidParameter(f"messages must hold at most {MAX_LIST_ITEMS} {what}, got {number}", "messages")
    return [_template_message(message, f"messages.{position}") for position, message in enumerate(messages)]


def chosen_template(body: ConversationBody, template: ChatTemplate, *, trusts_request: bool) -> ChatTemplate:
    """Return the client's own template, or the model's; raises InvalidParameter where only the latter is allowed."""
    if body.chat_template is None:
        return template
    if not trusts_request:
        raise InvalidParameter(
            "chat_template is not allowed: this service runs without trust_request_chat_template.",
            "chat_template",
            "unsupported_parameter",
        )
    return template.replaced_by(body.chat_template)


def template_settings(body: ConversationBody) -> dict[str, Any]:
    """Collect the settings of the chat template; raises InvalidParameter when they contradict each other."""
    if body.continue_final_message and body.add_generation_prompt:
        raise InvalidParameter(
            "continue_final_message and add_generation_prompt cannot both be true", "continue_final_message"
        )
    settings = dict(body.chat_template_kwargs or {})
    if taken := sorted(RESERVED_NAMES & settings.keys()):
        raise InvalidParameter(f"chat_template_kwargs must not set {taken[0]}", f"chat_template_kwargs.{taken[0]}")
    if body.reasoning_effort is not None:
        settings["reasoning_effort"] = body.reasoning_effort
    if body.documents:
        settings["documents"] = body.documents
    continues = bool(body.continue_final_message)
    settings["continue_final_message"] = continues
    settings["add_generation_prompt"] = (
        not continues if body.add_generation_prompt is None else body.add_generation_prompt
    )
    return settings


def _template_message(message: ChatMessage, path: str) -> dict[str, Any]:
    if message.content is None and message.role != "assistant":
        raise InvalidParameter(f"{path}.content is required for the role {message.role}", f"{path}.content")
    if (num_fields := len(message.model_fields_set)) > MAX_MESSAGE_FIELDS:
        raise InvalidParameter(f"{path} must hold at most {MAX_MESSAGE_FIELDS} fields, got {num_fields}", path)
    if isinstance(message.content, list):
        for position, part in enumerate(message.content):
            _check_part(part, f"{path}.content.{position}")
    tool_calls = {"tool_calls": message.tool_calls} if "tool_calls" in message.model_fields_set else {}
    return {
        **(message.model_extra or {}),
        **tool_calls,
        "role": "system" if message.role == "developer" else message.role,  # the same thing under its newer name
        "content": "" if message.content is None else message.content,  # a template may add to it, which None forbids
    }


def _check_part(part: dict[str, Any], path: str) -> None:
    kind, text = part.get("type"), part.get("text")
    if not isinstance(kind, str):
        raise InvalidParameter(f"{path}.type must be a string", f"{path}.type")
    if kind == "image_url":
        return  # checked where it is decoded
    if kind != "text":
        raise InvalidParameter(
            f"{path}: content of type {kind!r} is not supported, only text and image_url",
            f"{path}.type",
            "unsupported_parameter",
        )
    if not isinstance(text, str):
        raise InvalidParameter(f"{path}.text must be a string", f"{path}.text")
