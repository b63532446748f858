"""A predictor whose items are computed once: look-ups in front of its generator."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from rayinfer.errors import NotReady, Unavailable
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.metrics.prediction_cache_counts import HitSource
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import CompletionOutput, FinishReason, RequestOutput
from rayinfer.prediction_cache.cache_key import CacheKey, cache_key
from rayinfer.prediction_cache.flights import Flight, FlightResult, Flights, Lead
from rayinfer.prediction_cache.memory_cache import CachedPrediction, MemoryCache
from rayinfer.predictions import PredictionOutput, PredictionTask, PredictorDescription
from rayinfer.protocols import GenerationRequest, ModelDescription, ServiceStatus, TextGenerator
from rayinfer.traces.trace_store import TraceStore

HASHED_AT_ONCE_BYTES = 2**16  # more takes the event loop too long
LONG_WAIT_S = 0.1  # for another router, after which a request's own time limit has to be cut


class RemoteCache(Protocol):
    """A cache that routers share; it never fails, it misses."""

    async def get(
        self, key: CacheKey, task: PredictionTask, predictor: PredictorDescription, priority: int = 0
    ) -> CachedPrediction | None:
        """Look up a prediction that such a predictor can have made for a task; wait where another router makes it.

        None: the caller is to make it, then to `put` or to `release` it.
        """
        ...

    def release(self, key: CacheKey) -> None:
        """Let other routers compute an item that was not found, as this one has not; does nothing after `put`."""
        ...

    def put(self, key: CacheKey, prediction: CachedPrediction) -> None:
        """Keep a prediction, behind the answer."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionCache:
    """Caches that the models of a router share."""

    memory: MemoryCache
    remote: RemoteCache | None = None


class CachedPredictor:
    """A TextGenerator that sends only items to a predictor that are not known and not being computed.

    Equal items that are being computed are waited for: when their leader is cancelled or runs out of time, the first of
    the others computes. Its error is theirs too, as they would meet it themselves, but no error is kept. What is not in
    memory is admitted before it is looked up elsewhere, so the queue's limits hold.
    """

    def __init__(
        self,
        model_name: str,
        generator: TextGenerator,
        cache: PredictionCache,
        metrics: ServiceMetrics,
        traces: TraceStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model_name = model_name
        self._generator = generator
        self._memory, self._remote = cache.memory, cache.remote
        self._flights = Flights()
        self._metrics = metrics
        self._counts = metrics.prediction_cache_counts().of(model_name)
        self._traces = TraceStore() if traces is None else traces
        self._clock = clock

    async def compile_grammar(self, spec: StructuredOutputsParams) -> bool:
        """Pass a grammar on to the model, which has none."""
        return await self._generator.compile_grammar(spec)

    def describe(self) -> ModelDescription:
        """Describe the model; raises NotReady."""
        return self._generator.describe()

    def status(self) -> ServiceStatus:
        """Return its readiness and load."""
        return self._generator.status()

    def overload(self) -> Unavailable | None:
        """Return why every request would be rejected now."""
        return self._generator.overload()

    def generate(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        """Yield the output of an item; whatever a dispatcher raises at once is raised at once, but for hits."""
        description = self.describe()
        if _num_bytes(request) > HASHED_AT_ONCE_BYTES:
            return self._generate_large(request, description)
        return self._generate(request, cache_key(request, description), description.predictor)

    async def _generate_large(
        self, request: GenerationRequest, description: ModelDescription
    ) -> AsyncIterator[RequestOutput]:
        """Compute an item's key beside the event loop, where it takes milliseconds."""
        key = await asyncio.to_thread(cache_key, request, description)
        outputs = self._generate(request, key, description.predictor)
        try:
            async for output in outputs:
                yield output
        finally:
            await _close(outputs)

    def _generate(
        self, request: GenerationRequest, key: CacheKey | None, predictor: PredictorDescription | None
    ) -> AsyncIterator[RequestOutput]:
        if key is None or predictor is None:
            return self._generator.generate(request)
        if (found := self._memory.get(key)) is not None:
            return self._answer(request, found, "memory")
        if (flight := self._flights.find(key, request.priority)) is not None:
            return self._follow(request, key, flight)
        return self._begin(request, key, predictor)

    def _begin(
        self, request: GenerationRequest, key: CacheKey, predictor: PredictorDescription
    ) -> AsyncIterator[RequestOutput]:
        outputs = self._generator.generate(request)  # a refusal is raised before another request waits for it
        return self._lead(request, outputs, self._flights.lead(key, request.priority), predictor)

    async def _lead(
        self,
        request: GenerationRequest,
        outputs: AsyncIterator[RequestOutput],
        lead: Lead,
        predictor: PredictorDescription,
    ) -> AsyncIterator[RequestOutput]:
        """Compute an item for all equal ones, unless another router has done so or does it now."""
        started_s = self._clock()
        try:
            try:
                async with asyncio.timeout(request.timeout_s):
                    found = await self._find_remotely(request, lead.key, predictor)
            except TimeoutError:
                yield self._ended(request, "timeout")
                return
            waited_s = self._clock() - started_s
            if found is None and request.timeout_s is not None and waited_s > LONG_WAIT_S:
                await _close(outputs)
                outputs = self._generator.generate(replace(request, timeout_s=max(0.0, request.timeout_s - waited_s)))
            if found is not None:
                await _close(outputs)
                self._memory.put(lead.key, found)
                lead.end(FlightResult(found))
                async for output in self._answer(request, found, "redis"):
                    yield output
                return
            self._counts.misses += 1
            async with contextlib.aclosing(self._compute(outputs, lead, predictor)) as computed:
                async for output in computed:
                    yield output
        finally:
            await _close(outputs)
            lead.leave()
            if self._remote is not None:
                self._remote.release(lead.key)

    async def _compute(
        self, outputs: AsyncIterator[RequestOutput], lead: Lead, predictor: PredictorDescription
    ) -> AsyncGenerator[RequestOutput, None]:
        started_s = self._clock()
        try:
            async for output in outputs:
                if output.prediction is not None:
                    prediction = CachedPrediction(output.prediction, self._clock() - started_s)
                    self._keep(lead.key, prediction, predictor.digest)
                    lead.end(FlightResult(prediction))
                yield output
        except Exception as error:
            lead.end(FlightResult(error=error))
            raise
        finally:
            await _close(outputs)

    def _keep(self, key: CacheKey, prediction: CachedPrediction, digest: str) -> None:
        """Keep a prediction, unless it failed or other weights may have made it meanwhile."""
        if prediction.output.error:
            return
        try:
            predictor = self.describe().predictor
        except NotReady:
            return
        if predictor is not None and predictor.digest == digest:
            self._memory.put(key, prediction)
            if self._remote is not None:
                self._remote.put(key, prediction)

    async def _find_remotely(
        self, request: GenerationRequest, key: CacheKey, predictor: PredictorDescription
    ) -> CachedPrediction | None:
        if self._remote is None or request.prediction is None:
            return None
        return await self._remote.get(key, request.prediction.task, predictor, request.priority)

    async def _follow(self, request: GenerationRequest, key: CacheKey, flight: Flight) -> AsyncIterator[RequestOutput]:
        """Wait for an equal item; compute it where its leader leaves it."""
        deadline = None if request.timeout_s is None else self._clock() + request.timeout_s
        while True:
            left_s = None if deadline is None else max(0.0, deadline - self._clock())
            try:
                result = await flight.wait(left_s)
            except TimeoutError:
                yield self._ended(request, "timeout")
                return
            if result is not None:
                break
            next_flight = self._flights.find(key, request.priority)
            if next_flight is None:
                left_s = None if deadline is None else max(0.0, deadline - self._clock())
                outputs = self.generate(replace(request, timeout_s=left_s))
                try:
                    async for output in outputs:
                        yield output
                finally:
                    await _close(outputs)
                return
            flight = next_flight
        if result.error is not None:
            raise result.error.with_traceback(None)
        assert result.prediction is not None
        async for output in self._answer(request, result.prediction, "in_flight"):
            yield output

    async def _answer(
        self, request: GenerationRequest, found: CachedPrediction, source: HitSource
    ) -> AsyncIterator[RequestOutput]:
        """Yield what is known."""
        self._counts.hits[source] += 1
        self._counts.saved_s += found.computed_s
        yield self._ended(request, "error" if found.output.error else "stop", found.output)

    def _ended(
        self, request: GenerationRequest, reason: FinishReason, prediction: PredictionOutput | None = None
    ) -> RequestOutput:
        """Make the only output of an item that no engine gets, and record its end."""
        self._metrics.request_started(self._model_name, 0, request.tenant).finished(reason)
        if request.trace:
            self._traces.finished(request.request_id, 0, reason, 0)
        return RequestOutput(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[CompletionOutput(index=0, text="", token_ids=[], finish_reason=reason)],
            num_cached_tokens=0 if prediction is None else request.num_input_tokens,
            finished=True,
            prediction=prediction,
        )


def _num_bytes(request: GenerationRequest) -> int:
    prediction = request.prediction
    return 0 if prediction is None else len(prediction.image) + len(prediction.tensors)


async def _close(outputs: AsyncIterator[RequestOutput]) -> None:
    """Close a generator's stream, which aborts what it computes."""
    close = getattr(outputs, "aclose", None)
    if close is not None:
        await close()
