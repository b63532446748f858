"""Gives one model's requests to its engines and turns their tokens back into text for the clients."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial

from rayinfer.errors import EngineDead, NotReady, PromptTooLong
from rayinfer.metrics import ServiceMetrics
from rayinfer.outputs import EngineStats, FinishReason, RequestOutput, TokenDelta, TraceEvent
from rayinfer.protocols import EngineClient, GenerationRequest, ModelDescription, ServiceStatus
from rayinfer.routing.admission import Admission
from rayinfer.routing.delta_queue import DeltaQueue
from rayinfer.routing.engine_fleet import EngineFleet
from rayinfer.routing.engine_link import EngineLink
from rayinfer.routing.replica_choice import least_loaded
from rayinfer.routing.stream_state import StreamState
from rayinfer.routing.stream_timers import StreamTimers
from rayinfer.tokenization.bad_words import speller
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.traces.kept_traces import KeptTraces

logger = logging.getLogger(__name__)

RUNNING = "running"  # the one state of an engine in which requests do not just wait


class Dispatcher:
    """A TextGenerator over a changing set of engines; every client request lives in one `generate` call.

    Text is made in that call, never in the task that listens to an engine: what one stream's text does, however wrong,
    reaches no other stream. Clients are told that an engine is gone; which one, and of what it died, is in the log.
    What happens to requests that are traced goes into `traces`, from here and from the engines.
    """

    def __init__(
        self,
        model_name: str,
        tokenizer: Tokenizer,
        admission: Admission,
        metrics: ServiceMetrics,
        *,
        router_id: str,
        traces: KeptTraces | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._traces = KeptTraces() if traces is None else traces
        self._model_name = model_name
        self._tokenizer = tokenizer
        self._admission = admission
        self._metrics = metrics
        self._router_id = router_id
        self._clock = clock
        self._engines: dict[str, EngineLink] = {}
        self.control = EngineFleet(model_name, self._engines)
        self._num_chosen = 0
        self._num_added = 0
        self._why_not_ready = "no engine is ready yet"
        metrics.set_num_queued(model_name, 0)  # requests go to an engine at once; those that wait, wait there

    @property
    def engine_names(self) -> list[str]:
        """The engines that this dispatcher listens to, those that are draining included."""
        return list(self._engines)

    def add_engine(self, name: str, client: EngineClient, description: ModelDescription) -> None:
        """Listen to an engine and send it requests from now on; needs a running event loop."""
        self._num_added += 1
        engine = EngineLink(
            name,
            client,
            description,
            # An engine that is taken back must not confuse the new line with the end of the old one.
            router_id=f"{self._router_id}/{self._num_added}",
            on_stats=self._record_stats,
            on_lost=self.remove_engine,
            on_trace=self._record_engine_events,
        )
        self._engines[name] = engine
        self._record_stats(name, engine.stats)

    def drain_engine(self, name: str) -> None:
        """Send the engine nothing more; its streams may end before it goes."""
        if engine := self._engines.get(name):
            engine.is_draining = True
            self._why_not_ready = "an engine is shutting down"
            if engine.num_in_flight == 0:
                self.remove_engine(name, "it was drained")

    def remove_engine(self, name: str, reason: str) -> None:
        """Forget an engine; the streams that it still ran end with EngineDead."""
        engine = self._engines.pop(name, None)
        if engine is None:
            return
        logger.log(logging.INFO if engine.is_draining else logging.WARNING, "engine %s is gone: %s", name, reason)
        self._why_not_ready = "an engine is gone"
        self._metrics.drop_engine(self._model_name, name)
        engine.fail(EngineDead("the engine that ran the request is gone"))

    async def close(self) -> None:
        """Let go of every engine, which aborts all that still runs."""
        engines = list(self._engines.values())
        for engine in engines:
            self.remove_engine(engine.name, "the service is shutting down")
        await asyncio.gather(*(engine.wait_closed() for engine in engines))

    def describe(self) -> ModelDescription:
        """Say what the model is, as the tightest of its engines has it."""
        engines = self._available_engines()
        if not engines:
            raise NotReady(self._not_ready_message())
        tightest = min((engine.description for engine in engines), key=lambda known: known.max_model_len)
        return replace(tightest, name=self._model_name)

    def status(self) -> ServiceStatus:
        """Say whether a request could start now, and how every engine is doing."""
        states = {engine.stats.state for engine in self._available_engines()}
        ready = RUNNING in states
        return ServiceStatus(
            ready=ready,
            reason="" if ready else ", ".join(sorted(states)) or self._not_ready_message(),
            num_waiting=self._admission.num_waiting,
            engines={engine.name: engine.stats for engine in self._engines.values()},
        )

    async def generate(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        """Yield the answer as it grows; closing the iterator aborts what still runs, without waiting for it."""
        description = self.describe()
        self._check_prompt(request, description)
        request = _with_bad_words_spelled(request, self._tokenizer)
        request.sampling_params.check_leaves_a_token(description.eos_token_ids, description.vocab_size)
        ticket = self._admission.admit()
        stream = StreamState(_with_seed(request), self._tokenizer, keeps_outputs=False)
        timers = self._start_timers(request, stream)
        request_ids = [part.request_id for part in stream.engine_requests()]
        queue = DeltaQueue()
        deadline = None if request.timeout_s is None else self._clock() + request.timeout_s
        engine: EngineLink | None = None
        ending: FinishReason = "abort"  # unless something else is the matter
        try:
            engine = await self._submit(stream, queue)
            while not stream.is_finished:
                deltas = await self._take(queue, deadline)
                if deltas:
                    ticket.start()
                output = stream.fail("timeout") if deltas is None else _apply(stream, deltas)
                engine.release(stream.stopped_request_ids())
                if output is not None:
                    timers.record(output)
                    yield output
        except Exception:
            ending = "error"
            raise
        finally:
            ticket.leave()
            timers.finish_all(ending)
            if engine is not None:
                engine.release(request_ids)

    async def _submit(self, stream: StreamState, queue: DeltaQueue) -> EngineLink:
        """Hand the stream's requests to the least loaded engine that takes them."""
        while True:
            engine = self._choose_engine()
            requests = stream.engine_requests()
            if requests[0].trace:
                self._traces.dispatched(stream.request_id, [request.choice for request in requests])
            try:
                await engine.submit(requests, queue)
            except EngineDead as error:
                self.remove_engine(engine.name, str(error))
            else:
                return engine

    async def _take(self, queue: DeltaQueue, deadline: float | None) -> list[TokenDelta] | None:
        """Wait for this stream's next deltas; None when the client's time is up."""
        if deadline is None:
            return await queue.take()
        left_s = deadline - self._clock()
        if left_s <= 0:
            return None
        try:
            return await queue.take(left_s)
        except TimeoutError:
            return None

    def _start_timers(self, request: GenerationRequest, stream: StreamState) -> StreamTimers:
        return StreamTimers(
            self._metrics,
            self._model_name,
            len(request.prompt_token_ids),
            request.sampling_params.n,
            on_end=partial(self._record_end, stream) if request.trace else None,
        )

    def _choose_engine(self) -> EngineLink:
        engines = self._available_engines()
        if not engines:
            raise NotReady(self._not_ready_message())
        engines = [engine for engine in engines if engine.stats.state == RUNNING] or engines
        load = least_loaded([engine.load for engine in engines])
        self._num_chosen += 1
        load.last_chosen = self._num_chosen
        return self._engines[load.name]

    def _available_engines(self) -> list[EngineLink]:
        return [engine for engine in self._engines.values() if not engine.is_draining]

    def _not_ready_message(self) -> str:
        return f"model {self._model_name!r} cannot answer now: {self._why_not_ready}"

    def _check_prompt(self, request: GenerationRequest, description: ModelDescription) -> None:
        if not description.scores_prompts:
            request.sampling_params.check_prompt_is_not_scored()
        room = 0 if request.sampling_params.max_tokens == 0 else 1  # a prompt that is only scored may fill the context
        num_tokens, longest = len(request.prompt_token_ids), description.max_model_len - room
        if num_tokens > longest:
            raise PromptTooLong(
                f"the prompt has {num_tokens} tokens, at most {longest} fit into the context of model "
                f"{self._model_name!r}{' beside one new token' if room else ''}",
                "prompt",
                "context_length_exceeded",
            )

    def _record_end(self, stream: StreamState, choice: int, reason: FinishReason) -> None:
        self._traces.finished(stream.request_id, choice, reason, stream.num_tokens_of(choice))

    def _record_engine_events(self, engine_request_id: str, events: list[TraceEvent]) -> None:
        request_id, _, choice = engine_request_id.rpartition("/")
        self._traces.take_over(request_id, int(choice), events)

    def _record_stats(self, name: str, stats: EngineStats) -> None:
        self._metrics.set_engine_stats(self._model_name, name, stats)
        engine = self._engines.get(name)
        if engine is not None and engine.is_draining and engine.num_in_flight == 0:
            self.remove_engine(name, "it was drained")


def _with_bad_words_spelled(request: GenerationRequest, tokenizer: Tokenizer) -> GenerationRequest:
    params = request.sampling_params.with_bad_words_spelled(speller(tokenizer))
    return request if params is request.sampling_params else replace(request, sampling_params=params)


def _with_seed(request: GenerationRequest) -> GenerationRequest:
    """Draw a seed where the client gave none: whatever engine goes on with the stream makes the same choices."""
    params = request.sampling_params
    if params.seed is not None:
        return request
    return replace(request, sampling_params=replace(params, seed=secrets.randbits(64)))


def _apply(stream: StreamState, deltas: list[TokenDelta]) -> RequestOutput | None:
    """Turn deltas into one output for the client; None while they make no visible text."""
    merged: RequestOutput | None = None
    for delta in deltas:
        output = stream.apply(delta)
        if output is None:
            continue
        if merged is None:
            merged = output
        else:
            merged.outputs.extend(output.outputs)
            merged.finished = output.finished
            merged.num_cached_tokens = output.num_cached_tokens  # of what is known, the latest word counts
    return merged
