"""The formats in which models write tool calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from rayinfer.tool_calls.call_writer import CallWriter
from rayinfer.tool_calls.cursor import Cursor, NotACall, Reading
from rayinfer.tool_calls.json_calls import read_call_list, read_call_object
from rayinfer.tool_calls.other_calls import (
    read_deepseek_calls,
    read_gemma_call,
    read_mistral_calls,
    read_python_calls,
    read_xml_call,
)

CallReader = Callable[[Cursor, CallWriter], Reading[None]]


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
_LLAMA_ENDS = {"<|eom_id|>": _drop, "<|eot_id|>": _drop, "<|eot|>": _drop, "<|eom|>": _drop}

FORMATS: Mapping[str, ToolFormat] = {
    each.name: each
    for each in (
        ToolFormat(name="hermes", openers=_HERMES),
        ToolFormat(name="qwen3_coder", openers={"<tool_call>": _read_tagged_xml, "<function=": _read_xml}),
        ToolFormat(
            name="llama3_json",
            openers={"<|python_tag|>": _read_objects, **_LLAMA_ENDS},
            bare=_read_bare,
            has_special_markers=True,
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
        ),
        ToolFormat(name="granite", openers={**_ANGLE, **_HERMES, "<|end_of_text|>": _drop}, has_special_markers=True),
        ToolFormat(
            name="deepseek",
            openers={"<｜tool▁calls▁begin｜>": read_deepseek_calls, "<｜end▁of▁sentence｜>": _drop},
            has_special_markers=True,
            takes_argument_text=True,
        ),
        ToolFormat(name="harmony", is_harmony=True, has_special_markers=True, takes_argument_text=True),
        ToolFormat(name="generic", openers=_HERMES, bare=_read_bare, is_prompted=True),
    )
}
