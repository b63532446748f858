"""Tools that a request offers, and the choice among them, checked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rayinfer.errors import InvalidParameter, shown
from rayinfer.tool_calls.json_calls import MAX_NAME_CHARS

MAX_TOOLS = 512
NAME_PATTERN = rf"[A-Za-z0-9_][A-Za-z0-9_.:/-]{{0,{MAX_NAME_CHARS - 1}}}"

Mode = Literal["auto", "required"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client runs."""

    name: str
    parameters: Mapping[str, Any]  # a JSON schema of its arguments, which are an object
    is_strict: bool
    definition: Mapping[str, Any]  # in OpenAI's form, as templates read it


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolChoice:
    """The tools that an answer may call, and whether it must."""

    tools: tuple[Tool, ...]
    mode: Mode = "auto"
    max_calls: int | None = None  # of one answer; None for no limit

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """Schemas of arguments by name."""
        return {tool.name: tool.parameters for tool in self.tools}

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar holds the answer to the calls."""
        return self.mode == "required" or any(tool.is_strict for tool in self.tools)


def read_tool_choice(
    tools: Sequence[Mapping[str, Any]] | None, choice: str | Mapping[str, Any] | None, *, parallel: bool = True
) -> ToolChoice | None:
    """Read OpenAI's fields; None where no tool may be called. Raises InvalidParameter."""
    known = _read_tools(tools or ())
    if choice is None or choice == "auto":
        mode: Mode = "auto"
    elif choice == "none":
        return None
    elif choice == "required":
        mode = "required"
    elif isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        known, mode = _allowed(known, choice)
    elif isinstance(choice, Mapping):
        return ToolChoice(tools=(_named(known, choice),), mode="required", max_calls=1)
    else:
        raise _invalid_choice(choice)
    if not known:
        if mode == "required":
            raise InvalidParameter("tool_choice is only allowed with tools", "tool_choice")
        return None
    return ToolChoice(tools=known, mode=mode, max_calls=None if parallel else 1)


def _read_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    if len(tools) > MAX_TOOLS:
        raise InvalidParameter(f"tools must hold at most {MAX_TOOLS} tools, got {len(tools)}", "tools")
    known: dict[str, Tool] = {}
    for position, definition in enumerate(tools):
        tool = _read_tool(definition, f"tools.{position}")
        if tool.name in known:
            raise InvalidParameter(f"tools.{position}: there are two tools {tool.name!r}", "tools")
        known[tool.name] = tool
    return tuple(known.values())


def _read_tool(definition: Mapping[str, Any], path: str) -> Tool:
    if definition.get("type") != "function":
        raise InvalidParameter(
            f"{path}: tools of type {shown(definition.get('type'))} are not supported, only function",
            f"{path}.type",
            "unsupported_parameter",
        )
    function = definition.get("function")
    if not isinstance(function, Mapping):
        raise InvalidParameter(f"{path}.function must be an object", f"{path}.function")
    name, parameters, strict = function.get("name"), function.get("parameters"), function.get("strict")
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
        raise InvalidParameter(
            f"{path}.function.name must have 1 to {MAX_NAME_CHARS} letters, digits or _ . : / - and begin with none of "
            f"the last four, got {shown(name)}",
            f"{path}.function.name",
        )
    if not isinstance(function.get("description"), str | None):
        raise InvalidParameter(f"{path}.function.description must be a string", f"{path}.function.description")
    if not isinstance(strict, bool | None):
        raise InvalidParameter(f"{path}.function.strict must be true or false", f"{path}.function.strict")
    if not isinstance(parameters, Mapping | None):
        raise InvalidParameter(f"{path}.function.parameters must be a JSON schema", f"{path}.function.parameters")
    return Tool(name, parameters or {}, bool(strict), definition)


def _named(tools: Sequence[Tool], choice: Mapping[str, Any]) -> Tool:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise _invalid_choice(choice)
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        raise InvalidParameter(f"tool_choice: there is no tool {name!r:.100} in tools", "tool_choice")
    return found


def _allowed(tools: Sequence[Tool], choice: Mapping[str, Any]) -> tuple[tuple[Tool, ...], Mode]:
    allowed = choice.get("allowed_tools")
    names = allowed.get("tools") if isinstance(allowed, Mapping) else None
    mode = allowed.get("mode", "auto") if isinstance(allowed, Mapping) else None
    if not isinstance(names, list) or not names or mode not in ("auto", "required"):
        raise InvalidParameter(
            "tool_choice.allowed_tools must have a mode, auto or required, and a list of tools", "tool_choice"
        )
    if not all(isinstance(each, Mapping) for each in names):
        raise _invalid_choice(choice)
    return tuple(_named(tools, each) for each in names), mode


def _invalid_choice(choice: object) -> InvalidParameter:
    return InvalidParameter(
        f"tool_choice must be none, auto, required, a function with its name or allowed_tools, got {shown(choice)}",
        "tool_choice",
    )
