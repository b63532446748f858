"""Gives one model's requests to its engines and turns their tokens back into text for the clients."""

import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from rayinfer.errors import EngineDead, EngineLeaving, NotReady, PromptTooLong
from rayinfer.metrics import ServiceMetrics
from rayinfer.outputs import FinishReason, RequestOutput, TokenDelta, TraceEvent
from rayinfer.protocols import GenerationRequest, ModelDescription, ServiceStatus
from rayinfer.routing.admission import Admission
from rayinfer.routing.attempts import Attempts, Quarantine
from rayinfer.routing.delta_queue import DeltaQueue
from rayinfer.routing.engine_fleet import EngineFleet
from rayinfer.routing.engine_link import EngineLink
from rayinfer.routing.engine_set import RUNNING, EngineSet
from rayinfer.routing.limits import RouterLimits
from rayinfer.routing.stream_state import StreamState, parts_of
from rayinfer.routing.stream_timers import StreamTimers
from rayinfer.tokenization.bad_words import speller
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.traces.kept_traces import KeptTraces

logger = logging.getLogger(__name__)

ENGINE_WAIT_S = 60.0  # how long a stream that lost its engine waits for another


class Dispatcher:
    """A TextGenerator over a changing set of engines; every client request lives in one `generate` call.

    A stream whose engine is lost, or leaves, goes on from its tokens so far on another engine: its client sees nothing
    of it. Text is made in that call, never in the task that listens to an engine: what one stream's text does, however
    wrong, reaches no other stream. Clients are told that an engine is gone; which one, and of what it died, is in the
    log. What happens to requests that are traced goes into `traces`, from here and from the engines.
    """

    def __init__(
        self,
        model_name: str,
        tokenizer: Tokenizer,
        metrics: ServiceMetrics,
        *,
        router_id: str,
        limits: RouterLimits | None = None,
        traces: KeptTraces | None = None,
        engine_wait_s: float = ENGINE_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._traces = KeptTraces() if traces is None else traces
        self._model_name = model_name
        self._tokenizer = tokenizer
        self._admission = Admission(RouterLimits() if limits is None else limits)
        self._metrics = metrics
        self._engine_wait_s = engine_wait_s
        self._clock = clock
        self.engines = EngineSet(model_name, metrics, router_id=router_id, on_trace=self._record_engine_events)
        self.control = EngineFleet(model_name, self.engines.links)
        self._quarantine = Quarantine()
        metrics.set_num_queued(model_name, 0)  # requests go to an engine at once; those that wait, wait there

    def change_limits(self, limits: RouterLimits) -> None:
        """Follow other limits from now on; whoever was admitted stays."""
        self._admission.limits = limits

    async def close(self) -> None:
        """Let go of every engine, which aborts all that still runs."""
        self._engine_wait_s = 0.0
        await self.engines.close()

    def describe(self) -> ModelDescription:
        """Say what the model is, as the tightest of its engines has it."""
        return self.engines.describe()

    def status(self) -> ServiceStatus:
        """Say whether a request could start now, and how every engine is doing."""
        states = {engine.stats.state for engine in self.engines.available()}
        ready = RUNNING in states
        return ServiceStatus(
            ready=ready,
            reason="" if ready else ", ".join(sorted(states)) or self.engines.not_ready_message(),
            num_waiting=self._admission.num_waiting,
            engines={engine.name: engine.stats for engine in self.engines.links.values()},
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
        deadline = None if request.timeout_s is None else self._clock() + request.timeout_s
        ending: FinishReason = "abort"  # unless something else is the matter
        try:
            attempts = Attempts()
            while not stream.is_finished:
                timers.engine_changes()
                async with self._attempt(stream, attempts, deadline) as attempt:
                    while not stream.is_finished:
                        deltas = await self._take(attempt.queue, deadline)
                        if deltas:
                            ticket.start()
                        output = stream.fail("timeout") if deltas is None else _apply(stream, deltas)
                        attempt.release(stream.stopped_request_ids())
                        if attempts.are_suspicious and attempts.have_gained(stream.num_output_tokens):
                            await attempt.quarantine.aclose()
                        if output is not None:
                            timers.record(output)
                            yield output
        except Exception:
            ending = "error"
            raise
        finally:
            ticket.leave()
            timers.finish_all(ending)

    @contextlib.asynccontextmanager
    async def _attempt(
        self, stream: StreamState, attempts: Attempts, deadline: float | None
    ) -> AsyncIterator["_Attempt"]:
        """Have an engine go on with the stream while the block lasts; the loss of that engine ends the block.

        Raises NotReady when there is no engine for a new stream, EngineDead when a stream cannot go on elsewhere. Where
        its time has run out meanwhile, the block gets an attempt without an engine.
        """
        async with contextlib.AsyncExitStack() as quarantine:
            try:
                wait_s = self._patience_s(attempts, deadline)
                if attempts.are_suspicious:
                    await quarantine.enter_async_context(self._quarantine.place(wait_s))
                engine, queue = await self._submit(stream, attempts, wait_s)
            except NotReady:
                if not attempts.num_lost:
                    raise
                if deadline is None or self._clock() < deadline:
                    raise EngineDead("the engine that ran the request is gone, and no other has come") from None
                yield _Attempt(DeltaQueue(), lambda _: None, quarantine)
                return
            request_ids = [request.request_id for request in stream.engine_requests()]
            try:
                yield _Attempt(queue, engine.release, quarantine)
            except EngineDead as error:
                self._note_loss(stream, attempts, error)
            finally:
                engine.release(request_ids)

    def _patience_s(self, attempts: Attempts, deadline: float | None) -> float:
        """How long to wait for an engine: new streams do not, as others may have one for them."""
        if not attempts.num_lost:
            return 0.0
        return self._engine_wait_s if deadline is None else min(self._engine_wait_s, deadline - self._clock())

    async def _submit(self, stream: StreamState, attempts: Attempts, wait_s: float) -> tuple[EngineLink, DeltaQueue]:
        """Hand what is left of the stream to the least loaded engine that takes it."""
        while True:
            engine = await self.engines.choose(wait_s)
            requests = stream.engine_requests(epoch=attempts.begin())
            if requests[0].trace:
                self._traces.dispatched(stream.request_id, [request.choice for request in requests])
            queue = DeltaQueue()  # one for each: what an engine says of an earlier attempt reaches nobody
            try:
                await engine.submit(requests, queue)
            except EngineDead as error:
                self.engines.remove(engine.name, str(error))
            else:
                return engine, queue

    def _note_loss(self, stream: StreamState, attempts: Attempts, error: EngineDead) -> None:
        """Count a lost engine; raises EngineDead when the stream may not go on elsewhere."""
        if isinstance(error, EngineLeaving):
            attempts.left(stream.num_output_tokens)
        else:
            attempts.lost(stream.num_output_tokens)
        if attempts.are_hopeless:
            logger.error("request %s is refused: %d engines ended under it", stream.request_id, attempts.num_fruitless)
            raise EngineDead("every engine that tried to compute this request has ended") from None
        self._metrics.stream_migrated(self._model_name)

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
        request_id, choice, _ = parts_of(engine_request_id)
        self._traces.take_over(request_id, choice, events)


class _Attempt(NamedTuple):
    """One engine's turn at a stream."""

    queue: DeltaQueue
    release: Callable[[Iterable[str]], None]  # of engine requests that need not go on
    quarantine: contextlib.AsyncExitStack  # to be left once the stream has shown to be harmless


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
