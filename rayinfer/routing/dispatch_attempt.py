"""One dispatch attempt of a stream's requests to an engine."""

import time
from collections.abc import Callable, Sequence

from rayinfer.protocols import GenerationRequest
from rayinfer.routing.delta_queue import DeltaQueue
from rayinfer.routing.engine_link import EngineLink
from rayinfer.routing.engine_set import RoutingDecision
from rayinfer.traces.trace_store import TraceStore


class DispatchAttempt:
    """Records the engine that the requests went to, so that they can be cancelled, and traces the reason."""

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        traces: TraceStore,
        request_id: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        interval: int = 1,
    ) -> None:
        self.queue = DeltaQueue(interval)  # one for each attempt: an engine's deltas of an earlier one are dropped
        self._requests = requests
        self._request_ids = [request.request_id for request in requests]  # the engine's names for them
        self._traces = traces
        self._request_id = request_id
        self._clock = clock
        self._since = clock()
        self._decision: RoutingDecision | None = None

    @property
    def link(self) -> EngineLink:
        """The link by which they were sent."""
        assert self._decision is not None
        return self._decision.link

    def start(self, decision: RoutingDecision) -> None:
        """Send the requests; returns at once."""
        self._decision = decision
        if self._requests[0].trace:
            self._traces.dispatched(
                self._request_id,
                [request.choice for request in self._requests],
                engine=decision.link.name,
                why=decision.reason,
                attempt=self._requests[0].epoch,
                cached_tokens=decision.num_cached_tokens,
                waited_s=round(self._clock() - self._since, 6),
                weights_generation=decision.link.description.weights_generation,
            )
        decision.link.send(self._requests, self.queue, decision.num_cached_tokens)

    async def acked(self) -> None:
        """Wait until the engine has the requests; raises EngineDead when it cannot be reached."""
        await self.link.arrival(self._request_ids)

    def cancel(self) -> None:
        """Have the engine forget what has not ended of the requests, if they were sent."""
        if self._decision is not None:
            self._decision.link.release(self._request_ids)
