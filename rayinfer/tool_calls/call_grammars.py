"""Grammars that hold an answer to tool calls, in llguidance's Lark."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rayinfer.errors import InvalidParameter
from rayinfer.grammars.grammar_text import json_options, lark_literal
from rayinfer.tool_calls.formats import FORMATS, CallSyntax, ToolFormat
from rayinfer.tool_calls.tools import Tool, ToolChoice

MAX_CALLS = 32  # of one constrained answer
MAX_SCHEMA_BYTES = 2**18  # of a tool, descriptions included, which the grammar leaves out
_ANNOTATIONS = ("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
# Beside these, objects may have more properties than they name.
_OPENING = {
    "$ref",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "patternProperties",
    "unevaluatedProperties",
    "minProperties",
}
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """A grammar, and the format that reads what it lets through."""

    lark: str
    tool_format: ToolFormat


def call_grammar(
    tool_format: ToolFormat,
    choice: ToolChoice,
    special_tokens: Collection[str] = (),
    *,
    other_answer: str | None = None,
) -> CallGrammar:
    """Return the grammar of answers with calls.

    Formats whose arguments are not JSON, and those with tokens that Lark cannot name, are replaced by `generic`.
    `other_answer` is a JSON schema of answers without calls; any text without it. Schemas of strict tools are kept
    exactly, or refused; of others, keywords that cannot be expressed are left out. Raises InvalidParameter.
    """
    if tool_format.syntax is None:
        tool_format = FORMATS["generic"]
    assert tool_format.syntax is not None
    writer = _Writer(tool_format, tool_format.syntax, choice, special_tokens)
    if choice.mode == "required":
        rules = writer.required()
    elif other_answer is not None:
        rules = ["start: calls | other", f"other: {_json(json.loads(other_answer), is_strict=True)}", writer.calls()]
    else:
        rules = writer.optional()
    return CallGrammar("\n".join([*rules, *writer.call()]), tool_format)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the rules of a grammar."""

    tool_format: ToolFormat
    syntax: CallSyntax
    choice: ToolChoice
    special_tokens: Collection[str]

    def required(self) -> list[str]:
        """Write the rules of answers that are calls; those in channels may have an analysis first."""
        analysis = ""
        if self.tool_format.is_harmony and "<|channel|>" in self.special_tokens:
            begin = self._literal("<|channel|>analysis<|message|>")
            analysis = f"({begin} /(?s:.*)/ {self._literal('<|end|><|start|>assistant')})? "
        return [f"start: {analysis}calls", self.calls()]

    def optional(self) -> list[str]:
        """Write the rules of answers in which text may precede calls, and follow them."""
        if self.tool_format.is_harmony:
            raise InvalidParameter(
                "tools: strict is not supported by this model unless tool_choice is required",
                "tools",
                "unsupported_parameter",
            )
        beginning = self.syntax.opening + self.syntax.begin
        marker = next((each for each in self.tool_format.openers if beginning.startswith(each)), "")
        if not marker:  # such calls are whole answers
            return ["start: calls | TEXT?", "TEXT: /[^{\\s](?s:.)*/", self.calls()]
        is_single = self.choice.max_calls == 1
        if marker in self.special_tokens:  # which text never has
            return [f"start: TEXT? (calls{'' if is_single else ' TEXT?'})?", "TEXT: /(?s:.+)/", self.calls()]
        start = "start: lead calls | TEXT" if is_single else f"start: (lead calls){{0,{MAX_CALLS}}} TEXT"
        lead = f"lead[lazy]: TEXT {json.dumps(marker, ensure_ascii=False)}"
        return [start, lead, "TEXT: /(?s:.*)/", self.calls(marker)]

    def calls(self, marker: str = "") -> str:
        """Write the rule of calls, all but a marker in front of them, which then begins each list of them."""
        opening, most = self.syntax.opening, self.choice.max_calls or MAX_CALLS
        if marker and not opening:
            return f"calls: {self._call(self.syntax.begin.removeprefix(marker))}"
        more = f" ({self._literal(self.syntax.separator)} call){{0,{most - 1}}}" if most > 1 else ""
        parts = (self._literal(opening.removeprefix(marker)), f"call{more}", self._literal(self.syntax.closing))
        return f"calls: {' '.join(filter(None, parts))}\ncall: {self._call(self.syntax.begin)}"

    def call(self) -> Iterator[str]:
        """Write the rules of the tools and their arguments."""
        for index, tool in enumerate(self.choice.tools):
            yield f"tool{index}: {self._literal(tool.name + self.syntax.middle)} arguments{index}"
            yield f"arguments{index}: {_arguments(tool)}"

    def _call(self, begin: str) -> str:
        names = " | ".join(f"tool{index}" for index in range(len(self.choice.tools)))
        return " ".join(filter(None, (self._literal(begin), f"({names})", self._literal(self.syntax.end))))

    def _literal(self, text: str) -> str:
        return lark_literal(text, self.special_tokens)


def _arguments(tool: Tool) -> str:
    num_bytes = len(msgspec.json.encode(tool.parameters))
    if num_bytes > MAX_SCHEMA_BYTES:  # before anything slow is done with them
        raise InvalidParameter(
            f"tools: the parameters of {tool.name!r} must have at most {MAX_SCHEMA_BYTES} bytes, got {num_bytes}",
            "tools",
        )
    schema = arguments_schema(tool.parameters)
    if "$ref" not in schema and schema.get("type", "object") != "object":
        raise InvalidParameter(f"tools: the parameters of {tool.name!r} must be an object", "tools")
    return _json(schema if "$ref" in schema else {**schema, "type": "object"}, is_strict=tool.is_strict)


def _json(schema: Mapping[str, Any], *, is_strict: bool) -> str:
    if "x-guidance" in schema:
        raise InvalidParameter("tools: a schema must not have the keyword x-guidance", "tools")
    options = {**json_options(is_compact=True), "lenient": not is_strict, "coerce_one_of": not is_strict}
    options |= {"whitespace_flexible": True, "whitespace_pattern": r"\x20"}  # models write calls on one line
    text = json.dumps({**schema, "x-guidance": options}, separators=(",", ":"))
    return "%json " + text.replace("::=", ":\\u003a=")  # which only GBNF has


def arguments_schema(schema: Any, *, is_closed: bool = True) -> Any:
    """Return a schema without the keywords that constrain nothing, and closed where it does not say that it is open.

    Closed objects have the properties that are named and no others, which a model would have to make up.
    """
    if not isinstance(schema, Mapping):
        return schema
    kept: dict[str, Any] = {}
    is_closed = is_closed and not _OPENING & schema.keys()
    for key, value in schema.items():
        if key in _ANNOTATIONS:
            continue
        if key in _SCHEMAS:
            value = arguments_schema(value, is_closed=is_closed and key == "items")
        elif key in _SCHEMA_LISTS and isinstance(value, list):
            value = [arguments_schema(each, is_closed=False) for each in value]
        elif key in _SCHEMA_MAPS and isinstance(value, Mapping):
            inner = is_closed and key == "properties"
            value = {name: arguments_schema(each, is_closed=inner) for name, each in value.items()}
        kept[key] = value
    if is_closed and schema.get("properties") and "additionalProperties" not in schema:
        kept["additionalProperties"] = False
    return kept
