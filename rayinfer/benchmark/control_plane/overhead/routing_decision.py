"""Cost of a routing decision, by queue length and number of engines."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rayinfer.benchmark.control_plane.overhead.paced_engine import AlwaysRunning, paced_description
from rayinfer.errors import RayinferError
from rayinfer.kv_cache.block_hash import PrefixDigests
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import NO_BOUNDS, Credits, EngineStats, RequestOutput, StepMessage, TokenDelta
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.routing.limits import RouterLimits
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.tokenizer import Tokenizer

NUM_PREFIXES = 16  # shared by requests, as those of one application
PREFIX_TOKENS, OWN_TOKENS = 256, 64
OUTPUT_TOKENS = 64
TOKENS_OF_EVERY_VOCABULARY = (3, 250)
RUNNING = Credits(num_requests=8)  # of each engine, where requests wait
ONE_MORE = Credits(num_requests=RUNNING.num_requests + 1)
SUBMIT_TIMEOUT_S = 60.0  # for a request to reach an engine
SETTLING_YIELDS = 5
WARM_UP = 20  # decisions that do not count


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionCost:
    """Microseconds of the router's thread for one request, from `generate` to its submission to an engine."""

    num_waiting: int
    num_engines: int
    arrival_us: float  # medians: until it is in the queue, or with an engine where none waits
    dispatch_us: float  # from an engine's message with a free slot; 0 where none waits
    p50_us: float  # of both together
    p99_us: float
    num_decisions: int


def measure_decisions(
    tokenizer: Tokenizer, num_waiting: int, num_engines: int, num_decisions: int, seed: int = 0
) -> DecisionCost:
    """Keep the queue at a constant length, with one arrival and one departure at a time, and time both."""
    return asyncio.run(_measure(tokenizer, num_waiting, num_engines, num_decisions, seed))


class _ScriptedEngine(AlwaysRunning):
    """Engine client that accepts requests and sends scripted messages."""

    def __init__(self, on_submit: Callable[[], None]) -> None:
        self.running: list[str] = []
        self._on_submit = on_submit
        self._messages: asyncio.Queue[StepMessage] = asyncio.Queue()
        self._steps = itertools.count(1)

    async def submit(self, requests: Sequence[GenerationRequest], router_id: str) -> None:
        self.running += [request.request_id for request in requests]
        self._on_submit()

    async def abort(self, request_ids: Sequence[str]) -> None:
        self.running = [request_id for request_id in self.running if request_id not in request_ids]

    async def outputs(self, router_id: str) -> AsyncIterator[StepMessage]:
        while True:
            yield await self._messages.get()

    def send(self, deltas: Sequence[TokenDelta] = (), *, credits: Credits, stored: Sequence[bytes] = ()) -> None:
        stats = EngineStats(num_running=len(self.running), kv_blocks_total=1 << 20, credits=credits)
        message = StepMessage(
            epoch=1, step=next(self._steps), deltas=list(deltas), stats=stats, blocks_stored=list(stored)
        )
        self._messages.put_nowait(message)

    def finish(self, num_requests: int, credits: Credits) -> None:
        """End the requests that have run longest."""
        ended, self.running = self.running[:num_requests], self.running[num_requests:]
        self.send([TokenDelta(request_id, 0, [7], finish_reason="length") for request_id in ended], credits=credits)


class _LoadedRouter:
    """Dispatcher over scripted engines, and its clients."""

    def __init__(self, tokenizer: Tokenizer, num_waiting: int, num_engines: int, seed: int) -> None:
        self.dispatcher = Dispatcher(
            "m",
            tokenizer,
            ServiceMetrics(),
            router_id="bench",
            limits=RouterLimits(
                # Running requests have no token yet, so they count as well.
                max_waiting_requests=num_waiting + num_engines * ONE_MORE.num_requests + 2,
                max_waiting_tokens=1 << 40,
            ),
        )
        self.num_waiting = num_waiting
        self.num_submitted = 0
        self.submitted_s = 0.0  # of the thread's time, when the latest request came to an engine
        self._submission: asyncio.Future[None] | None = None  # awaited by `until_submitted`
        self.engines = [_ScriptedEngine(self._note_submission) for _ in range(num_engines)]
        self._prompts = _prompts(seed)
        self._names = (f"request-{number}" for number in itertools.count())
        self._clients: set[asyncio.Task[None]] = set()
        prefixes = _shared_prefixes(seed)
        for number, engine in enumerate(self.engines):
            self.dispatcher.engines.add(f"engine-{number}", engine, paced_description("m", tokenizer))
            engine.send(credits=RUNNING if num_waiting else NO_BOUNDS, stored=_digests(prefixes[number % NUM_PREFIXES]))

    def next_request(self) -> GenerationRequest:
        """Draw a request before the clock runs."""
        params = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0)
        return GenerationRequest(
            request_id=next(self._names), prompt_token_ids=next(self._prompts), sampling_params=params
        )

    def arrive(self, request: GenerationRequest) -> None:
        """Start a client's request."""
        task = asyncio.get_running_loop().create_task(_drain(self.dispatcher.generate(request)))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def until_submitted(self, num_submitted: int) -> None:
        """Wait until this many requests are submitted to engines, without yields of its own."""
        while self.num_submitted < num_submitted:
            self._submission = asyncio.get_running_loop().create_future()
            await self._submission

    def _note_submission(self) -> None:
        self.submitted_s = _thread_s()
        self.num_submitted += 1
        if self._submission is not None and not self._submission.done():
            self._submission.set_result(None)

    async def close(self) -> None:
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for name in self.dispatcher.engines.names:
            self.dispatcher.engines.drain(name)
        await self.dispatcher.close()


@dataclass(frozen=True, slots=True)
class _Decision:
    arrival_s: float
    dispatch_s: float


async def _measure(
    tokenizer: Tokenizer, num_waiting: int, num_engines: int, num_decisions: int, seed: int
) -> DecisionCost:
    router = _LoadedRouter(tokenizer, num_waiting, num_engines, seed)
    await _settle()
    num_running = num_engines * RUNNING.num_requests if num_waiting else 0
    for _ in range(num_running + num_waiting):
        router.arrive(router.next_request())
    await router.until_submitted(num_running)
    decisions = []
    for number in range(WARM_UP + num_decisions):
        try:
            async with asyncio.timeout(SUBMIT_TIMEOUT_S):
                decisions.append(await _decide(router, number))
        except TimeoutError:
            raise RayinferError("the router submitted no request to an engine with free slots") from None
    decisions = decisions[WARM_UP:]
    await router.close()
    both = [1e6 * (decision.arrival_s + decision.dispatch_s) for decision in decisions]
    return DecisionCost(
        num_waiting=num_waiting,
        num_engines=num_engines,
        arrival_us=_percentile([1e6 * decision.arrival_s for decision in decisions], 50),
        dispatch_us=_percentile([1e6 * decision.dispatch_s for decision in decisions], 50),
        p50_us=_percentile(both, 50),
        p99_us=_percentile(both, 99),
        num_decisions=num_decisions,
    )


async def _decide(router: _LoadedRouter, number: int) -> _Decision:
    """Time one arrival, and one dispatch from the queue if there is one; then free a slot for the next."""
    request, before, num_all = router.next_request(), router.num_submitted, router.dispatcher.status().num_waiting
    started_s = _thread_s()
    router.arrive(request)
    if not router.num_waiting:
        await router.until_submitted(before + 1)
        arrival_s, dispatch_s = router.submitted_s - started_s, 0.0
        for engine in router.engines:
            engine.finish(len(engine.running), NO_BOUNDS)
    else:
        await asyncio.sleep(0)  # the new task runs until it has to wait
        arrival_s = _thread_s() - started_s
        if (num_admitted := router.dispatcher.status().num_waiting) != num_all + 1:
            raise RayinferError(f"{num_admitted} requests are admitted instead of {num_all + 1}")
        engine = router.engines[number % len(router.engines)]
        started_s = _thread_s()
        engine.send(credits=ONE_MORE)
        await router.until_submitted(before + 1)
        dispatch_s = router.submitted_s - started_s
        engine.finish(1, RUNNING)
    await _settle()
    return _Decision(arrival_s, dispatch_s)


def _thread_s() -> float:
    return time.thread_time_ns() / 1e9


async def _settle() -> None:
    for _ in range(SETTLING_YIELDS):
        await asyncio.sleep(0)


async def _drain(outputs: AsyncIterator[RequestOutput]) -> None:
    async for _ in outputs:
        pass


def _prompts(seed: int) -> Iterator[list[int]]:
    rng, prefixes = random.Random(seed), _shared_prefixes(seed)
    while True:
        own = [rng.randint(*TOKENS_OF_EVERY_VOCABULARY) for _ in range(OWN_TOKENS)]
        yield [*rng.choice(prefixes), *own]


def _shared_prefixes(seed: int) -> list[list[int]]:
    rng = random.Random(seed + 1)
    return [[rng.randint(*TOKENS_OF_EVERY_VOCABULARY) for _ in range(PREFIX_TOKENS)] for _ in range(NUM_PREFIXES)]


def _digests(token_ids: Sequence[int]) -> list[bytes]:
    digests = PrefixDigests(16, b"")
    digests.extend(np.asarray(token_ids, np.int32), len(token_ids))
    return digests.digests


def _percentile(values: Sequence[float], percent: float) -> float:
    return round(float(np.percentile(values, percent)), 2)
