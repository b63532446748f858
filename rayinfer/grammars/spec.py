"""Specification of the form of a structured output, validated when built."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from rayinfer.errors import InvalidParameter, shown

MAX_GRAMMAR_CHARS = 2**16
MAX_CHOICE_ITEMS = 4096
MAX_NESTING = 256  # engines read the text again, and none may fail to by the depth of its own calls
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_NAME = "structured_outputs"


@dataclass(frozen=True, kw_only=True, slots=True)
class StructuredOutputsParams:
    """Form of a structured output; exactly one of the kinds is given. The names are vLLM's.

    Schemas and structural tags are kept as JSON texts, choices as a tuple; what was kept may be given again.
    Raises InvalidParameter that names the field.
    """

    json: str | dict[str, Any] | None = None  # a JSON schema
    regex: str | None = None
    choice: Sequence[str] | None = None  # one of these texts
    grammar: str | None = None  # in Lark's form or GBNF
    json_object: bool | None = None  # any JSON object
    structural_tag: str | dict[str, Any] | None = None  # text in which begin tags lead to constrained parts
    disable_any_whitespace: bool = False  # JSON is compact
    reasoning_tags: Sequence[str] | None = None  # begin and end of text that may precede the output
    begins_in_reasoning: bool = False  # the prompt ends within such text

    def __post_init__(self) -> None:
        if self.json_object is not None and not isinstance(self.json_object, bool):
            raise _invalid("json_object", f"must be true or false, got {shown(self.json_object)}")
        if not isinstance(self.disable_any_whitespace, bool):
            raise _invalid("disable_any_whitespace", f"must be true or false, got {shown(self.disable_any_whitespace)}")
        if not isinstance(self.begins_in_reasoning, bool):
            raise _invalid("begins_in_reasoning", f"must be true or false, got {shown(self.begins_in_reasoning)}")
        if self.reasoning_tags is not None:
            self._keep("reasoning_tags", _tags(self.reasoning_tags))
        given = [kind for kind in KINDS if getattr(self, kind) not in (None, False)]
        if len(given) != 1:
            names = ", ".join(given) or "none"
            raise InvalidParameter(f"{_NAME} must have exactly one of {', '.join(KINDS)}, got {names}", _NAME)
        for field in ("regex", "grammar"):
            if getattr(self, field) is not None:
                _check_text(field, getattr(self, field))
        for field in ("json", "structural_tag"):
            if getattr(self, field) is not None:
                self._keep(field, _json_text(field, getattr(self, field)))
        if self.choice is not None:
            self._keep("choice", _choices(self.choice))

    @classmethod
    def of(cls, value: object) -> "StructuredOutputsParams":
        """Read a mapping of the fields, as JSON has it; raises InvalidParameter for unknown ones."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise InvalidParameter(f"{_NAME} must be an object, got {shown(value)}", _NAME)
        unknown = sorted(map(str, value.keys() - set(cls.__slots__)))
        if unknown:
            raise InvalidParameter(f"{_NAME}.{unknown[0]} is not supported", _NAME, "unsupported_parameter")
        return cls(**value)

    @property
    def kind(self) -> str:
        """The kind that is given."""
        return next(kind for kind in KINDS if getattr(self, kind) not in (None, False))

    def _keep(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _invalid(field: str, problem: str) -> InvalidParameter:
    return InvalidParameter(f"{_NAME}.{field} {problem}", _NAME)


def _tags(values: object) -> tuple[str, str]:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence) or len(values) != 2:
        raise _invalid("reasoning_tags", f"must be two texts, got {shown(values)}")
    begin, end = values
    _check_text("reasoning_tags", begin)
    _check_text("reasoning_tags", end)
    return begin, end


def _check_text(field: str, text: object) -> None:
    if not isinstance(text, str) or not text:
        raise _invalid(field, f"must be a non-empty string, got {shown(text)}")
    _check_length(field, len(text))


def _check_length(field: str, num_chars: int) -> None:
    if num_chars > MAX_GRAMMAR_CHARS:
        raise _invalid(field, f"must have at most {MAX_GRAMMAR_CHARS} characters, got {num_chars}")


def _json_text(field: str, value: object) -> str:
    try:
        if isinstance(value, str):
            _check_text(field, value)
            parsed = json.loads(value)
        else:
            # Of a megabyte json.dumps would make nothing else of this process run for tens of milliseconds.
            _check_length(field, len(msgspec.json.encode(value).decode()))
            parsed, value = value, json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidParameter):
            raise
        problem = "is nested too deeply" if isinstance(error, RecursionError) else f"must be JSON: {error}"
        raise _invalid(field, problem) from None
    if not isinstance(parsed, dict):
        raise _invalid(field, f"must be an object, got {shown(parsed)}")
    if value.count("{") + value.count("[") > MAX_NESTING and _is_nested_deeper(parsed, MAX_NESTING):
        raise _invalid(field, f"must be nested at most {MAX_NESTING} deep")
    if "x-guidance" in parsed:
        raise _invalid(field, "must not have the keyword x-guidance")
    _check_text(field, value)
    return value


def _is_nested_deeper(value: Any, depth: int) -> bool:
    """Return whether JSON has more lists and objects inside each other, without recursion."""
    level = [value]
    for _ in range(depth):
        children = (each.values() if isinstance(each, dict) else each for each in level)
        level = [child for each in children for child in each if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _choices(values: object) -> tuple[str, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence) or not values:
        raise _invalid("choice", f"must be a non-empty list of texts, got {shown(values)}")
    if len(values) > MAX_CHOICE_ITEMS:
        raise _invalid("choice", f"must hold at most {MAX_CHOICE_ITEMS} texts, got {len(values)}")
    for text in values:
        _check_text("choice", text)
    if sum(map(len, values)) > MAX_GRAMMAR_CHARS:
        raise _invalid("choice", f"must have at most {MAX_GRAMMAR_CHARS} characters in all")
    return tuple(dict.fromkeys(values))
