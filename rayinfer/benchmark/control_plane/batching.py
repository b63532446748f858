"""Dynamic batcher behind a dispatcher, with a model that sleeps, beside the work-conserving ideal."""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from rayinfer.benchmark.report import Environment, Percentiles, Table, describe_environment, percentiles
from rayinfer.config import engine_config
from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.predictions import PredictionInput, PredictorDescription
from rayinfer.predictors.build_engine import assemble_engine
from rayinfer.predictors.runner import RunnerItem, RunnerResult
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.tokenizer import Tokenizer

BASE_S, EACH_S, MAX_ITEMS = 0.02, 0.001, 32
FULL_STEP_S = BASE_S + MAX_ITEMS * EACH_S
POISSON_SHARE = 0.8  # of the items that full steps could compute
WARM_UP_S = 0.5
ONE_TOKEN = SamplingParams(max_tokens=1)
MODEL = "sleeping"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosedLoop:
    """Latency of clients that each send their next item at once."""

    num_clients: int
    ideal_ms: float
    latency: Percentiles
    items_per_s: float
    mean_batch: float

    def row(self) -> tuple[object, ...]:
        """Return its row of the table."""
        p50, p99 = self.latency.p50, self.latency.p99
        return self.num_clients, self.ideal_ms, p50, p50 / self.ideal_ms, p99, self.items_per_s, self.mean_batch


@dataclass(frozen=True, kw_only=True, slots=True)
class PoissonLoad:
    """Latency of items that arrive at random moments."""

    items_per_s: float
    latency: Percentiles
    p99_steps: float  # in full steps
    mean_batch: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchingReport:
    """Latencies of all loads."""

    environment: Environment
    closed: list[ClosedLoop]
    poisson: PoissonLoad

    def tables(self) -> list[Table]:
        """Return its figures."""
        closed = [each.row() for each in self.closed]
        it = self.poisson
        poisson = [(it.items_per_s, it.latency.p50, it.latency.p99, it.p99_steps, it.mean_batch)]
        return [
            Table("closed loop", ("clients", "ideal ms", "p50 ms", "ratio", "p99 ms", "items/s", "mean batch"), closed),
            Table("Poisson", ("items/s", "p50 ms", "p99 ms", "p99 in full steps", "mean batch"), poisson),
        ]


class SleepingRunner:
    """A model that takes 20 ms and another one for each item, and no processor time."""

    description = PredictorDescription(tasks=("embed",), embedding_size=1)
    max_input_tokens = 1
    vocab_size = 2

    def __init__(self) -> None:
        self.batches: list[int] = []

    def run(self, batch: Sequence[RunnerItem]) -> list[RunnerResult]:
        """Sleep as long as the batch takes."""
        self.batches.append(len(batch))
        time.sleep(BASE_S + EACH_S * len(batch))
        return [np.zeros(1, np.float32) for _ in batch]

    def close(self) -> None:
        """Do nothing: there are no weights."""


def ideal_s(num_clients: int) -> float:
    """Return the latency in a closed loop where each step takes all items that wait, as many as fit."""
    if num_clients <= MAX_ITEMS:
        return BASE_S + EACH_S * num_clients
    return num_clients / MAX_ITEMS * FULL_STEP_S


async def measure_batching(clients: Sequence[int], seconds: float, seed: int) -> BatchingReport:
    """Measure closed loops of so many clients, then Poisson arrivals, each on an engine of its own."""
    closed = [await _measure_closed(num_clients, seconds) for num_clients in clients]
    return BatchingReport(
        environment=describe_environment(), closed=closed, poisson=await _measure_poisson(seconds, seed)
    )


async def _measure_closed(num_clients: int, seconds: float) -> ClosedLoop:
    async with _service() as (service, runner):
        started = time.perf_counter()
        end = started + WARM_UP_S + seconds

        async def client() -> None:
            while time.perf_counter() < end:
                await service.measure(time.perf_counter())

        await asyncio.gather(*(client() for _ in range(num_clients)))
        latencies = service.latencies_since(started + WARM_UP_S)
    return ClosedLoop(
        num_clients=num_clients,
        ideal_ms=1e3 * ideal_s(num_clients),
        latency=_spread(latencies),
        items_per_s=len(latencies) / seconds,
        mean_batch=sum(runner.batches) / len(runner.batches),
    )


async def _measure_poisson(seconds: float, seed: int) -> PoissonLoad:
    rate, draw = POISSON_SHARE * MAX_ITEMS / FULL_STEP_S, random.Random(seed)
    async with _service() as (service, runner):
        started = due = time.perf_counter()
        tasks = []
        while due < started + WARM_UP_S + seconds:
            due += draw.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(service.measure(due)))  # a late arrival counts from when it was due
        await asyncio.gather(*tasks)
        latency = _spread(service.latencies_since(started + WARM_UP_S))
    return PoissonLoad(
        items_per_s=rate,
        latency=latency,
        p99_steps=latency.p99 / (1e3 * FULL_STEP_S),
        mean_batch=sum(runner.batches) / len(runner.batches),
    )


def _spread(latencies: Sequence[float]) -> Percentiles:
    spread = percentiles(latencies)
    assert spread is not None, "no item was answered"
    return spread


class _Service:
    """A dispatcher over one engine, and the latencies of its items by the time when they were due."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._latencies: list[tuple[float, float]] = []
        self._numbers = itertools.count()

    async def measure(self, due: float) -> None:
        request = GenerationRequest(
            request_id=f"item-{next(self._numbers)}",
            prompt_token_ids=[1],
            sampling_params=ONE_TOKEN,
            prediction=PredictionInput(task="embed"),
        )
        async for output in self._dispatcher.generate(request):
            assert output.outputs[0].finish_reason == "stop", output
        self._latencies.append((due, time.perf_counter() - due))

    def latencies_since(self, moment: float) -> list[float]:
        return [latency for due, latency in self._latencies if due >= moment]


@contextlib.asynccontextmanager
async def _service() -> AsyncIterator[tuple[_Service, SleepingRunner]]:
    runner = SleepingRunner()
    config = engine_config(
        model=MODEL, max_num_seqs=MAX_ITEMS, max_num_batched_tokens=MAX_ITEMS, target_step_ms=1e3 * FULL_STEP_S + 5
    )
    engine = AsyncEngine(assemble_engine(config, runner, SleepingRunner))
    dispatcher = Dispatcher(MODEL, Tokenizer(Backend(BPE())), ServiceMetrics("benchmark"), router_id="benchmark")
    engine.start()
    dispatcher.engines.add("engine", engine, engine.description)
    runner.batches.clear()
    try:
        yield _Service(dispatcher), runner
    finally:
        await dispatcher.close()
        await engine.shutdown()
