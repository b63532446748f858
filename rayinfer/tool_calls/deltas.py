"""Pieces of an answer, in the order in which the model wrote them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of an answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More text of the reasoning before an answer."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCallDelta:
    """The beginning of a tool call, which has its id and name, or more of its arguments."""

    index: int  # of the call in its answer
    id: str | None = None
    name: str | None = None
    arguments: str = ""  # JSON, in pieces


ChatDelta = TextDelta | ReasoningDelta | ToolCallDelta
