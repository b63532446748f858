"""JSON schemas of bodies, for the OpenAPI document: fields and types of the schemas, ranges of the validation."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from rayinfer.errors import NotReady
from rayinfer.sampling_params import MAX_BAD_WORD_CHARS, MAX_LOGIT_BIAS, MIN_REPETITION_PENALTY
from rayinfer.servers.openai.schemas import (
    MAX_LIST_ITEMS,
    MAX_PRIORITY,
    MAX_SALT_CHARS,
    ChatCompletionBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeChatBody,
    TokenizePromptBody,
)
from rayinfer.servers.openapi import SCHEMA_PATH, reference
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.servers.served_model import ServedModel

_MAX_INT32 = 2**31 - 1
_NULL = {"type": "null"}
_SWITCHED_OFF = {"enum": [None, False]}


def request_schemas(models: Mapping[str, ServedModel], limits: RequestLimits) -> dict[str, Any]:
    """Return the schemas of all bodies; what they say of token ids holds for every model that is served now."""
    vocabulary = {"type": "integer", "minimum": 0, "maximum": min(_vocab_sizes(models), default=2**31) - 1}
    schemas: dict[str, Any] = {}
    for body in (ChatCompletionBody, CompletionBody, TokenizeChatBody, TokenizePromptBody, DetokenizeBody):
        schema = _of(body, schemas)
        ranges = {**_ranges(limits, vocabulary), **_of_one_body(body, limits, vocabulary)}
        for field, bounds in ranges.items():
            if field in schema["properties"]:
                schema["properties"][field] = _bounded(schema["properties"][field], bounds)
        schema["allOf"] = list(_rules(body))
    schemas["TokenizeBody"] = {"oneOf": [reference("TokenizePromptBody"), reference("TokenizeChatBody")]}
    return schemas


def _of(body: type[BaseModel], schemas: dict[str, Any]) -> dict[str, Any]:
    schema = body.model_json_schema(ref_template=SCHEMA_PATH)
    schemas |= {**schema.pop("$defs", {}), body.__name__: schema}
    return schema


def _vocab_sizes(models: Mapping[str, ServedModel]) -> Iterator[int]:
    for model in models.values():
        try:
            yield model.generator.describe().vocab_size
        except NotReady:
            continue


def _bounded(schema: Mapping[str, Any], bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Put bounds on what a field may be beside null."""
    if "anyOf" not in schema:
        return {**schema, **bounds}
    members = [member if member == _NULL else {**member, **bounds} for member in schema["anyOf"]]
    return {**schema, "anyOf": members}


def _ranges(limits: RequestLimits, vocabulary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    integers = {
        "n": (1, limits.max_n),
        "max_tokens": (1, _MAX_INT32),
        "max_completion_tokens": (1, _MAX_INT32),
        "min_tokens": (0, _MAX_INT32),
        "top_k": (-1, _MAX_INT32),
        "seed": (-(2**63), 2**64 - 1),
        "temperature": (0, 2),
        "min_p": (0, 1),
        "repetition_penalty": (MIN_REPETITION_PENALTY, 10),
        "presence_penalty": (-2, 2),
        "frequency_penalty": (-2, 2),
        "priority": (-MAX_PRIORITY, MAX_PRIORITY),
        "prompt_logprobs": (-1, limits.max_logprobs),
    }
    text = {"type": "string", "minLength": 1}
    return {
        **{field: {"minimum": low, "maximum": high} for field, (low, high) in integers.items()},
        **{field: {"exclusiveMinimum": 0, "maximum": 1} for field in ("top_p", "typical_p")},
        "stop_token_ids": {"items": vocabulary, "maxItems": MAX_LIST_ITEMS},
        "allowed_token_ids": {"items": vocabulary, "minItems": 1, "maxItems": MAX_LIST_ITEMS},
        "logprob_token_ids": {"items": vocabulary, "maxItems": limits.max_logprob_token_ids},
        "stop": {"anyOf": [text, {"type": "array", "items": text, "maxItems": limits.max_stop_strings}, _NULL]},
        "bad_words": {"items": {**text, "maxLength": MAX_BAD_WORD_CHARS}, "maxItems": limits.max_bad_words},
        "logit_bias": {
            "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
            "additionalProperties": {"type": "number", "minimum": -MAX_LOGIT_BIAS, "maximum": MAX_LOGIT_BIAS},
            "maxProperties": limits.max_logit_bias,
        },
        "cache_salt": {"minLength": 1, "maxLength": MAX_SALT_CHARS, "pattern": r"^[^@/\\\x00]+$"},
        "tokens": {"items": vocabulary, "maxItems": limits.max_repeated_token_ids},
        "messages": {"minItems": 1},
    }


def _of_one_body(
    body: type[BaseModel], limits: RequestLimits, vocabulary: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    likeliest = {"minimum": 0, "maximum": limits.max_logprobs}
    if body is ChatCompletionBody:
        return {"top_logprobs": likeliest}
    if body is not CompletionBody:
        return {}
    text = {"type": "string", "minLength": 1}
    ids = {"type": "array", "minItems": 1, "items": vocabulary}
    texts = {"type": "array", "minItems": 1, "items": text, "maxItems": limits.max_prompts}
    id_lists = {"type": "array", "minItems": 1, "items": ids, "maxItems": limits.max_prompts}
    return {
        "logprobs": likeliest,
        "max_tokens": {"minimum": 0, "maximum": _MAX_INT32},
        "max_completion_tokens": {"minimum": 0, "maximum": _MAX_INT32},
        "prompt": {"anyOf": [text, texts, ids, id_lists]},
    }


def _rules(body: type[BaseModel]) -> Iterator[dict[str, Any]]:
    """Yield what fields demand of each other."""
    if "stream" in body.model_fields:
        yield _unless({"stream": {"const": True}}, {"stream_options": _NULL})
        yield _unless({"stream": _SWITCHED_OFF}, {"prompt_logprobs": _NULL}, or_absent=True)
    if body is ChatCompletionBody:
        without = {"top_logprobs": {"enum": [None, 0]}, "logprob_token_ids": {"enum": [None, []]}}
        yield _unless({"logprobs": {"const": True}}, without)
    if body is CompletionBody:
        yield _unless({"logprobs": {"type": "integer"}}, {"logprob_token_ids": {"enum": [None, []]}})
        some = {"not": {"const": 0}}
        yield _unless({"echo": {"const": True}}, {"max_tokens": some, "max_completion_tokens": some})
    if "continue_final_message" in body.model_fields:
        yield _unless(
            {"continue_final_message": _SWITCHED_OFF}, {"add_generation_prompt": _SWITCHED_OFF}, or_absent=True
        )


def _unless(condition: Mapping[str, Any], demand: Mapping[str, Any], *, or_absent: bool = False) -> dict[str, Any]:
    """Demand something of fields unless another one meets the condition, or is absent."""
    required = {} if or_absent else {"required": list(condition)}
    return {"anyOf": [{"properties": dict(condition), **required}, {"properties": dict(demand)}]}
