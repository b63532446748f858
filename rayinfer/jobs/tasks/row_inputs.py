"""Inputs of rows: prompts, conversations and texts from their columns, and their sampling parameters."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from rayinfer.errors import ConfigError, InvalidParameter, NotSupported, shown
from rayinfer.sampling_params import SamplingParams

Prompt = str | list[int] | list[Mapping[str, Any]]  # text, token ids or a conversation

COLUMNS = ("messages", "prompt", "prompt_token_ids", "text", "input", "inputs")  # where a prompt is looked for
ROW_SETTINGS = "sampling_params"
_SAMPLING_FIELDS = frozenset(field.name for field in fields(SamplingParams))
_BODY_LIMITS = ("max_completion_tokens", "max_tokens")
_UNSUPPORTED = ("tools", "tool_choice", "functions", "response_format", "logprobs", "top_logprobs", "echo", "suffix")


@dataclass(frozen=True, kw_only=True, slots=True)
class InputSettings:
    """Columns that make a row's input; by default the first of COLUMNS that a row has."""

    column: str | None = None
    template: str | None = None  # with {column} in it
    system: str | None = None  # instructions before the prompt, which makes it a conversation
    is_chat: bool = False  # prompts that are texts become the user's message of a conversation

    def __post_init__(self) -> None:
        if self.column is not None and self.template is not None:
            raise ConfigError("a prompt column and a prompt template exclude each other")
        if self.template is not None:
            template_columns(self.template)


DEFAULT_INPUTS = InputSettings()


def template_columns(template: str) -> list[str]:
    """Return the columns that a template names; raises ConfigError for one that is not plain."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"prompt_template {shown(template)}: {error}; write {{{{ and }}}} for braces") from None
    names = [name for _, name, _, _ in parts if name is not None]
    wrong = [name for name in names if not name.replace("_", "a").replace("-", "a").replace(" ", "a").isalnum()]
    if wrong or any(spec or conversion for _, _, spec, conversion in parts):
        raise ConfigError(f"prompt_template may name columns only, as {{text}}, got {shown(template)}")
    if not names:
        raise ConfigError(f"prompt_template names no column, as {{text}}: every row would be alike; got {template!r}")
    return names


def read_input(data: Mapping[str, Any], settings: InputSettings) -> Any:
    """Return what a row has as its input, unchecked; raises InvalidParameter where it has none."""
    if settings.template is not None:
        return _filled(settings.template, data)
    if settings.column is not None:
        return _column(data, settings.column)
    if (body := openai_body(data)) is not None:
        data = body
    for name in COLUMNS:
        if data.get(name) is not None:
            return data[name]
    if nulls := [name for name in COLUMNS if name in data]:
        raise InvalidParameter(f"the row's {nulls[0]} is null", nulls[0])
    raise InvalidParameter(
        f"no column for the prompt: one of {', '.join(COLUMNS)} is looked for, the row has "
        f"{shown(', '.join(data)) if data else 'none'}; name one with prompt_column or prompt_template"
    )


def read_prompt(data: Mapping[str, Any], settings: InputSettings) -> Prompt:
    """Return a row's prompt; raises InvalidParameter."""
    value = read_input(data, settings)
    if isinstance(value, str):
        if not settings.is_chat and settings.system is None:
            return value
        return _conversation([{"role": "user", "content": value}], settings)
    if isinstance(value, list) and value and all(isinstance(part, Mapping) for part in value):
        return _conversation(value, settings)
    if isinstance(value, list) and value and all(isinstance(part, int) and part >= 0 for part in value):
        return value
    raise InvalidParameter(
        f"the prompt must be a text, token ids or messages, none of them empty, got {shown(value)}", "prompt"
    )


def openai_body(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the body of a line of OpenAI's batch files; None for a row of another shape."""
    body = data.get("body")
    return body if isinstance(body, Mapping) and "url" in data else None


def check_endpoint(data: Mapping[str, Any], inputs: Mapping[str, str]) -> None:
    """Raise NotSupported for a batch line of another endpoint than these, InvalidParameter without its input."""
    if (body := openai_body(data)) is None:
        return
    name = inputs.get(data["url"]) if isinstance(data["url"], str) else None
    if name is None:
        known = " and ".join(inputs)
        raise NotSupported(f"url {shown(data['url'])}: this job computes {known}; a service has the others", "url")
    if body.get(name) is None:
        raise InvalidParameter(f"the body has no {name}, which {data['url']} needs", name)


def row_sampling_params(data: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    """Apply a row's own sampling parameters to the job's; raises InvalidParameter and NotSupported."""
    own = data.get(ROW_SETTINGS)
    if own is None:
        body = openai_body(data)
        return defaults if body is None else _with(defaults, _body_settings(body))
    if not isinstance(own, Mapping):
        raise InvalidParameter(f"{ROW_SETTINGS} must be an object, got {shown(own)}", ROW_SETTINGS)
    return _with(defaults, own)


def order_text(data: Mapping[str, Any], settings: InputSettings) -> str:
    """Return a text that begins as the row's prompt does and is about as long; empty for a row without one."""
    try:
        value = read_input(data, settings)
    except InvalidParameter:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        parts = (part.get("content") if isinstance(part, Mapping) else part for part in value)
        return "\n".join(map(str, parts))
    return ""


def _filled(template: str, data: Mapping[str, Any]) -> str:
    parts = []
    for text, name, _, _ in string.Formatter().parse(template):
        parts.append(text)
        if name is not None:
            parts.append(str(_column(data, name)))
    return "".join(parts)


def _column(data: Mapping[str, Any], name: str) -> Any:
    if data.get(name) is None:
        raise InvalidParameter(f"the row has no column {name!r}, only {shown(', '.join(data))}", name)
    return data[name]


def _conversation(messages: Sequence[Mapping[str, Any]], settings: InputSettings) -> list[Mapping[str, Any]]:
    system = [] if settings.system is None else [{"role": "system", "content": settings.system}]
    return [*system, *messages]


def _body_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    unsupported = [name for name in _UNSUPPORTED if body.get(name)]
    if unsupported:
        raise NotSupported(f"the body's {', '.join(unsupported)}: not supported in jobs", unsupported[0])
    given = {name: body[name] for name in _SAMPLING_FIELDS if body.get(name) is not None}
    limit = next((body[name] for name in _BODY_LIMITS if body.get(name) is not None), None)
    if limit is not None:
        given["max_tokens"] = limit
    biases = given.get("logit_bias")
    if isinstance(biases, Mapping):
        given["logit_bias"] = {int(key) if str(key).isdigit() else key: bias for key, bias in biases.items()}
    return given


def _with(defaults: SamplingParams, settings: Mapping[str, Any]) -> SamplingParams:
    unknown = sorted(map(str, settings.keys() - _SAMPLING_FIELDS))
    if unknown:
        raise InvalidParameter(f"{ROW_SETTINGS} has unknown names: {', '.join(unknown)}", ROW_SETTINGS)
    return replace(defaults, **settings) if settings else defaults
