"""Anthropic's request bodies: types only; ranges are checked where each value is used."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from rayinfer.servers.openai.schemas import MAX_LIST_ITEMS, Integer, Objects, SpeculationField, Texts
from rayinfer.servers.openapi import ranged

_TEXT_OR_BLOCKS = WithJsonSchema(
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object", "required": ["type"]}}]}
)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class AnthropicMessage(_Strict):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[str | Objects, _TEXT_OR_BLOCKS]


class Thinking(_Strict):
    """Settings of reasoning."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Integer | None = None


class OutputConfig(_Strict):
    """Settings of the output."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None


class AnthropicToolChoice(_Strict):
    """Choice of tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(_Strict):
    """Metadata of a request."""

    user_id: str | None = None


class CountTokensBody(_Strict):
    """POST /v1/messages/count_tokens."""

    model: str
    messages: Annotated[list[AnthropicMessage], Field(fail_fast=True, max_length=MAX_LIST_ITEMS)]
    system: Annotated[str | Objects | None, _TEXT_OR_BLOCKS] = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    tools: Objects | None = None
    tool_choice: AnthropicToolChoice | None = None


class MessagesBody(CountTokensBody):
    """POST /v1/messages."""

    max_tokens: Annotated[Integer, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": 2**31 - 1})]
    stream: bool | None = None
    stop_sequences: Texts | None = None
    temperature: Annotated[float | None, ranged("number", minimum=0, maximum=2)] = None
    top_p: Annotated[float | None, ranged("number", exclusiveMinimum=0, maximum=1)] = None
    top_k: Annotated[Integer | None, ranged("integer", minimum=-1, maximum=2**31 - 1)] = None
    speculation: SpeculationField | None = None  # ours: tokens to draft in a step; answers are the same
    # These have no effect.
    metadata: Metadata | None = None
    service_tier: str | None = None
    # And these are refused.
    container: Any = None
    mcp_servers: list[Any] | None = None
