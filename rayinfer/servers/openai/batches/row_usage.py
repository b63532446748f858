"""Usage of a row from its response, whose protocol has names of its own for it."""

from collections.abc import Mapping
from typing import Any

from rayinfer.batches.records import RowUsage


def row_usage(body: object) -> RowUsage:
    """Read the usage of a response: of chat completions, completions and predictions, Responses, or Messages."""
    usage = _object(_object(body).get("usage"))
    apart = _number(usage, "cache_read_input_tokens") + _number(usage, "cache_creation_input_tokens")  # Anthropic's
    inputs, outputs = _details(usage, "prompt", "input"), _details(usage, "completion", "output")
    return RowUsage(
        prompt_tokens=(_number(usage, "prompt_tokens") or _number(usage, "input_tokens")) + apart,
        output_tokens=_number(usage, "completion_tokens") or _number(usage, "output_tokens"),
        cached_tokens=_number(inputs, "cached_tokens") + _number(usage, "cache_read_input_tokens"),
        reasoning_tokens=_number(outputs, "reasoning_tokens"),
    )


def _details(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((found for name in names if (found := _object(usage.get(f"{name}_tokens_details")))), {})


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    return value if isinstance(value, int) else 0
