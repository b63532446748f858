"""The formats in which models write tool calls."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from rayinfer.tool_calls.call_writer import CallWriter
from rayinfer.tool_calls.cursor import Cursor, NotACall, Reading
from rayinfer.tool_calls.json_calls import read_call_list, read_call_object
from rayinfer.tool_calls.other_calls import (
    read_deepseek_calls,
    read_gemma_call,
    read_mistral_calls,
    read_olmo_calls,
    read_python_calls,
    read_xml_call,
)

ToolFormatName = Literal[
    "hermes",
    "qwen3_coder",
    "llama3_json",
    "pythonic",
    "mistral",
    "olmo",
    "gemma",
    "phi4_mini",
    "granite",
    "deepseek",
    "harmony",
    "generic",
]
CallReader = Callable[[Cursor, CallWriter], Reading[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class CallSyntax:
    """Texts around the names and the JSON arguments of calls, as a grammar writes them."""

    begin: str
    middle: str
    end: str
    separator: str = "\n"
    opening: str = ""  # before the first call
    closing: str = ""  # behind the last one


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolFormat:
    """A format: markers that begin calls, each with a reader of what follows it."""

    name: str
    openers: Mapping[str, CallReader] = field(default_factory=dict)
    bare: CallReader | None = None  # of calls at the beginning of an answer, without a marker
    has_special_markers: bool = False  # that texts without special tokens lack
    has_short_ids: bool = False  # of nine characters
    takes_argument_text: bool = False  # the template wants arguments as JSON text, not as objects
    is_harmony: bool = False
    is_prompted: bool = False  # tools are described in a system prompt of ours
    syntax: CallSyntax | None = None  # None where arguments are not JSON, or grammars cannot name the markers

    def without_tokens(self, tokens: Iterable[str]) -> "ToolFormat":
        """Return the format that leaves out other special tokens, which texts with special tokens have at their end."""
        return replace(self, openers={**dict.fromkeys(tokens, _drop), **self.openers})


def _read_tagged(cursor: Cursor, calls: CallWriter, end: str) -> Reading[None]:
    """Read a JSON object, or a list of them, between tags; the end may lack its tag."""
    yield from cursor.skip_space()
    if (yield from cursor.peek()) == "[":
        yield from read_call_list(cursor, calls)
    else:
        yield from read_call_object(cursor, calls)
    yield from cursor.close(end)


def _read_tagged_xml(cursor: Cursor, calls: CallWriter) -> Reading[None]:
    yield from cursor.skip_space()
    if (yield from cursor.peek()) in ("{", "["):
        yield from _read_tagged(cursor, calls, "</tool_call>")
        return
    yield from cursor.expect("<function=")
    yield from _read_xml(cursor, calls)


def _read_xml(cursor: Cursor, calls: CallWriter) -> Reading[None]:
    yield from read_xml_call(cursor, calls)
    yield from cursor.close("</tool_call>")


def _read_bare(cursor: Cursor, calls: CallWriter) -> Reading[None]:
    """Read JSON objects at the beginning of an answer: only names of tools make them calls."""
    yield from _read_objects(cursor, calls, is_bare=True)


def _read_objects(cursor: Cursor, calls: CallWriter, *, is_bare: bool = False) -> Reading[None]:
    while True:
        yield from cursor.skip_space()
        yield from read_call_object(cursor, calls, calls.tools if is_bare else None)
        yield from cursor.skip_space()
        separator = yield from cursor.match(";", ",")
        yield from cursor.skip_space()
        if not separator and (yield from cursor.peek()) != "{":
            return  # spaces are no text yet


def _read_python_part(cursor: Cursor, calls: CallWriter) -> Reading[None]:
    yield from cursor.skip_space()
    yield from read_python_calls(cursor, calls)
    yield from cursor.close("<|python_end|>")


def _read_bare_python(cursor: Cursor, calls: CallWriter) -> Reading[None]:
    yield from cursor.skip_space()
    yield from read_python_calls(cursor, calls)


def _read_list(cursor: Cursor, calls: CallWriter) -> Reading[None]:
    if (yield from cursor.peek()) != "[":
        raise NotACall
    yield from read_call_list(cursor, calls)


def _drop(cursor: Cursor, calls: CallWriter) -> Reading[None]:
    """Leave out a special token that ends answers."""
    cursor.commit()
    yield from ()


_HERMES = {"<tool_call>": partial(_read_tagged, end="</tool_call>")}
_ANGLE = {"<|tool_call|>": partial(_read_tagged, end="<|/tool_call|>")}
_TAGGED = CallSyntax(begin='<tool_call>\n{"name": "', middle='", "arguments": ', end="}\n</tool_call>")
_LISTED = CallSyntax(
    opening="<|tool_call|>[", begin='{"name": "', middle='", "arguments": ', end="}", separator=", ", closing="]"
)
_CHANNELS = CallSyntax(
    begin="<|channel|>commentary to=functions.",
    middle=" <|constrain|>json<|message|>",
    end="",
    separator="<|call|><|start|>assistant",
)
_LLAMA_ENDS = {"<|eom_id|>": _drop, "<|eot_id|>": _drop, "<|eot|>": _drop, "<|eom|>": _drop}

FORMATS: Mapping[str, ToolFormat] = {
    each.name: each
    for each in (
        ToolFormat(name="hermes", openers=_HERMES, syntax=_TAGGED),
        ToolFormat(
            name="qwen3_coder",
            openers={"<tool_call>": _read_tagged_xml, "<function=": _read_xml},
            syntax=_TAGGED,
        ),
        ToolFormat(
            name="llama3_json",
            openers={"<|python_tag|>": _read_objects, **_LLAMA_ENDS},
            bare=_read_bare,
            has_special_markers=True,
            syntax=CallSyntax(begin='{"name": "', middle='", "parameters": ', end="}", separator="; "),
        ),
        ToolFormat(
            name="pythonic",
            openers={
                "<|python_start|>": _read_python_part,
                "<|python_tag|>": _read_python_part,
                "<|python_end|>": _drop,
                **_LLAMA_ENDS,
            },
            bare=_read_bare_python,
            has_special_markers=True,
        ),
        ToolFormat(
            name="mistral",
            openers={"[TOOL_CALLS]": read_mistral_calls, "</s>": _drop},
            has_special_markers=True,
            has_short_ids=True,
        ),
        ToolFormat(
            name="olmo",
            openers={"<function_calls>": partial(read_olmo_calls, end="</function_calls>")},
        ),
        ToolFormat(
            name="gemma",
            openers={
                "<|tool_call>": partial(read_gemma_call, end="<tool_call|>"),
                "<start_function_call>": partial(read_gemma_call, end="<end_function_call>"),
                **dict.fromkeys(("<end_of_turn>", "<turn|>", "<|tool_response>", "<eos>"), _drop),
                "<start_function_response>": _drop,
            },
            has_special_markers=True,
        ),
        ToolFormat(
            name="phi4_mini",
            openers={"functools": _read_list, **_ANGLE, "<|end|>": _drop, "<|endoftext|>": _drop},
            has_special_markers=True,
            syntax=replace(_LISTED, closing="]<|/tool_call|>"),
        ),
        ToolFormat(
            name="granite",
            openers={**_ANGLE, **_HERMES, "<|end_of_text|>": _drop},
            has_special_markers=True,
            syntax=_LISTED,
        ),
        ToolFormat(
            name="deepseek",
            openers={"<｜tool▁calls▁begin｜>": read_deepseek_calls, "<｜end▁of▁sentence｜>": _drop},
            has_special_markers=True,
            takes_argument_text=True,
            syntax=CallSyntax(
                opening="<｜tool▁calls▁begin｜>",
                begin="<｜tool▁call▁begin｜>",
                middle="<｜tool▁sep｜>",
                end="<｜tool▁call▁end｜>",
                separator="",
                closing="<｜tool▁calls▁end｜>",
            ),
        ),
        ToolFormat(name="harmony", is_harmony=True, has_special_markers=True, syntax=_CHANNELS),
        ToolFormat(name="generic", openers=_HERMES, bare=_read_bare, is_prompted=True, syntax=_TAGGED),
    )
}
