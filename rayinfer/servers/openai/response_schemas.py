"""JSON schemas of responses, for the OpenAPI document."""

from collections.abc import Mapping
from typing import Any

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_OR_NULL = {"anyOf": [{"type": "object"}, {"type": "null"}]}
_TOKEN_IDS = {"type": "array", "items": _COUNT}
_TOKEN_IDS_OR_NULL = {"anyOf": [_TOKEN_IDS, {"type": "null"}]}
_PROMPT_LOGPROBS = {"anyOf": [{"type": "array", "items": _OR_NULL}, {"type": "null"}]}
_FINISH_REASON = {"type": "string", "enum": ["stop", "length", "tool_calls"]}
_NULLABLE_TEXT = {"type": ["string", "null"]}


def _object(properties: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": {**properties, **(optional or {})}}


def _response(kind: str, choice: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return _object(
        {
            "id": _TEXT,
            "object": {"const": kind},
            "created": _COUNT,
            "model": _TEXT,
            "choices": {"type": "array", "minItems": 1, "items": choice},
            "usage": _USAGE,
            "system_fingerprint": _NULLABLE_TEXT,
            **(more or {}),
        },
        {"service_tier": _TEXT},
    )


_TOOL_CALL = _object(
    {"id": _TEXT, "type": {"const": "function"}, "function": _object({"name": _TEXT, "arguments": _TEXT})}
)
_USAGE = _object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
    }
)
_MESSAGE = _object(
    {"role": {"const": "assistant"}, "content": _NULLABLE_TEXT, "refusal": {"type": "null"}},
    {
        "reasoning": _TEXT,
        "reasoning_content": _TEXT,
        "tool_calls": {"type": "array", "items": _TOOL_CALL},
    },
)
_CHOICE_END = {
    "finish_reason": _FINISH_REASON,
    "stop_reason": {"type": ["string", "integer", "null"]},
    "token_ids": _TOKEN_IDS_OR_NULL,
}
_REPEATED_PROMPT = {"prompt_token_ids": _TOKEN_IDS_OR_NULL, "prompt_logprobs": _PROMPT_LOGPROBS}
_MODEL = _object(
    {
        "id": _TEXT,
        "object": {"const": "model"},
        "created": _COUNT,
        "owned_by": _TEXT,
        "root": _TEXT,
        "parent": {"type": "null"},
        "tasks": {"type": ["array", "null"], "items": _TEXT},
        "input_modalities": {"type": "array", "items": {"enum": ["text", "image"]}},
        "max_model_len": {"type": ["integer", "null"]},
        "permission": {"type": "array", "items": {"type": "object"}},
        "default_sampling_params": _OR_NULL,
    },
    {"image_limits": _object(dict.fromkeys(("max_images", "max_bytes", "max_pixels", "max_side"), _COUNT))},
)

RESPONSE_SCHEMAS: Mapping[str, Any] = {
    "ChatCompletionResponse": _response(
        "chat.completion",
        _object(
            {
                "index": _COUNT,
                "message": _MESSAGE,
                "logprobs": _OR_NULL,
                **_CHOICE_END,
            }
        ),
        _REPEATED_PROMPT,
    ),
    "CompletionResponse": _response(
        "text_completion",
        _object({"index": _COUNT, "text": _TEXT, "logprobs": _OR_NULL, **_CHOICE_END, **_REPEATED_PROMPT}),
    ),
    "Model": _MODEL,
    "ModelList": _object({"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}}),
    "TokenizeResponse": _object(
        {
            "count": _COUNT,
            "max_model_len": _COUNT,
            "tokens": _TOKEN_IDS,
            "token_strs": {"anyOf": [{"type": "array", "items": _NULLABLE_TEXT}, {"type": "null"}]},
        }
    ),
    "DetokenizeResponse": _object({"prompt": _TEXT}),
    "TokenizerInfo": _object(
        {
            "bos_token": _NULLABLE_TEXT,
            "eos_token": _NULLABLE_TEXT,
            "pad_token": _NULLABLE_TEXT,
            "tokenizer_class": _NULLABLE_TEXT,
            "vocab_size": _COUNT,
            "model_max_length": _COUNT,
            "chat_template": _NULLABLE_TEXT,
        }
    ),
}
