"""The parser of one answer: reasoning, then text with tool calls in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayinfer.tool_calls.call_writer import CallWriter
from rayinfer.tool_calls.cursor import Cursor, NotACall, Reading, first_marker, held_back, trailing_space
from rayinfer.tool_calls.deltas import ChatDelta, ReasoningDelta, TextDelta
from rayinfer.tool_calls.formats import CallReader, ToolFormat
from rayinfer.tool_calls.harmony import read_harmony


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags around reasoning."""

    begin: str = "<think>"
    end: str = "</think>"


class AnswerParser:
    """Turns text, however it is cut, into deltas; all of it comes out once.

    What looks like a call and is none is text. A call that the end of the text cuts short is text as well, or, where
    its arguments have been passed on already, a call with arguments as far as they were written.
    """

    def __init__(
        self,
        tool_format: ToolFormat | None = None,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        tags: ReasoningTags | None = None,
        *,
        begins_in_reasoning: bool = False,
        max_calls: int | None = None,
    ) -> None:
        self._format = tool_format
        self._tags = tags
        self._begins_in_reasoning = begins_in_reasoning
        self._cursor = Cursor()
        has_short_ids = tool_format is not None and tool_format.has_short_ids
        self._calls = CallWriter(tools or {}, has_short_ids=has_short_ids, max_calls=max_calls)
        self._reading = self._read()
        self._num_uncounted = 0
        self._was_reasoning = begins_in_reasoning
        self._reasoning_tokens = 0.0

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of the reasoning so far; those of a tag count with what follows it."""
        return round(self._reasoning_tokens)

    def add(self, text: str, token_ids: Sequence[int] = ()) -> list[ChatDelta]:
        """Return the deltas that more text completes; what may still become a tag is held back."""
        self._cursor.add(text)
        self._num_uncounted += len(token_ids)
        next(self._reading, None)
        return self._counted(self._calls.take())

    def end(self) -> list[ChatDelta]:
        """Return what was held back, at the end of the text."""
        self._cursor.is_final = True
        next(self._reading, None)
        deltas = self._counted(self._calls.take())
        if self._was_reasoning:
            self._reasoning_tokens += self._num_uncounted
        self._num_uncounted = 0
        return deltas

    def _read(self) -> Reading[None]:
        if self._format is not None and self._format.is_harmony:
            yield from read_harmony(self._cursor, self._calls)
            return
        if self._tags is not None:
            yield from self._read_reasoning(self._tags)
        if self._format is not None and self._format.bare is not None:
            yield from self._read_calls(self._format.bare)
        while marker := (yield from self._read_text()):
            assert self._format is not None
            yield from self._read_calls(self._format.openers[marker])

    def _read_reasoning(self, tags: ReasoningTags) -> Reading[None]:
        yield from self._cursor.skip_space()
        begins = yield from self._cursor.match(tags.begin)
        if not begins and not self._begins_in_reasoning:
            self._cursor.position = 0
            return
        yield from self._cursor.skip_space()
        self._cursor.commit()
        if (yield from self._cursor.stream_until((tags.end,), self._calls.add_reasoning)):
            yield from self._cursor.skip_space()
            self._cursor.commit()

    def _read_calls(self, reader: CallReader) -> Reading[None]:
        try:
            yield from reader(self._cursor, self._calls)
        except NotACall:
            self._calls.add_text(self._cursor.read_so_far())

    def _read_text(self) -> Reading[str]:
        """Pass text on up to the next marker and return that; spaces in front of it are text if it begins no call."""
        markers = list(self._format.openers) if self._format is not None else []
        cursor = self._cursor
        while True:
            at, marker = first_marker(cursor.text, markers, 0)
            end = at if at >= 0 else len(cursor.text) - held_back(cursor.text, markers)
            if cursor.is_final and at < 0:
                end = len(cursor.text)
            num_spaces = trailing_space(cursor.text[:end]) if markers else 0
            if cursor.is_final and at < 0 and not (self._calls.num_calls and num_spaces == end):
                num_spaces = 0
            self._calls.add_text(cursor.text[: end - num_spaces])
            cursor.position = end - num_spaces
            cursor.commit()
            if at >= 0 or cursor.is_final:
                cursor.position = num_spaces + len(marker)
                return marker
            yield

    def _counted(self, deltas: list[ChatDelta]) -> list[ChatDelta]:
        """Divide the new tokens among reasoning and the rest, by characters."""
        lengths = {True: 0, False: 0}
        for delta in deltas:
            is_reasoning = isinstance(delta, ReasoningDelta)
            length = len(delta.text) if isinstance(delta, TextDelta | ReasoningDelta) else len(delta.arguments) + 1
            lengths[is_reasoning] += length
            self._was_reasoning = is_reasoning
        if num_chars := sum(lengths.values()):
            self._reasoning_tokens += self._num_uncounted * lengths[True] / num_chars
            self._num_uncounted = 0
        return deltas
