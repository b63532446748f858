"""One dispatch attempt of a stream's requests on an engine."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rayinfer.protocols import GenerationRequest
from rayinfer.routing.delta_queue import DeltaQueue
from rayinfer.routing.engine_set import RoutingDecision
from rayinfer.traces.trace_store import TraceStore


class DispatchAttempt:
    """A stream's requests on one engine: sent at once, and aborted where they have not ended.

    They are sent as soon as the routing decision is made, so that the next decision finds them in the engine's load.
    """

    def __init__(self, decision: RoutingDecision, requests: Sequence[GenerationRequest], deltas: DeltaQueue) -> None:
        self.decision = decision
        self.may_hand_over = decision.is_prefill
        if decision.source is not None:
            requests = [replace(request, kv_source=decision.source) for request in requests]
        self.deltas = deltas  # one queue for each attempt: an earlier engine's deltas are dropped
        self._requests = requests
        self._request_ids = [request.request_id for request in requests]
        self._link = decision.link
        self._sent_s = time.time()
        self._link.send(requests, deltas, decision.num_cached_tokens)

    def record(self, traces: TraceStore, request_id: str, waited_s: float) -> None:
        """Record the decision in the trace of the client's request."""
        traces.dispatched(
            request_id,
            [request.choice for request in self._requests],
            time_s=self._sent_s,
            engine=self._link.name,
            why=self.decision.reason,
            attempt=self._requests[0].attempt,
            cached_tokens=self.decision.num_cached_tokens,
            waited_s=round(waited_s, 6),
            **({} if self.decision.source is None else {"fetched_blocks": self.decision.source.num_blocks}),
            weights_version=self._link.description.weights_version,
        )

    async def wait_accepted(self) -> None:
        """Wait until the engine has the requests; raises EngineDead when it cannot be reached."""
        await self._link.wait_accepted(self._request_ids)

    def abort(self, request_ids: Iterable[str] | None = None) -> None:
        """Abort these requests, or all, as far as they have not ended; returns at once."""
        self._link.abort(self._request_ids if request_ids is None else request_ids)
