"""Gives one model's requests to its engines and turns their tokens back into text for the clients."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from rayinfer.errors import EngineDead, EngineLeaving, NotReady, QueueFull
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits
from rayinfer.metrics import ServiceMetrics
from rayinfer.outputs import FinishReason, RequestOutput, TokenDelta, TraceEvent
from rayinfer.protocols import GenerationRequest, ModelDescription, ServiceStatus
from rayinfer.routing.admission import AdmissionControl, AdmissionSlot
from rayinfer.routing.delta_queue import DeltaQueue
from rayinfer.routing.dispatch_attempt import DispatchAttempt
from rayinfer.routing.dispatch_queue import DispatchQueue, QueuedRequest
from rayinfer.routing.engine_fleet import EngineFleet
from rayinfer.routing.engine_set import RUNNING, EngineSet
from rayinfer.routing.first_tokens import FirstTokens
from rayinfer.routing.limits import RouterLimits
from rayinfer.routing.preparation import block_digests, prepare
from rayinfer.routing.replica_choice import cost_of
from rayinfer.routing.retry_budget import Quarantine, RetryBudget
from rayinfer.routing.stream_state import StreamState, parts_of
from rayinfer.routing.stream_timers import StreamTimers
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.traces.kept_traces import KeptTraces

logger = logging.getLogger(__name__)

ENGINE_WAIT_S = 60.0  # how long a stream that lost its engine waits for another


class Dispatcher:
    """A TextGenerator over a changing set of engines; every client request lives in one `generate` call.

    A stream whose engine is lost, or leaves, goes on from its tokens so far on another engine: its client sees nothing
    of it. Text is made in that call, never in the task that listens to an engine: what one stream's text does, however
    wrong, reaches no other stream. Clients learn that an engine is gone; which one, and of what it died, is in the
    log. Events of traced requests go into `traces`, from here and from the engines.

    `first_tokens` is for a model whose engines follow the load. Once the model's description is known, requests wait
    where there is no engine, new ones too, as many as `most_engines` would let wait: `needs_engine` is what starts one.
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
        first_tokens: FirstTokens | None = None,
        most_engines: int = 1,
        clock: Callable[[], float] = time.monotonic,
        liveness: LivenessLimits = DEFAULT_LIMITS,
    ) -> None:
        self._traces = KeptTraces() if traces is None else traces
        self._model_name = model_name
        self._tokenizer = tokenizer
        limits = RouterLimits() if limits is None else limits
        self._may_be_empty = first_tokens is not None
        self._admission = AdmissionControl(
            limits,
            first_tokens=first_tokens,
            most_engines=most_engines,
            is_starting=lambda: self._may_be_empty and not self.engines.available(),
        )
        self._metrics = metrics
        self._engine_wait_s = engine_wait_s
        self._clock = clock
        self.engines = EngineSet(
            model_name,
            metrics,
            router_id=router_id,
            on_trace=self._record_engine_events,
            on_room=lambda engine: self._queue.advance(engine),
            on_join=lambda engine: self.control.note_join(engine),
            may_be_empty=self._may_be_empty,
            liveness=liveness,
        )
        self._queue = DispatchQueue(
            self.engines,
            limits,
            engine_wait_s=engine_wait_s,
            on_change=partial(metrics.set_num_queued, model_name),
            clock=clock,
        )
        self.control = EngineFleet(model_name, self.engines.links)
        self._quarantine = Quarantine(lambda: bool(self.engines.available()), self.engines.wait_for_any)
        metrics.set_num_queued(model_name, 0)

    def change_limits(self, limits: RouterLimits) -> None:
        """Follow other limits from now on; admitted requests stay."""
        self._admission.limits = limits
        self._queue.change_limits(limits)

    async def close(self) -> None:
        """Close the links to all engines, which aborts all that still runs."""
        self._engine_wait_s = 0.0
        self._queue.close()
        await self.engines.close()

    def describe(self) -> ModelDescription:
        """Describe the model, with the limits of its tightest engine."""
        return self.engines.describe()

    def status(self) -> ServiceStatus:
        """Return whether a request could start now, and the stats of every engine."""
        states = {engine.stats.state for engine in self.engines.available()}
        ready = RUNNING in states or (not states and self._may_be_empty and self.engines.is_described)
        return ServiceStatus(
            ready=ready,
            reason="" if ready else ", ".join(sorted(states)) or self.engines.not_ready_message(),
            num_waiting=self._admission.num_waiting,
            engines={engine.name: engine.stats for engine in self.engines.links.values()},
            descriptions={engine.name: engine.description for engine in self.engines.links.values()},
        )

    def overload(self) -> QueueFull | None:
        """Return why no request would be admitted now; None as long as there is room."""
        return self._admission.overload()

    @property
    def needs_engine(self) -> bool:
        """Whether there is no engine, and a request waits for one or the model is not described yet."""
        wanted = len(self._queue) > 0 or self.engines.is_waited_for or not self.engines.is_described
        return wanted and not self.engines.available()

    def generate(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        """Yield the answer as it grows; closing the iterator aborts what still runs, without waiting for it.

        Refuses at once, before any other request's work goes on, so that a burst is refused one by one.
        """
        request = prepare(request, self.describe(), self._tokenizer, self._admission.limits)
        ticket = self._admission.admit(
            request.tenant,
            cost_of(request).num_tokens,
            self.engines.num_cache_tokens,
            len(request.prompt_token_ids),
        )
        return self._answer(request, ticket)

    async def _answer(self, request: GenerationRequest, ticket: AdmissionSlot) -> AsyncIterator[RequestOutput]:
        stream = StreamState(request, self._tokenizer, keeps_outputs=False)
        timers = self._start_timers(request, stream)
        deadline = None if request.timeout_s is None else self._clock() + request.timeout_s
        ending: FinishReason = "abort"  # unless something else is the matter
        budget = RetryBudget()
        try:
            while not stream.is_finished:
                timers.engine_changes()
                async with self._attempt(stream, budget, deadline) as attempt:
                    while not stream.is_finished:
                        deltas = await self._take(attempt.queue, deadline)
                        if deltas:
                            ticket.start()
                        output = stream.fail("timeout") if deltas is None else stream.apply_all(deltas)
                        attempt.release(stream.stopped_request_ids())
                        if budget.is_suspicious and budget.made_progress(stream.num_output_tokens):
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
            if budget.has_queued:
                expected, had = cost_of(request), len(request.prompt_token_ids) + stream.num_output_tokens
                self._queue.charge(request.tenant, expected.priority, had - expected.num_tokens)

    @contextlib.asynccontextmanager
    async def _attempt(
        self, stream: StreamState, budget: RetryBudget, deadline: float | None
    ) -> AsyncIterator["_Attempt"]:
        """Run the stream on an engine while the block lasts; the loss of that engine ends the block.

        Raises NotReady when there is no engine for a new stream, EngineDead when a stream cannot go on elsewhere. Where
        its time has run out meanwhile, the block gets an attempt without an engine.
        """
        async with contextlib.AsyncExitStack() as quarantine:
            try:
                dispatched = await self._submit(stream, budget, deadline, quarantine)
            except (NotReady, TimeoutError) as error:
                if not budget.num_lost and isinstance(error, NotReady):
                    raise
                if isinstance(error, NotReady) and (deadline is None or self._clock() < deadline):
                    raise EngineDead("the engine that ran the request is gone, and no other has come") from None
                yield _Attempt(DeltaQueue(), lambda _: None, quarantine)
                return
            try:
                yield _Attempt(dispatched.queue, dispatched.link.release, quarantine)
            except EngineDead as error:
                self._note_loss(stream, budget, dispatched.link.name, error)
            finally:
                dispatched.cancel()

    def _patience_s(self, budget: RetryBudget, deadline: float | None) -> float:
        """Return how long to wait for an engine: new streams need not, as other routers may have one."""
        if not self._may_be_empty and not budget.num_lost and not budget.has_queued:
            return 0.0
        return self._engine_wait_s if deadline is None else min(self._engine_wait_s, deadline - self._clock())

    async def _submit(
        self, stream: StreamState, budget: RetryBudget, deadline: float | None, quarantine: contextlib.AsyncExitStack
    ) -> DispatchAttempt:
        """Hand what is left of the stream to an engine that takes it: a new one when its turn comes, others at once.

        Raises NotReady without an engine, TimeoutError when the client's time is up before an engine has the stream.
        """
        while True:
            wait_s = self._patience_s(budget, deadline)
            if budget.is_suspicious:
                await quarantine.aclose()  # its engine was gone before it took the stream, and the next may be long
                patience_s = partial(self._patience_s, budget, deadline)
                await quarantine.enter_async_context(self._quarantine.place(patience_s))
            requests = stream.engine_requests(epoch=budget.begin())
            interval = self._admission.limits.stream_interval
            dispatched = DispatchAttempt(requests, self._traces, stream.request_id, self._clock, interval=interval)
            try:
                await self._send(stream, requests, budget, dispatched, deadline, wait_s)
                async with asyncio.timeout(None if deadline is None else deadline - self._clock()):
                    await dispatched.acked()
            except EngineDead as error:
                self.engines.remove(dispatched.link.name, str(error))
            except BaseException:
                dispatched.cancel()
                raise
            else:
                return dispatched

    async def _send(
        self,
        stream: StreamState,
        requests: Sequence[GenerationRequest],
        budget: RetryBudget,
        dispatched: DispatchAttempt,
        deadline: float | None,
        wait_s: float,
    ) -> None:
        """Find the engine that the requests go to, and begin to send them."""
        digests = partial(block_digests, requests[0], self.engines.block_size, self.engines.weights_generation)
        if budget.num_begun > 1:
            decision = await self.engines.wait_for_replica(cost_of(requests[0]), digests(), wait_s)
            dispatched.start(decision)
            return
        work, tenant = cost_of(stream.request), stream.request.tenant
        turn = QueuedRequest(work=work, tenant=tenant, deadline=deadline, make_digests=digests, take=dispatched.start)
        try:
            await self._queue.wait(turn, None if deadline is None else deadline - self._clock())
        finally:
            budget.has_queued = turn.has_waited and turn.is_sent

    def _note_loss(self, stream: StreamState, budget: RetryBudget, engine: str, error: EngineDead) -> None:
        """Count a lost engine; raises EngineDead when the stream may not go on elsewhere."""
        if isinstance(error, EngineLeaving):
            budget.migrated(stream.num_output_tokens)
        else:
            budget.lost(stream.num_output_tokens)
        if budget.is_exhausted:
            logger.error("request %s is refused: %d engines ended under it", stream.request_id, budget.num_fruitless)
            raise EngineDead("every engine that tried to compute this request has ended") from None
        self._metrics.stream_migrated(self._model_name)
        reason = "engine leaves" if isinstance(error, EngineLeaving) else "engine lost"
        self._traces.migrated(stream.request_id, engine=engine, reason=reason)

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

    def _record_end(self, stream: StreamState, choice: int, reason: FinishReason) -> None:
        self._traces.finished(stream.request_id, choice, reason, stream.num_tokens_of(choice))

    def _record_engine_events(self, engine_request_id: str, events: list[TraceEvent]) -> None:
        request_id, choice, _ = parts_of(engine_request_id)
        self._traces.take_over(request_id, choice, events)


class _Attempt(NamedTuple):
    """One engine's attempt at a stream."""

    queue: DeltaQueue
    release: Callable[[Iterable[str]], None]  # of engine requests that need not go on
    quarantine: contextlib.AsyncExitStack  # to be left once the stream has shown to be harmless
