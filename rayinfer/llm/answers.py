"""What an `LLM` keeps of one request while it runs."""

from collections import deque
from dataclasses import dataclass

from rayinfer.outputs import RequestOutput
from rayinfer.routing.stream_state import StreamState


@dataclass(slots=True)
class Answer:
    """One request's answer as far as it is known."""

    stream: StreamState
    prompt: str | None
    news: deque[RequestOutput] | None = None  # what a `stream` has yet to yield, whoever did the steps

    def whole(self) -> RequestOutput:
        """Return all there is so far."""
        output = self.stream.whole()
        output.prompt = self.prompt
        return output


@dataclass(frozen=True, slots=True)
class Advance:
    """What one step brought for one answer."""

    answer: Answer
    delta: RequestOutput
