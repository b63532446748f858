"""Fields that would change the answer and that we cannot honor: refused by name, never ignored in silence."""

from collections.abc import Mapping
from typing import Any

from rayinfer.errors import InvalidParameter

_SWITCHED_OFF: tuple[Any, ...] = (None, False)
_EMPTY: tuple[Any, ...] = (None, [], {}, "")

# What a client may send although the field is not supported: it asks for nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "suffix": _EMPTY,
    "prompt_embeds": _EMPTY,
    "modalities": (None, [], ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
    "mm_processor_kwargs": _EMPTY,
    "vllm_xargs": _EMPTY,
    "kv_transfer_params": _EMPTY,
    "repetition_detection": (None,),
    "thinking_token_budget": (None,),
}

# What only the other endpoint has.
_NEUTRAL_IN_CHAT = {"echo": _SWITCHED_OFF}
_NEUTRAL_IN_COMPLETIONS = {"top_logprobs": (None, 0), "documents": _EMPTY, "chat_template": (None,), "tools": _EMPTY}

_REMOVED: Mapping[str, str] = {
    "functions": "use tools instead of functions",
    "function_call": "use tool_choice instead of function_call",
    "guided_json": "use structured_outputs.json instead of guided_json",
    "guided_regex": "use structured_outputs.regex instead of guided_regex",
    "guided_choice": "use structured_outputs.choice instead of guided_choice",
    "guided_grammar": "use structured_outputs.grammar instead of guided_grammar",
    "guided_json_object": "use response_format instead of guided_json_object",
    "guided_decoding_backend": "use structured_outputs instead of guided decoding",
    "guided_whitespace_pattern": "use structured_outputs instead of guided decoding",
}


def refuse_unsupported_fields(body: Mapping[str, Any], *, is_chat: bool) -> None:
    """Raise InvalidParameter for the first field that asks for something this endpoint does not do."""
    for field, hint in _REMOVED.items():
        if body.get(field) is not None:
            raise InvalidParameter(f"{field} is not supported: {hint}.", field, "unsupported_parameter")
    _refuse(body, _NEUTRAL, "this service")
    _refuse(body, _NEUTRAL_IN_CHAT if is_chat else _NEUTRAL_IN_COMPLETIONS, "this endpoint")


def _refuse(body: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]], by: str) -> None:
    for field, values in neutral.items():
        if field in body and not _is_one_of(body[field], values):
            raise InvalidParameter(f"{field} is not supported by {by}.", field, "unsupported_parameter")


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(type(value) is type(candidate) and value == candidate for candidate in neutral)  # True is not 1 here
