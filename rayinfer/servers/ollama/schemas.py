"""Ollama's request bodies: types only; ranges are checked where each value is used."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from rayinfer.servers.openai.schemas import MAX_LIST_ITEMS, Integer, Objects, SpeculationField, Texts
from rayinfer.servers.openapi import ranged

_NOTHING = WithJsonSchema({"type": ["null", "string"], "maxLength": 0})  # what is not supported
_NO_ITEMS = WithJsonSchema({"type": ["null", "array"], "maxItems": 0})
_IMAGES = WithJsonSchema({"type": ["null", "array"], "items": {"type": "string", "description": "base64"}})


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class OllamaOptions(_Strict):
    """Ollama's `options`; those of its runtime, such as num_ctx, num_gpu or num_thread, are the service's to choose."""

    num_predict: Annotated[Integer | None, ranged("integer", minimum=-2, maximum=2**31 - 1)] = None
    temperature: Annotated[float | None, ranged("number", minimum=0, maximum=2)] = None
    top_k: Annotated[Integer | None, ranged("integer", minimum=-1, maximum=2**31 - 1)] = None
    top_p: Annotated[float | None, ranged("number", exclusiveMinimum=0, maximum=1)] = None
    min_p: Annotated[float | None, ranged("number", minimum=0, maximum=1)] = None
    typical_p: Annotated[float | None, ranged("number", exclusiveMinimum=0, maximum=1)] = None
    seed: Annotated[Integer | None, ranged("integer", minimum=-1, maximum=2**63 - 1)] = None
    stop: str | Texts | None = None
    repeat_penalty: Annotated[float | None, ranged("number", minimum=0.01, maximum=10)] = None
    presence_penalty: Annotated[float | None, ranged("number", minimum=-2, maximum=2)] = None
    frequency_penalty: Annotated[float | None, ranged("number", minimum=-2, maximum=2)] = None
    mirostat: Annotated[Integer | None, WithJsonSchema({"enum": [0, None]})] = None
    speculation: SpeculationField | None = None  # ours: tokens to draft in a step; answers are the same


class _GeneratingBody(_Strict):
    model: str | None = None
    stream: bool | None = None  # true is the default
    options: OllamaOptions | None = None
    format: Any = None
    think: bool | str | None = None
    keep_alive: float | str | None = None  # has no effect: models stay


class OllamaMessage(_Strict):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None  # of an assistant, for templates that read it
    images: Annotated[list[Any] | None, _IMAGES] = None
    tool_calls: Objects | None = None
    tool_name: str | None = None


class OllamaChatBody(_GeneratingBody):
    """POST /api/chat."""

    messages: Annotated[list[OllamaMessage], Field(fail_fast=True, max_length=MAX_LIST_ITEMS)] | None = None
    tools: Objects | None = None


class OllamaGenerateBody(_GeneratingBody):
    """POST /api/generate."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None  # the prompt is not for the chat template
    suffix: Annotated[str | None, _NOTHING] = None
    template: Annotated[str | None, _NOTHING] = None
    context: Annotated[list[Any] | None, _NO_ITEMS] = None
    images: Annotated[list[Any] | None, _IMAGES] = None


class OllamaShowBody(_Strict):
    """POST /api/show."""

    model: str | None = None
    name: str | None = None  # its older name
    verbose: bool | None = None
