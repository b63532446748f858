"""Arguments of `LLM`: prompts in several forms, and settings for all of them or for each."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from rayinfer.errors import InvalidParameter, shown

Prompt = str | Sequence[int]
Prompts = str | Sequence[str] | Sequence[Sequence[int]] | Mapping[str, Any] | Sequence[Mapping[str, Any]]
Message = Mapping[str, Any]
PROMPT_FIELDS = frozenset(("prompt", "prompt_token_ids"))  # of a prompt with images, one of them


def as_prompts(prompts: Any) -> list[Any]:
    """Make a list of one prompt or several; raises InvalidParameter for anything else."""
    if isinstance(prompts, str) or (isinstance(prompts, Mapping) and prompts.keys() & PROMPT_FIELDS):
        return [prompts]
    if (items := _listed(prompts)) is None:
        raise InvalidParameter(f"prompts must be texts or lists of token ids, got {shown(prompts)}", "prompts")
    return items


def checked_token_ids(token_ids: Any) -> list[int]:
    """Check a prompt of token ids; raises InvalidParameter unless it is a list of integers."""
    items = _listed(token_ids)
    kinds = set(map(type, items or ()))  # few, of many tokens
    if items is None or not all(issubclass(kind, Integral) and not issubclass(kind, bool) for kind in kinds):
        raise InvalidParameter(f"prompt must be a text or a list of token ids, got {shown(token_ids)}", "prompt")
    return [int(item) for item in items]


def check_request(request_id: Any, timeout_s: Any) -> None:
    """Raise InvalidParameter for an id that is no text, and for a timeout of 0 or less."""
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


def _listed(values: Any) -> list[Any] | None:
    """Return its items; None for bytes, mappings and what is not iterable."""
    try:
        return None if isinstance(values, bytes | bytearray | Mapping) else list(values)
    except TypeError:  # such as an array of no dimensions, which has __iter__
        return None
