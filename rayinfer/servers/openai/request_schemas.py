"""JSON schemas of bodies, for the OpenAPI document: fields and types of the schemas, ranges of the validation."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from rayinfer.errors import NotReady
from rayinfer.protocols import ModelDescription
from rayinfer.sampling_params import MAX_BAD_WORD_CHARS, MAX_LOGIT_BIAS, MIN_REPETITION_PENALTY
from rayinfer.servers.openai.beam_settings import NEUTRAL_BESIDE_BEAMS
from rayinfer.servers.openai.sampling_settings import DEFAULT_COMPLETION_TOKENS
from rayinfer.servers.openai.schemas import (
    MAX_LIST_ITEMS,
    MAX_MESSAGE_FIELDS,
    MAX_PRIORITY,
    SALT_SCHEMA,
    ChatCompletionBody,
    CompletionBody,
    ConversationBody,
    DetokenizeBody,
    TokenizeChatBody,
    TokenizePromptBody,
)
from rayinfer.servers.openapi import SCHEMA_PATH
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.servers.served_model import ServedModel, base_models
from rayinfer.tokenization.chat_template import RESERVED_NAMES

_MAX_INT32 = 2**31 - 1
_NULL = {"type": "null"}
_LONG_LISTS = {"messages", "documents"}  # as many as no body holds: the document is silent about the bound
_GENERATED = (ChatCompletionBody, CompletionBody)
_SWITCHED_OFF = {"enum": [None, False]}


def request_schemas(
    models: Mapping[str, ServedModel], limits: RequestLimits, *, trusts_request_chat_template: bool
) -> dict[str, Any]:
    """Return the schemas of all bodies; what they say of token ids holds for every model that is served now."""
    described = [each for each in _descriptions(models) if each.vocab_size]  # models of images read no tokens
    vocab_size = min((each.vocab_size for each in described), default=2**31)
    longest_prompt = min((each.longest_prompt() for each in described), default=2**31)
    vocabulary = {"type": "integer", "minimum": 0, "maximum": vocab_size - 1}
    schemas: dict[str, Any] = {}
    for body in (*_GENERATED, ConversationBody, TokenizeChatBody, TokenizePromptBody, DetokenizeBody):
        schema = _of(body, schemas)
        ranges = {
            **_ranges(limits, vocabulary),
            **_of_one_body(body, limits, vocabulary),
            **_truncation(longest_prompt),
        }
        for field, bounds in ranges.items():
            if field in schema["properties"]:
                schema["properties"][field] = _bounded(schema["properties"][field], bounds)
        if not trusts_request_chat_template and "chat_template" in schema["properties"]:
            schema["properties"]["chat_template"] = {**_NULL, "description": "needs trust_request_chat_template"}
        if "best_of" in schema["properties"]:
            schema["properties"]["best_of"] = {**_NULL, "description": f"from n to {limits.max_n}, and not in a stream"}
        if rules := list(_rules(body)):
            schema["allOf"] = rules
        for field in _LONG_LISTS & schema["properties"].keys():
            _remove_max_items(schema["properties"][field])
    schemas["ChatMessage"] = _message(schemas["ChatMessage"])
    return schemas


def _of(body: type[BaseModel], schemas: dict[str, Any]) -> dict[str, Any]:
    schema = body.model_json_schema(ref_template=SCHEMA_PATH)
    schemas |= {**schema.pop("$defs", {}), body.__name__: schema}
    return schema


def _descriptions(models: Mapping[str, ServedModel]) -> Iterator[ModelDescription]:
    for model in base_models(models).values():
        try:
            yield model.generator.describe()
        except NotReady:
            continue


def _message(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Put on messages what their checks demand."""
    text = {"type": "string"}
    part = {
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": text},
    }
    content = {"anyOf": [text, {"type": "array", "items": part}, _NULL]}
    tool_calls = {"anyOf": [{"type": "array", "items": {"type": "object"}}, _NULL]}
    has_content = {"required": ["content"], "properties": {"content": {"not": _NULL}}}
    return {
        **schema,
        "properties": {**schema["properties"], "content": content, "tool_calls": tool_calls},
        "maxProperties": MAX_MESSAGE_FIELDS,
        "anyOf": [{"properties": {"role": {"const": "assistant"}}}, has_content],
    }


def _truncation(longest_prompt: int) -> dict[str, dict[str, Any]]:
    numbers = [{"const": -1}, {"type": "integer", "minimum": 1, "maximum": longest_prompt}]
    return {"truncate_prompt_tokens": {"anyOf": [*numbers, _NULL]}}


def _remove_max_items(schema: dict[str, Any]) -> None:
    for each in (schema, *schema.get("anyOf", ())):
        each.pop("maxItems", None)


def _bounded(schema: Mapping[str, Any], bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Put bounds on what a field may be beside null."""
    if "anyOf" not in schema or "anyOf" in bounds:
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
        "length_penalty": (-10, 10),
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
            "propertyNames": {"pattern": pattern_below(vocabulary["maximum"] + 1)},
            "additionalProperties": {"type": "number", "minimum": -MAX_LOGIT_BIAS, "maximum": MAX_LOGIT_BIAS},
            "maxProperties": limits.max_logit_bias,
        },
        "cache_salt": SALT_SCHEMA,
        "tokens": {"items": vocabulary, "maxItems": limits.max_repeated_token_ids},
        "messages": {"minItems": 1},
        "chat_template_kwargs": {"propertyNames": {"not": {"enum": sorted(RESERVED_NAMES)}}},
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
        streamed = {"properties": {"stream": {"const": True}, "prompt_logprobs": _NULL}, "required": ["stream"]}
        yield {"anyOf": [streamed, {"properties": {"stream": _SWITCHED_OFF, "stream_options": _NULL}}]}
    if "use_beam_search" in body.model_fields:
        beside = {
            name: {"enum": list(values)} for name, values in NEUTRAL_BESIDE_BEAMS.items() if name in body.model_fields
        }
        yield {
            "anyOf": [
                {"properties": {"use_beam_search": _SWITCHED_OFF, "length_penalty": {"enum": [None, 1]}}},
                {"properties": {"use_beam_search": {"const": True}, **beside}},
            ]
        }
    if body is ChatCompletionBody:
        without = {"top_logprobs": {"enum": [None, 0]}, "logprob_token_ids": {"enum": [None, []]}}
        yield _unless({"logprobs": {"const": True}}, without)
    if body is CompletionBody:
        yield _unless({"logprobs": {"type": "integer"}}, {"logprob_token_ids": {"enum": [None, []]}})
        some = {"not": {"const": 0}}
        yield _unless({"echo": {"const": True}}, {"max_tokens": some, "max_completion_tokens": some})
    if "min_tokens" in body.model_fields:
        yield _enough_tokens()
    if "continue_final_message" in body.model_fields:
        yield _unless(
            {"continue_final_message": _SWITCHED_OFF}, {"add_generation_prompt": _SWITCHED_OFF}, or_absent=True
        )


def _enough_tokens() -> dict[str, Any]:
    """Demand that min_tokens is at most max_tokens.

    A schema can compare either only with constants, and tools combine the alternatives of all rules, of which few can
    bear more: these are two, and leave out some requests that are valid.
    """
    enough = {"anyOf": [_NULL, {"type": "integer", "minimum": DEFAULT_COMPLETION_TOKENS}]}
    few = {"anyOf": [_NULL, {"type": "integer", "maximum": DEFAULT_COMPLETION_TOKENS}]}
    lengths = {"min_tokens": few, "max_tokens": enough, "max_completion_tokens": enough}
    return {"anyOf": [{"properties": {"min_tokens": {"enum": [None, 0]}}}, {"properties": lengths}]}


def pattern_below(limit: int) -> str:
    """Return the pattern of the integers from 0 that are less, as they are written in decimal."""
    highest = str(limit - 1)
    patterns = ["0", *(f"[1-9][0-9]{{{length}}}" for length in range(len(highest) - 1)), highest]
    for place, digit in enumerate(highest):
        lowest = 0 if place else 1  # numbers of as many digits begin with no zero
        if int(digit) > lowest:
            tail = f"[0-9]{{{len(highest) - place - 1}}}"
            patterns.append(f"{highest[:place]}[{lowest}-{int(digit) - 1}]{tail}")
    return f"^({'|'.join(patterns)})$"


def _unless(condition: Mapping[str, Any], demand: Mapping[str, Any], *, or_absent: bool = False) -> dict[str, Any]:
    """Demand something of fields unless another one meets the condition, or is absent."""
    required = {} if or_absent else {"required": list(condition)}
    return {"anyOf": [{"properties": dict(condition), **required}, {"properties": dict(demand)}]}
