"""TGI's request bodies: types only; ranges are checked where each value is used."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from rayinfer.servers.openai.schemas import Integer, SpeculationField, Texts
from rayinfer.servers.openapi import ranged


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


_NONE = WithJsonSchema({"type": "null"})  # what is not supported
_GRAMMAR = WithJsonSchema(
    {
        "anyOf": [
            {
                "type": "object",
                "required": ["type", "value"],
                "properties": {"type": {"enum": ["json", "json_schema", "regex"]}},
            },
            {"type": "null"},
        ]
    }
)
_PENALTY = ranged("number", minimum=-2, maximum=2)
_SHARE = ranged("number", exclusiveMinimum=0, exclusiveMaximum=1)


class GenerateParameters(_Strict):
    """TGI's `parameters`; null means the default everywhere.

    The document says less than is allowed where fields depend on each other: best_of above 1 needs sampling, no seed
    and no stream.
    """

    best_of: Annotated[Integer | None, ranged("integer", minimum=1, maximum=1)] = None
    temperature: Annotated[float | None, ranged("number", exclusiveMinimum=0, maximum=2)] = None
    repetition_penalty: Annotated[float | None, ranged("number", minimum=0.01, maximum=10)] = None
    frequency_penalty: Annotated[float | None, _PENALTY] = None
    top_k: Annotated[Integer | None, ranged("integer", minimum=1, maximum=2**31 - 1)] = None
    top_p: Annotated[float | None, _SHARE] = None
    typical_p: Annotated[float | None, _SHARE] = None
    do_sample: bool | None = None
    max_new_tokens: Annotated[Integer | None, ranged("integer", minimum=1, maximum=2**31 - 1)] = None
    return_full_text: bool | None = None
    stop: Annotated[Texts | None, ranged("array", maxItems=16, items={"type": "string", "minLength": 1})] = None
    truncate: Annotated[Integer | None, ranged("integer", minimum=1, maximum=2**31 - 1)] = None
    watermark: Annotated[bool | None, WithJsonSchema({"enum": [False, None]})] = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    seed: Annotated[Integer | None, ranged("integer", minimum=0, maximum=2**64 - 1)] = None
    top_n_tokens: Annotated[Integer | None, ranged("integer", minimum=0, maximum=20)] = None
    grammar: Annotated[dict[str, Any] | None, _GRAMMAR] = None
    adapter_id: Annotated[str | None, _NONE] = None
    speculation: SpeculationField | None = None  # ours: tokens to draft in a step; answers are the same


class GenerateBody(_Strict):
    """POST /generate, /generate_stream, /tokenize and, with `stream`, / and /invocations."""

    inputs: Annotated[str, WithJsonSchema({"type": "string", "minLength": 1})]
    parameters: GenerateParameters | None = None
    stream: bool | None = None
    add_special_tokens: bool | None = None


class TokenizeParameters(_Strict):
    """Parameters that count for tokens."""

    truncate: Annotated[Integer | None, ranged("integer", minimum=1, maximum=2**31 - 1)] = None


class InputsBody(_Strict):
    """POST /tokenize, as the document describes it."""

    inputs: Annotated[str, WithJsonSchema({"type": "string", "minLength": 1})]
    parameters: TokenizeParameters | None = None
    add_special_tokens: bool | None = None
