"""Router over engines in this process, and its clients."""

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rayinfer.config import EngineConfig
from rayinfer.engine.build import build_engine
from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.engine.loop.engine import Engine
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import TokenDelta
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.routing.limits import RouterLimits
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.tokenizer import Tokenizer


@dataclass(kw_only=True, slots=True)
class RequestResult:
    """Tokens and latency of one request."""

    token_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    ttft_s: float = 0.0
    num_steps: int = 0  # of its engine, from its arrival there to its first token
    num_steps_in_all: int = 0  # likewise, from when it was sent: its time in the router's queue included


class FirstToken(NamedTuple):
    """Engine and step of a request's first token."""

    engine: int
    step: int  # of that engine, counted from 1
    num_steps: int  # since the request's arrival at the engine


class StepRecorder:
    """Recorder of engines' step times, and of the step of each request's first token."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.counts: list[int] = []  # steps that have begun, by engine
        self.first_tokens: dict[str, FirstToken] = {}

    def wrap(self, engine: Engine) -> Engine:
        """Wrap an engine's `step` and `add_request` to record them."""
        step, add_request, number = engine.step, engine.add_request, len(self.counts)
        self.counts.append(0)
        arrivals: dict[str, int] = {}

        def recorded_step() -> list[TokenDelta]:
            self.counts[number] += 1
            started = time.perf_counter()
            deltas = step()
            self.times_s.append(time.perf_counter() - started)
            for delta in deltas:
                if (arrival := arrivals.pop(delta.request_id, None)) is not None:
                    now = self.counts[number]
                    self.first_tokens[delta.request_id] = FirstToken(number, now, now - arrival)
            return deltas

        def recorded_add(request: GenerationRequest) -> Any:
            arrivals[request.request_id] = self.counts[number]
            return add_request(request)

        engine.step, engine.add_request = recorded_step, recorded_add  # type: ignore[method-assign]
        return engine


class Fleet:
    """Engines, their router, and the times of their steps."""

    def __init__(self, router: Dispatcher, engines: Sequence[AsyncEngine], steps: StepRecorder) -> None:
        self.router = router
        self.engines = engines
        self._steps = steps
        self._numbers = itertools.count()

    async def ask(self, prompt: Sequence[int], max_tokens: int, **settings: Any) -> RequestResult:
        """Send one request and read all of its tokens."""
        request = GenerationRequest(
            request_id=str(next(self._numbers)),
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
            **settings,
        )
        result, steps_before, sent_s = RequestResult(), list(self._steps.counts), time.perf_counter()
        async for output in self.router.generate(request):
            if not result.token_ids:
                result.ttft_s = time.perf_counter() - sent_s
                result.num_cached_tokens = output.num_cached_tokens
            result.token_ids += output.outputs[0].token_ids
        first = self._steps.first_tokens[f"{request.request_id}/0"]
        result.num_steps, result.num_steps_in_all = first.num_steps, first.step - steps_before[first.engine]
        return result

    @property
    def num_steps(self) -> float:
        """Return the steps that an engine has begun, on average."""
        return statistics.fmean(self._steps.counts)

    async def reach(self, num_steps: float) -> None:
        """Wait until the engines have begun this many steps; they must be busy."""
        while self.num_steps < num_steps:  # noqa: ASYNC110
            await asyncio.sleep(0.0005)

    def forget_steps(self) -> None:
        """Discard the step times so far."""
        self._steps.times_s.clear()

    def p95_step_s(self) -> float:
        """Return the 95th percentile of step times."""
        ordered = sorted(self._steps.times_s)
        return ordered[int(0.95 * (len(ordered) - 1))]


@asynccontextmanager
async def open_fleet(folder: Path, num_engines: int, limits: RouterLimits, **settings: Any) -> AsyncIterator[Fleet]:
    """Build engines of one thread each for a model, and a router over them."""
    steps = StepRecorder()
    engines = [AsyncEngine(steps.wrap(_build(folder, settings))) for _ in range(num_engines)]
    metrics = ServiceMetrics()
    router = Dispatcher("bench", Tokenizer.from_folder(folder), metrics, router_id="router", limits=limits)
    fleet = Fleet(router, engines, steps)
    try:
        for number, engine in enumerate(engines):
            engine.start()
            router.engines.add(f"engine-{number}", engine, engine.description)
        await asyncio.gather(*(fleet.ask([5 + number] * 8, 4, cache_salt="warm-up") for number in range(num_engines)))
        await _wait_for_credits(router)
        yield fleet
    finally:
        await router.close()
        await asyncio.gather(*(engine.shutdown() for engine in engines))


async def _wait_for_credits(router: Dispatcher) -> None:
    """Wait for every engine's credits: before they are known, dispatch is unbounded."""
    async with asyncio.timeout(30):
        while not all(link.stats.credits.num_requests for link in router.engines.links.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _build(folder: Path, settings: dict[str, Any]) -> Engine:
    config = EngineConfig(model=str(folder), num_threads=1, pin_threads=False, **settings)
    return build_engine(config, folder)
