"""Calls that are no JSON objects: XML, Python, OLMo's, Gemma's, Mistral's and DeepSeek's."""

import json
from typing import Any

from rayinfer.tool_calls.call_writer import CallWriter
from rayinfer.tool_calls.cursor import Cursor, NotACall, Reading
from rayinfer.tool_calls.json_calls import MAX_NAME_CHARS, loads, read_call_list, stream_object
from rayinfer.tool_calls.literals import LiteralReader

MAX_CALL_CHARS = 1 << 20  # of a call that is read to its end before it is passed on

_DEEPSEEK_CALL, _DEEPSEEK_END, _DEEPSEEK_SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_DEEPSEEK_LAST = "<｜tool▁calls▁end｜>"


def read_xml_call(cursor: Cursor, calls: CallWriter) -> Reading[None]:
    """Read what follows `<function=`; the tool's schema decides of which type a value is."""
    name = (yield from cursor.read_until(">", limit=MAX_NAME_CHARS)).strip()
    yield from cursor.expect(">")
    if not name:
        raise NotACall
    properties = calls.tools.get(name, {}).get("properties")
    arguments: dict[str, Any] = {}
    while True:
        yield from cursor.skip_space()
        if (yield from cursor.expect("<parameter=", "</function>")) == "</function>":
            break
        key = (yield from cursor.read_until(">", limit=MAX_NAME_CHARS)).strip()
        yield from cursor.expect(">")
        value = yield from cursor.read_until("</parameter>", "\n<parameter=", "\n</function>", limit=MAX_CALL_CHARS)
        yield from cursor.match("</parameter>")
        schema = properties.get(key) if isinstance(properties, dict) else None
        arguments[key] = _typed(value.removeprefix("\n").removesuffix("\n"), schema)
    calls.add(name, json.dumps(arguments, ensure_ascii=False))
    cursor.commit()


def read_python_calls(cursor: Cursor, calls: CallWriter) -> Reading[None]:
    """Read `[f(a=1), g()]`, of known tools only."""
    yield from cursor.expect("[")
    start = cursor.position
    yield from cursor.skip_space()
    name = (yield from cursor.read_until("(", limit=MAX_NAME_CHARS)).strip()
    if name not in calls.tools:
        raise NotACall
    text = yield from _python_list(cursor, start)
    reader = LiteralReader(text)
    found = []
    while True:
        name = reader.word()
        reader.expect("(")
        found.append((name, reader.members(")", "=")))
        if not reader.match(","):
            break
    if not reader.is_at_end:
        raise NotACall
    for name, arguments in found:
        calls.add(name, json.dumps(arguments, ensure_ascii=False))
    cursor.commit()


def read_olmo_calls(cursor: Cursor, calls: CallWriter, end: str) -> Reading[None]:
    """Read `f(a=1)` and `g()`, one behind the other, up to the end tag."""
    text = yield from cursor.read_until(end, limit=MAX_CALL_CHARS)
    yield from cursor.expect(end)
    reader = LiteralReader(text)
    found = []
    while not reader.is_at_end:
        name = reader.word()
        reader.expect("(")
        found.append((name, reader.members(")", "=")))
    if not found:
        raise NotACall
    for name, arguments in found:
        calls.add(name, json.dumps(arguments, ensure_ascii=False))
    cursor.commit()


def read_gemma_call(cursor: Cursor, calls: CallWriter, end: str) -> Reading[None]:
    """Read `call:f{k:v}`, whose strings stand between tokens of their own."""
    yield from cursor.skip_space()
    text = yield from cursor.read_until(end, limit=MAX_CALL_CHARS)
    yield from cursor.expect(end)
    reader = LiteralReader(text, ('<|"|>', "<escape>", '"'), has_escapes=False)
    reader.expect("call:")
    name = reader.word()
    reader.expect("{")
    arguments = reader.members("}", ":")
    if not reader.is_at_end:
        raise NotACall
    calls.add(name, json.dumps(arguments, ensure_ascii=False))
    cursor.commit()


def read_mistral_calls(cursor: Cursor, calls: CallWriter) -> Reading[None]:
    """Read a list of objects, or `f[ARGS]{...}`."""
    yield from cursor.skip_space()
    if (yield from cursor.peek()) == "[":
        yield from read_call_list(cursor, calls)
        return
    name = (yield from cursor.read_until("[ARGS]", "[CALL_ID]", "{", limit=MAX_NAME_CHARS)).strip()
    if (yield from cursor.match("[CALL_ID]")):
        yield from cursor.read_until("[ARGS]", limit=MAX_NAME_CHARS)
    yield from cursor.match("[ARGS]")
    yield from _stream_arguments(cursor, calls, name)


def read_deepseek_calls(cursor: Cursor, calls: CallWriter) -> Reading[None]:
    """Read calls with JSON arguments, which version 3 puts into a fenced block."""
    while True:
        yield from cursor.skip_space()
        if (yield from cursor.expect(_DEEPSEEK_CALL, _DEEPSEEK_LAST)) == _DEEPSEEK_LAST:
            cursor.commit()
            return
        name = (yield from cursor.read_until(_DEEPSEEK_SEPARATOR, limit=MAX_NAME_CHARS)).strip()
        yield from cursor.expect(_DEEPSEEK_SEPARATOR)
        is_fenced = name == "function"
        if is_fenced:
            name = (yield from cursor.read_until("\n", limit=MAX_NAME_CHARS)).strip()
            yield from cursor.skip_space()
            yield from cursor.match("```json")
        yield from _stream_arguments(cursor, calls, name)
        if is_fenced:
            yield from cursor.close("```")
        yield from cursor.close(_DEEPSEEK_END)


def _stream_arguments(cursor: Cursor, calls: CallWriter, name: str) -> Reading[None]:
    yield from cursor.skip_space()
    if not name or (yield from cursor.peek()) != "{":
        raise NotACall
    calls.begin(name)
    cursor.commit()
    yield from stream_object(cursor, calls.add_arguments)


def _python_list(cursor: Cursor, start: int) -> Reading[str]:
    """Read up to the bracket that closes the list, and return what stands before it."""
    depth, quote, is_escaped = 1, "", False
    while depth:
        char = yield from cursor.peek()
        if not char or cursor.position - start > MAX_CALL_CHARS:
            raise NotACall
        if is_escaped:
            is_escaped = False
        elif quote:
            is_escaped = char == "\\"
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "[({") - (char in "])}")
        cursor.position += 1
    return cursor.text[start : cursor.position - 1]


def _typed(text: str, schema: Any) -> Any:
    """Return a value of the type that the schema wants, or the text itself."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = kind if isinstance(kind, list) else [kind]
    if "string" in kinds and not (text.strip() == "null" and "null" in kinds):
        return text
    if text.strip() in ("True", "False", "None"):
        text = {"True": "true", "False": "false", "None": "null"}[text.strip()]
    try:
        return loads(text)
    except NotACall:
        return text
