"""Answers in channels, as gpt-oss writes them: analysis, commentary with calls, final."""

import re
from collections.abc import Callable

from rayinfer.tool_calls.call_writer import CallWriter
from rayinfer.tool_calls.cursor import Cursor, NotACall, Reading

_MESSAGE = "<|message|>"
_BEGINNINGS = ("<|start|>", "<|channel|>", " to=")
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")
_MAX_HEADER_CHARS = 1024


def read_harmony(cursor: Cursor, calls: CallWriter) -> Reading[None]:
    """Read messages to the end of the text; without a header they are text."""
    beginning = yield from cursor.match(*_BEGINNINGS)
    while True:
        sink: Callable[[str], None] = calls.add_text
        if beginning:
            try:
                header = yield from cursor.read_until(_MESSAGE, limit=_MAX_HEADER_CHARS)
                yield from cursor.expect(_MESSAGE)
            except NotACall:
                calls.add_text(cursor.read_so_far())
            else:
                cursor.commit()
                sink = _sink_of(beginning + header, calls)
        end = yield from cursor.stream_until(_ENDS, sink)
        if not end:
            return
        beginning = end if end in _BEGINNINGS else (yield from cursor.match(*_BEGINNINGS))


def _sink_of(header: str, calls: CallWriter) -> Callable[[str], None]:
    channel = re.search(r"<\|channel\|>\s*(\w+)", header)
    recipient = _RECIPIENT.search(header)
    if recipient is not None and recipient[1] != "user":
        calls.begin(recipient[1])
        return calls.add_arguments
    return calls.add_reasoning if channel is not None and channel[1] == "analysis" else calls.add_text
