"""Performance model of an engine: continuous batching with chunked prefill, a step at a time."""

import heapq
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from rayinfer.benchmark.studies.autoscaling.trace import TracedRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class EnginePace:
    """Speed and capacity of an engine."""

    step_s: float = 0.025  # of any step, however little it computes
    prompt_token_s: float = 0.0002  # more for each token of prompts
    output_token_s: float = 0.0005  # more for each request that gets its next token
    chunk_tokens: int = 2048  # of prompts in one step
    max_num_seqs: int = 64
    cache_tokens: int = 160_000
    start_s: float = 30.0  # until a new one takes requests


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """Request in flight; when its engine stops, it is recomputed elsewhere with the tokens that it has."""

    traced: TracedRequest
    num_output: int = 0  # tokens it has
    first_token_s: float | None = None
    finished_s: float | None = None
    num_loaded: int = 0  # tokens of its prompt that another engine computed and this one has loaded

    @property
    def num_to_compute(self) -> int:
        """Return the number of tokens to compute before the answer can continue."""
        return self.traced.prompt_tokens + self.num_output - self.num_loaded


class _Running(NamedTuple):
    last_step: int  # the number of the step that gives the last token
    order: int
    request: SimulatedRequest


class SimulatedEngine:
    """Engine that accepts requests up to its capacity and advances all of them by steps."""

    def __init__(self, pace: EnginePace, ready_s: float) -> None:
        self.ready_s = ready_s
        self.step_ends_s: float | None = None  # None while it has nothing to do
        self.cache_tokens = 0
        self._pace = pace
        self._prompts: deque[SimulatedRequest] = deque()
        self._computed = 0  # tokens of the first of them
        self._waiting_tokens = 0
        self._running: list[_Running] = []
        self._starting: list[SimulatedRequest] = []  # their prompts end with the present step
        self._num_steps = 0
        self._num_taken = 0

    @property
    def num_requests(self) -> int:
        """Return the number of unfinished requests."""
        return len(self._prompts) + len(self._running) + len(self._starting)

    @property
    def waiting_tokens(self) -> int:
        """Return the number of prompt tokens that are not computed."""
        return self._waiting_tokens

    def decoding(self) -> list[SimulatedRequest]:
        """Return the requests that get a further token with the end of the present step."""
        return [running.request for running in self._running]

    def can_accept(self) -> bool:
        """Return whether it accepts a request now: rows, cache, and few prompts before it."""
        pace = self._pace
        return (
            self.num_requests < pace.max_num_seqs
            and self.cache_tokens + self._waiting_tokens < pace.cache_tokens
            and self._waiting_tokens < 2 * pace.chunk_tokens
        )

    def add(self, request: SimulatedRequest, now_s: float) -> None:
        """Add a request; an idle engine begins a step at once."""
        self._prompts.append(request)
        self.cache_tokens += request.num_loaded
        self._waiting_tokens += request.num_to_compute
        if self.step_ends_s is None:
            self._begin_step(now_s)

    def end_step(self) -> list[SimulatedRequest]:
        """Give every request its token and begin the next step; returns those whose prompts are computed."""
        assert self.step_ends_s is not None
        now_s = self.step_ends_s
        self._num_steps += 1
        self.cache_tokens += len(self._running)
        while self._running and self._running[0].last_step <= self._num_steps:
            self._finish(heapq.heappop(self._running).request, now_s)
        started, self._starting = self._starting, []
        for request in started:
            self._start(request, now_s)
        self.step_ends_s = None
        if self._prompts or self._running:
            self._begin_step(now_s)
        return started

    def stop(self) -> list[SimulatedRequest]:
        """Stop the engine; returns its requests with the tokens that they have."""
        for running in self._running:
            running.request.num_output = running.request.traced.output_tokens - (running.last_step - self._num_steps)
        left = [running.request for running in sorted(self._running, key=lambda it: it.order)]
        left += [*self._starting, *self._prompts]
        self._running, self._starting, self._prompts = [], [], deque()
        self.step_ends_s = None
        return left

    def _begin_step(self, now_s: float) -> None:
        pace, budget = self._pace, self._pace.chunk_tokens
        while budget and self._prompts:
            request = self._prompts[0]
            taken = min(budget, request.num_to_compute - self._computed)
            budget -= taken
            self._computed += taken
            if self._computed < request.num_to_compute:
                break
            self._starting.append(self._prompts.popleft())
            self._computed = 0
        num_prompt = pace.chunk_tokens - budget
        self._waiting_tokens -= num_prompt
        self.cache_tokens += num_prompt
        work_s = num_prompt * pace.prompt_token_s + len(self._running) * pace.output_token_s
        self.step_ends_s = now_s + pace.step_s + work_s

    def _start(self, request: SimulatedRequest, now_s: float) -> None:
        if request.first_token_s is None:
            request.first_token_s = now_s
        request.num_output += 1
        left = request.traced.output_tokens - request.num_output
        if left <= 0:
            self._finish(request, now_s)
            return
        self._num_taken += 1
        heapq.heappush(self._running, _Running(self._num_steps + left, self._num_taken, request))

    def _finish(self, request: SimulatedRequest, now_s: float) -> None:
        request.finished_s = now_s
        self.cache_tokens -= request.traced.prompt_tokens + request.traced.output_tokens - 1
