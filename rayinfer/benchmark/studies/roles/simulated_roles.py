"""Simulation of engines with roles, by the performance model of the autoscaling study."""

import heapq
from collections import deque
from typing import NamedTuple

from rayinfer.benchmark.studies.autoscaling.simulated_engine import EnginePace, SimulatedEngine, SimulatedRequest
from rayinfer.benchmark.studies.autoscaling.trace import TracedRequest
from rayinfer.benchmark.studies.roles.mixed_load import MixedLoad, Seen

_LEFT_TO_COMPUTE = 16  # tokens of a prompt whose full blocks came from elsewhere


class _Arrival(NamedTuple):
    time_s: float
    order: int
    request: SimulatedRequest
    is_handed_over: bool


class RoleSimulation:
    """Engines under a load; with `num_prefill` of them for the long prompts, whose streams others continue."""

    def __init__(
        self, load: MixedLoad, pace: EnginePace, *, num_engines: int, num_prefill: int, transfer_token_s: float = 0.0
    ) -> None:
        assert num_prefill < num_engines
        self._load = load
        self._engines = [SimulatedEngine(pace, 0.0) for _ in range(num_engines)]
        self._prefill, self._decode = self._engines[:num_prefill], self._engines[num_prefill:]
        self._transfer_token_s = transfer_token_s
        self._arrivals: list[_Arrival] = []
        self._queue: deque[_Arrival] = deque()
        self._seen = Seen()
        self._now_s = 0.0
        self._gap_since_s: dict[SimulatedRequest, float] = {}  # time of a chat's latest token
        self._originals: dict[SimulatedRequest, TracedRequest] = {}  # of prompts on prefill engines

    def run(self) -> Seen:
        """Run until every request has its answer."""
        requests = self._load.requests()
        for number, traced in enumerate(requests):
            self._arrivals.append(_Arrival(traced.arrival_s, number, SimulatedRequest(traced), False))
        heapq.heapify(self._arrivals)
        while self._arrivals or self._queue or any(engine.step_ends_s is not None for engine in self._engines):
            self._advance()
            self._send()
        self._seen.lasted_s = self._now_s - (requests[0].arrival_s if requests else 0.0)
        return self._seen

    def _advance(self) -> None:
        engine = min(self._engines, key=_step_end)
        arrival_s = self._arrivals[0].time_s if self._arrivals else float("inf")
        self._now_s = min(_step_end(engine), arrival_s)
        if self._now_s == arrival_s:
            self._queue.append(heapq.heappop(self._arrivals))
            return
        self._note_tokens(engine)
        for request in engine.end_step():
            self._note_first_token(request)

    def _send(self) -> None:
        waiting, self._queue = self._queue, deque()
        for arrival in waiting:
            is_long = self._load.is_long(arrival.request.traced) and not arrival.is_handed_over
            fitting = self._prefill if is_long and self._prefill else self._decode
            engines = [each for each in fitting if each.can_accept()] or [
                each for each in self._engines if each.can_accept()
            ]
            if not engines:
                self._queue.append(arrival)
                continue
            best = min(engines, key=lambda each: (each.waiting_tokens, each.num_requests))
            request = arrival.request
            if best in self._prefill and is_long:
                original, request = request.traced, SimulatedRequest(request.traced._replace(output_tokens=1))
                self._originals[request] = original
            best.add(request, self._now_s)

    def _note_tokens(self, engine: SimulatedEngine) -> None:
        """Record the gaps of the chats that get a token with the end of the engine's step."""
        for request in engine.decoding():
            self._seen.num_tokens += 1
            if not self._load.is_long(request.traced):
                self._seen.chat_gaps_s.append(self._now_s - self._gap_since_s[request])
                self._gap_since_s[request] = self._now_s

    def _note_first_token(self, request: SimulatedRequest) -> None:
        self._seen.num_tokens += 1
        if request.num_loaded:
            return  # of a stream that was handed over: its client had its first token before
        waited_s = self._now_s - request.traced.arrival_s
        if not self._load.is_long(request.traced):
            self._seen.chat_ttft_s.append(waited_s)
            self._gap_since_s[request] = self._now_s
            return
        self._seen.long_ttft_s.append(waited_s)
        original = self._originals.pop(request, None)
        if original is not None and original.output_tokens > 1:
            self._hand_over(original)

    def _hand_over(self, original: TracedRequest) -> None:
        num_loaded = max(0, original.prompt_tokens - _LEFT_TO_COMPUTE)
        continued = SimulatedRequest(original, num_output=1, num_loaded=num_loaded)
        arrives_s = self._now_s + num_loaded * self._transfer_token_s
        self._seen.num_handovers += 1
        heapq.heappush(self._arrivals, _Arrival(arrives_s, -self._seen.num_handovers, continued, True))


def _step_end(engine: SimulatedEngine) -> float:
    return float("inf") if engine.step_ends_s is None else engine.step_ends_s


def simulate(load: MixedLoad, pace: EnginePace, *, num_engines: int, num_prefill: int, transfer_token_s: float) -> Seen:
    """Run one arrangement; deterministic."""
    return RoleSimulation(
        load, pace, num_engines=num_engines, num_prefill=num_prefill, transfer_token_s=transfer_token_s
    ).run()
