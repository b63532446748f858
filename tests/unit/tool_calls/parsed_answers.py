"""Answers fed to a parser in pieces, and put together again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rayinfer.tool_calls.answer_parser import AnswerParser, ReasoningTags
from rayinfer.tool_calls.deltas import ChatDelta, ReasoningDelta, TextDelta
from rayinfer.tool_calls.formats import FORMATS
from unit.tool_calls.recordings import TOOLS, Recording


@dataclass
class Parsed:
    """An answer's parts."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def add(self, delta: ChatDelta) -> None:
        """Add a delta; only the first one of a call has its name and id."""
        if isinstance(delta, TextDelta):
            self.text += delta.text
        elif isinstance(delta, ReasoningDelta):
            self.reasoning += delta.text
        elif delta.index == len(self.calls):
            assert delta.id
            assert delta.name
            self.ids.append(delta.id)
            self.calls.append((delta.name, delta.arguments))
        else:
            assert delta.index == len(self.calls) - 1
            assert delta.id is None
            assert delta.name is None
            self.calls[-1] = (self.calls[-1][0], self.calls[-1][1] + delta.arguments)


def new_parser(recording: Recording) -> AnswerParser:
    """Make the parser for a recording."""
    tags = ReasoningTags() if recording.has_tags else None
    return AnswerParser(FORMATS[recording.format], TOOLS, tags)


def parse(parser: AnswerParser, pieces: Sequence[str]) -> Parsed:
    """Feed the pieces and collect the deltas."""
    parsed = Parsed()
    for piece in pieces:
        for delta in parser.add(piece, [0]):
            parsed.add(delta)
    for delta in parser.end():
        parsed.add(delta)
    return parsed
