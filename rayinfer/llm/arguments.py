"""What callers of `LLM` may pass: prompts in several forms, and settings for all of them or for each."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from rayinfer.errors import InvalidParameter, shown

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


def as_prompts(prompts: Any) -> list[Prompt]:
    """Make a list of one prompt or several; raises InvalidParameter for anything else."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes | Mapping) or not isinstance(prompts, Iterable):
        raise InvalidParameter(f"prompts must be texts or lists of token ids, got {shown(prompts)}", "prompts")
    return list(prompts)


def checked_token_ids(token_ids: Any) -> list[int]:
    """Take a prompt that is no text; raises InvalidParameter unless it is a list of integers."""
    is_list = isinstance(token_ids, Iterable) and not isinstance(token_ids, bytes | bytearray | Mapping)
    items = list(token_ids) if is_list else []
    if not is_list or not all(isinstance(item, Integral) and not isinstance(item, bool) for item in items):
        raise InvalidParameter(f"prompt must be a text or a list of token ids, got {shown(token_ids)}", "prompt")
    return [int(item) for item in items]


def check_request(request_id: Any, timeout_s: Any) -> None:
    """Raise InvalidParameter for a name that is no text, and for a time that is over before it begins."""
    if request_id is not None and not isinstance(request_id, str):
        raise InvalidParameter(f"request_id must be a text, got {shown(request_id)}", "request_id")
    if isinstance(timeout_s, int | float) and timeout_s <= 0:
        raise InvalidParameter(f"timeout_s must be more than 0 seconds, got {shown(timeout_s)}", "timeout_s")


def spread(value: Any, count: int, kind: type, name: str) -> list[Any]:
    """Give each of `count` prompts its value: one is for all; raises InvalidParameter for another kind or number."""
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value] * count
    for wrong in (each for each in values if not isinstance(each, kind)):
        raise InvalidParameter(f"{name} must be {kind.__name__}, one or one for each prompt, got {shown(wrong)}", name)
    if len(values) != count:
        raise InvalidParameter(f"{name} must be one or {count}, one for each prompt, got {len(values)}", name)
    return values
