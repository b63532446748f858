"""Replay of a trace against engines that a policy starts and stops."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rayinfer.benchmark.studies.autoscaling.policies import CountingPolicy
from rayinfer.benchmark.studies.autoscaling.simulated_engine import EnginePace, SimulatedEngine, SimulatedRequest
from rayinfer.benchmark.studies.autoscaling.trace import TracedRequest
from rayinfer.routing.admission import queue_factor
from rayinfer.routing.autoscaling_policy import ModelLoad
from rayinfer.routing.first_tokens import FirstTokens

TICK_S = 1.0  # between two decisions
LOAD_DELAY_S = 2.0  # age of the load that a decision sees
MAX_WAITING = 256  # requests without a first token, as routers have it by default
CLIENT_TIMEOUT_S = 60.0  # to the first token


@dataclass(kw_only=True, slots=True)
class Replay:
    """Outcome of a replay: requests by their end, TTFTs, and engine time."""

    num_requests: int = 0
    num_refused: int = 0  # by a full queue
    num_given_up: int = 0  # timed out by their clients
    first_token_s: list[float] = field(default_factory=list)  # of the others
    engine_s: float = 0.0  # that engines were held, their start included
    num_started: int = 0
    num_stopped: int = 0
    counts: list[int] = field(default_factory=list)  # engines held, once for each tick

    @property
    def num_lost(self) -> int:
        """Return the number of requests without an answer."""
        return self.num_refused + self.num_given_up

    def attainment(self, objective_s: float) -> float:
        """Return the fraction of all requests that had their first token in time."""
        return sum(waited <= objective_s for waited in self.first_token_s) / max(1, self.num_requests)

    def quantile_s(self, quantile: float) -> float:
        """Return a quantile of the answered requests' TTFT."""
        waited = sorted(self.first_token_s)
        return waited[min(len(waited) - 1, int(quantile * len(waited)))] if waited else 0.0


class Simulation:
    """One service under one policy."""

    def __init__(
        self,
        requests: Sequence[TracedRequest],
        policy: CountingPolicy,
        pace: EnginePace,
        *,
        objective_s: float,
        most_engines: int = 1,
    ) -> None:
        self._most_engines = most_engines
        self._policy = policy
        self._pace = pace
        self._now_s = 0.0
        self._arrivals = deque(requests)
        self._queue: deque[SimulatedRequest] = deque()
        self._moved: deque[SimulatedRequest] = deque()  # from engines that were stopped; sent first
        self._engines: list[SimulatedEngine] = []
        self._unstarted: dict[int, tuple[SimulatedRequest, int]] = {}  # by identity, with their keys
        self._first_tokens = FirstTokens(objective_s, clock=lambda: self._now_s)
        self._loads: deque[tuple[float, ModelLoad, int]] = deque()
        self._next_tick_s = 0.0
        self._replay = Replay(num_requests=len(requests))

    def run(self, *, initial: int, tail_s: float = 0.0) -> Replay:
        """Replay the whole trace, which begins with `initial` engines, and continue for `tail_s` after its end."""
        self._engines = [SimulatedEngine(self._pace, 0.0) for _ in range(initial)]
        end_s = (self._arrivals[-1].arrival_s if self._arrivals else 0.0) + tail_s
        while self._arrivals or self._queue or self._moved or self._unstarted or self._now_s < end_s:
            self._advance()
            self._send()
        return self._replay

    def _advance(self) -> None:
        """Process the next event: an arrival, the end of a step, a decision."""
        engine = min(self._engines, key=_step_end, default=None)
        step_s = float("inf") if engine is None else _step_end(engine)
        arrival_s = self._arrivals[0].arrival_s if self._arrivals else float("inf")
        self._now_s = min(step_s, arrival_s, self._next_tick_s)
        if self._now_s == step_s and engine is not None:
            for request in engine.end_step():
                self._note_first_token(request)
        elif self._now_s == arrival_s:
            self._admit(SimulatedRequest(self._arrivals.popleft()))
        else:
            self._tick()

    def _admit(self, request: SimulatedRequest) -> None:
        has_engine = any(engine.ready_s <= self._now_s for engine in self._engines)
        if len(self._unstarted) >= MAX_WAITING * queue_factor(self._most_engines, has_engine=has_engine):
            self._replay.num_refused += 1
            return
        key = self._first_tokens.add_request(request.traced.prompt_tokens)
        self._unstarted[id(request)] = (request, key)
        self._queue.append(request)

    def _send(self) -> None:
        while waiting := self._moved or self._queue:
            open_engines = [each for each in self._engines if each.ready_s <= self._now_s and each.can_accept()]
            if not open_engines:
                return
            best = min(open_engines, key=lambda each: (each.waiting_tokens, each.num_requests))
            best.add(waiting.popleft(), self._now_s)

    def _note_first_token(self, request: SimulatedRequest) -> None:
        _, key = self._unstarted.pop(id(request), (None, None))
        if key is not None:  # else it had its first token from an engine before
            self._first_tokens.record_first_token(key)
            self._replay.first_token_s.append(self._now_s - request.traced.arrival_s)

    def _tick(self) -> None:
        self._expire()
        ready = [engine for engine in self._engines if engine.ready_s <= self._now_s]
        ongoing = sum(engine.num_requests for engine in ready) + len(self._queue) + len(self._moved)
        self._loads.append((self._now_s, self._load(ready), ongoing))
        while len(self._loads) > 1 and self._loads[1][0] <= self._now_s - LOAD_DELAY_S:
            self._loads.popleft()
        _, load, seen_ongoing = self._loads[0]
        self._resize(self._policy.decide(self._now_s, len(self._engines), load, seen_ongoing))
        self._replay.engine_s += len(self._engines) * TICK_S
        self._replay.counts.append(len(self._engines))
        self._next_tick_s += TICK_S

    def _load(self, ready: Sequence[SimulatedEngine]) -> ModelLoad:
        return ModelLoad(
            num_engines=len(ready),
            num_running=sum(engine.num_requests for engine in ready),
            max_num_seqs=self._pace.max_num_seqs,
            cache_usage=sum(engine.cache_tokens for engine in ready) / self._pace.cache_tokens,
            first_tokens=self._first_tokens.counts(),
        )

    def _resize(self, wanted: int) -> None:
        while len(self._engines) < wanted:
            self._engines.append(SimulatedEngine(self._pace, self._now_s + self._pace.start_s))
            self._replay.num_started += 1
        while len(self._engines) > wanted:
            leaving = max(self._engines, key=lambda each: (each.ready_s > self._now_s, -each.num_requests))
            self._engines.remove(leaving)
            self._moved.extend(leaving.stop())
            self._replay.num_stopped += 1

    def _expire(self) -> None:
        """Remove requests from the queue whose clients have timed out; engines finish theirs."""
        oldest_s = self._now_s - CLIENT_TIMEOUT_S
        while self._queue and self._queue[0].traced.arrival_s < oldest_s:
            _, key = self._unstarted.pop(id(self._queue.popleft()))
            self._first_tokens.remove_request(key)
            self._replay.num_given_up += 1


def _step_end(engine: SimulatedEngine) -> float:
    return float("inf") if engine.step_ends_s is None else engine.step_ends_s
