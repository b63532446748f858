"""State of one request of an `LLM` while it runs."""

from collections import deque
from dataclasses import dataclass, field

from rayinfer.outputs import OutputAggregate, RequestOutput, TokenDelta
from rayinfer.protocols import EngineRequestId
from rayinfer.routing.stream_state import StreamState
from rayinfer.traces.request_trace import RequestTrace


@dataclass(slots=True)
class RequestState:
    """Output of one request so far."""

    stream: StreamState
    prompt: str | None
    unread: deque[RequestOutput] | None = None  # deltas that a `stream` has yet to yield, whichever call computed them
    trace: RequestTrace | None = None
    outputs: OutputAggregate = field(init=False)

    def __post_init__(self) -> None:
        self.outputs = OutputAggregate(self.stream.request.sampling_params.n)

    def apply(self, delta: TokenDelta) -> RequestOutput | None:
        """Apply the engine's delta; returns the caller's delta, if there is one."""
        output = self.stream.apply(delta)
        if output is None:
            return None
        self.outputs.add(output)
        if self.trace is not None:
            for choice in output.outputs:
                if choice.finish_reason is not None:
                    num_tokens = self.stream.num_tokens_of(choice.index)
                    self.trace.record_end(choice.finish_reason, output_tokens=num_tokens, choice=choice.index)
        return output

    def add_engine_events(self, delta: TokenDelta | None) -> None:
        """Add the engine's events of a traced choice, which come with its last delta."""
        if self.trace is not None and delta is not None and delta.trace is not None:
            self.trace.add_engine_events(delta.trace, choice=EngineRequestId.parse(delta.request_id).choice)

    def with_trace(self, output: RequestOutput) -> RequestOutput:
        """Add the events to the request's last output."""
        if self.trace is not None and output.finished:
            output.trace = self.trace.in_order()
        return output

    def whole(self) -> RequestOutput:
        """Return the whole output so far."""
        output = self.with_trace(self.outputs.whole())
        output.prompt = self.prompt
        return output


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The delta of one step for one request."""

    state: RequestState
    delta: RequestOutput
