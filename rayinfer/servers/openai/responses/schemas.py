"""Bodies of the Responses API: types only; ranges are checked where each value is used."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from rayinfer.servers.openai.schemas import (
    Integer,
    Metadata,
    Objects,
    ReasoningEffort,
    SpeculationField,
    StreamOptions,
    Texts,
)
from rayinfer.servers.openapi import ranged

_INPUT = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]})
_NONE = WithJsonSchema({"type": "null"})  # what is not supported


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class TextSettings(_Strict):
    """Settings of text."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None  # has no effect


class ReasoningSettings(_Strict):
    """Settings of reasoning."""

    effort: ReasoningEffort | None = None
    summary: str | None = None  # has no effect: reasoning is returned as it is


class ResponsesBody(_Strict):
    """POST /v1/responses."""

    model: str | None = None
    input: Annotated[str | Objects, _INPUT]
    instructions: str | None = None
    max_output_tokens: Annotated[Integer | None, ranged("integer", minimum=1, maximum=2**31 - 1)] = None
    temperature: Annotated[float | None, ranged("number", minimum=0, maximum=2)] = None
    top_p: Annotated[float | None, ranged("number", exclusiveMinimum=0, maximum=1)] = None
    top_k: Annotated[Integer | None, ranged("integer", minimum=-1, maximum=2**31 - 1)] = None
    min_p: Annotated[float | None, ranged("number", minimum=0, maximum=1)] = None
    repetition_penalty: Annotated[float | None, ranged("number", minimum=0.01, maximum=10)] = None
    seed: Integer | None = None
    speculation: SpeculationField | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None  # true is the default
    background: bool | None = None
    previous_response_id: str | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Integer | None = None  # of built-in tools
    truncation: Literal["auto", "disabled"] | None = None
    include: Texts | None = None
    top_logprobs: Annotated[Integer | None, ranged("integer", minimum=0, maximum=20)] = None
    priority: Annotated[Integer | None, ranged("integer", minimum=-10, maximum=10)] = None
    cache_salt: str | None = None
    # These have no effect but to be returned.
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    # And these are refused.
    conversation: Annotated[Any, _NONE] = None
    prompt: Annotated[Any, _NONE] = None
