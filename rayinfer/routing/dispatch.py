"""Dispatcher of one model's requests to its engines; it turns their tokens into text for the clients."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import NamedTuple

from rayinfer.errors import EngineDead, EngineLeaving, ModelFilesGone, NotReady, QueueFull, ShuttingDown, Unavailable
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.grammars.verdicts import Compile, GrammarVerdicts
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import EngineState, FinishReason, RequestOutput, TraceEvent
from rayinfer.protocols import EngineRequestId, GenerationRequest, ModelDescription, ServiceStatus
from rayinfer.routing.admission import AdmissionControl, AdmissionSlot
from rayinfer.routing.delta_queue import DeltaQueue
from rayinfer.routing.dispatch_attempt import DispatchAttempt
from rayinfer.routing.dispatch_queue import DispatchQueue, QueuedRequest
from rayinfer.routing.engine_choice import cost_of
from rayinfer.routing.engine_set import EngineSet
from rayinfer.routing.engine_set_control import EngineSetControl
from rayinfer.routing.first_tokens import FirstTokens
from rayinfer.routing.limits import RouterLimits
from rayinfer.routing.preparation import hash_prompt_blocks, prepare
from rayinfer.routing.retry_budget import Quarantine, QuarantinePermit, RetryBudget
from rayinfer.routing.roles.settings import RoleSettings
from rayinfer.routing.stream_state import StreamState
from rayinfer.routing.stream_timers import StreamTimers
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.traces.trace_store import TraceStore

logger = logging.getLogger(__name__)

ENGINE_WAIT_S = 60.0  # how long a stream that lost its engine waits for another


class Dispatcher:
    """A TextGenerator over a changing set of engines; every client request lives in one `generate` call.

    A stream whose engine is lost or drained migrates: it continues from its tokens so far on another engine, invisibly
    to the client. Text is made in that call, never in the task that listens to an engine, so an error in one stream's
    text affects no other stream. Clients see that an engine is gone; its name and the cause are in the log only.
    Events of traced requests go into `traces`, from here and from the engines.

    `first_tokens` is for a model with autoscaling. Once such a model's description is known, requests wait while it has
    no engine, as many as `max_engines` would let wait; `needs_engine` makes the first engine start.
    """

    def __init__(
        self,
        model_name: str,
        tokenizer: Tokenizer,
        metrics: ServiceMetrics,
        *,
        router_id: str,
        limits: RouterLimits | None = None,
        traces: TraceStore | None = None,
        engine_wait_s: float = ENGINE_WAIT_S,
        first_tokens: FirstTokens | None = None,
        max_engines: int = 1,
        clock: Callable[[], float] = time.monotonic,
        liveness: LivenessLimits = DEFAULT_LIMITS,
        roles: RoleSettings | None = None,
    ) -> None:
        self._traces = TraceStore() if traces is None else traces
        self._model_name = model_name
        self._tokenizer = tokenizer
        limits = RouterLimits() if limits is None else limits
        self._metrics = metrics
        self._engine_wait_s = engine_wait_s
        self._clock = clock
        self.engines = EngineSet(
            model_name,
            metrics,
            router_id=router_id,
            on_trace=self._record_engine_events,
            may_be_empty=first_tokens is not None,
            liveness=liveness,
            roles=roles,
            clock=clock,
        )
        self._admission = AdmissionControl(
            limits,
            first_tokens=first_tokens,
            max_engines=max_engines,
            is_starting=lambda: self.engines.is_starting,
        )
        self._queue = DispatchQueue(
            self.engines,
            limits,
            engine_wait_s=engine_wait_s,
            on_change=partial(metrics.set_num_queued, model_name),
            queued_by=metrics.queued_by(model_name),
            clock=clock,
        )
        self.engine_set_control = EngineSetControl(model_name, self.engines)
        self._grammars = GrammarVerdicts(self._find_compiling_engine)
        self.engines.join_listeners.append(lambda joined: self._grammars.clear())
        self._quarantine = Quarantine(self.engines)
        self._is_admitting = True
        self._is_closing = False
        self._num_open = 0
        metrics.set_num_queued(model_name, 0)

    def change_limits(self, limits: RouterLimits) -> None:
        """Apply other limits from now on; admitted requests stay."""
        self._admission.limits = limits
        self._queue.change_limits(limits)

    @property
    def num_open(self) -> int:
        """Requests that have begun and not ended."""
        return self._num_open

    def stop_admitting(self) -> None:
        """Report an overload from now on, and not to be ready; open requests continue."""
        self._is_admitting = False

    async def close(self) -> None:
        """Close the links to all engines, which ends all open requests with ShuttingDown."""
        self._is_closing = True
        self.stop_admitting()
        self._engine_wait_s = 0.0
        self._queue.close()
        await self.engines.close()

    async def compile_grammar(self, spec: StructuredOutputsParams) -> bool:
        """Have an engine compile a grammar; raises InvalidParameter for one that it refuses. False without engines."""
        return await self._grammars.check(spec)

    def describe(self) -> ModelDescription:
        """Describe the model, with the limits of its tightest engine."""
        return self.engines.describe()

    def status(self) -> ServiceStatus:
        """Return whether a request could start now, and the stats of every engine."""
        reason = self._reason_not_ready()
        return ServiceStatus(
            ready=not reason,
            reason=reason,
            num_waiting=self._admission.num_waiting,
            engines={engine.name: engine.stats for engine in self.engines.links.values()},
            descriptions={engine.name: engine.description for engine in self.engines.links.values()},
        )

    def overload(self) -> Unavailable | None:
        """Return why no request would be admitted now; None while requests are admitted."""
        return self._admission.overload() if self._is_admitting else ShuttingDown()

    @property
    def needs_engine(self) -> bool:
        """Whether there is no engine, and a request waits for one or the model is not described yet."""
        wanted = len(self._queue) > 0 or self.engines.is_waited_for or not self.engines.is_described
        return wanted and not self.engines.available()

    def generate(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        """Yield outputs as they come; closing the iterator aborts the request without waiting for the engine.

        A rejection is raised at once, before the event loop runs anything else, so the queue's limits hold in a burst.
        """
        request = prepare(request, self.describe(), self._admission.limits)
        num_prompt_tokens, num_tokens = request.num_input_tokens, cost_of(request).num_tokens
        try:
            slot = self._admission.admit(request.tenant, num_tokens, self.engines.num_cache_tokens, num_prompt_tokens)
        except QueueFull:
            self._metrics.request_rejected(self._model_name, "queue_full")
            raise
        return self._run_with_migration(request, slot)

    def _find_compiling_engine(self) -> Compile | None:
        engine = min(self.engines.available(), key=lambda engine: engine.num_in_flight, default=None)
        return None if engine is None else engine.compile_grammar

    def _reason_not_ready(self) -> str:
        """Return why no request could start now; an empty text where one could."""
        if not self._is_admitting:
            return "the service is shutting down"
        states = {engine.stats.state for engine in self.engines.available()}
        can_start = self.engines.is_starting and self.engines.is_described and not self.engines.find_missing_files()
        if EngineState.RUNNING in states or can_start:
            return ""
        return ", ".join(sorted(states)) or str(self.engines.not_ready())

    async def _run_with_migration(
        self, request: GenerationRequest, slot: AdmissionSlot
    ) -> AsyncIterator[RequestOutput]:
        stream = StreamState(request, self._tokenizer)
        deadline = None if request.timeout_s is None else self._clock() + request.timeout_s
        run = _RequestState(stream, slot, RetryBudget(), self._quarantine.permit(), deadline)
        timers = self._start_timers(stream)
        ending: FinishReason = "abort"  # unless the stream ends otherwise
        self._num_open += 1
        try:
            while not stream.is_finished:
                timers.record_engine_change()
                attempt = await self._dispatch(run)
                if attempt is None:
                    timers.record(ended := stream.fail("timeout"))
                    yield ended
                    break
                timers.record_dispatch()
                try:
                    while not stream.is_finished:
                        output = await self._next_output(run, attempt)
                        attempt = self._hand_over(run, attempt)
                        if output is not None:
                            timers.record(output)
                            yield output
                except EngineDead as error:
                    self._record_loss(run, timers, attempt.decision.link.name, error)
                finally:
                    attempt.abort()
                    run.permit.release()
        except Exception as error:
            ending = "error"
            if self._is_closing and isinstance(error, EngineDead | NotReady):
                raise ShuttingDown from None
            raise
        finally:
            self._num_open -= 1
            slot.release()
            run.permit.release()
            timers.finish_all(ending)
            if run.budget.has_queued:
                expected, had = cost_of(request), request.num_input_tokens + stream.num_output_tokens
                self._queue.charge(request.tenant, expected.priority, had - expected.num_tokens)

    async def _next_output(self, run: "_RequestState", attempt: DispatchAttempt) -> RequestOutput | None:
        """Wait for the stream's next deltas and return the output that they make; None while it has no visible text."""
        stream, left_s = run.stream, self._time_left_s(run)
        try:
            deltas = await attempt.deltas.take(left_s) if left_s is None or left_s > 0 else None
        except TimeoutError:
            deltas = None
        if deltas is None:
            output: RequestOutput | None = stream.fail("timeout")
        else:
            run.slot.start()
            output = stream.apply_all(deltas)
        if stopped := stream.stopped_request_ids():
            attempt.abort(stopped)
        if run.budget.may_crash_engines and run.budget.made_progress(stream.num_output_tokens):
            run.permit.release()
        return output

    def _hand_over(self, run: "_RequestState", attempt: DispatchAttempt) -> DispatchAttempt:
        """Let a decode engine continue a stream that a prefill engine began; returns the stream's attempt."""
        stream = run.stream
        if not attempt.may_hand_over or stream.is_finished or not stream.has_begun:
            return attempt
        attempt.may_hand_over = False  # where no engine has credits now, the stream stays
        request = stream.engine_requests()[0]
        block_hashes = hash_prompt_blocks(request, self.engines.block_size, self.engines.weights_version)
        decision = self.engines.select_handover(attempt.decision.link, cost_of(request), block_hashes)
        if decision is None:
            return attempt
        attempt.abort()
        run.budget.handed_over(stream.num_output_tokens)
        requests = stream.engine_requests(attempt=run.budget.begin())
        other = DispatchAttempt(decision, requests, DeltaQueue(self._admission.limits.stream_interval))
        self._metrics.stream_handed_over(self._model_name)
        if stream.request.trace:
            self._traces.migrated(
                stream.request_id,
                engine=attempt.decision.link.name,
                reason="prompt computed",
                output_tokens=stream.num_output_tokens,
            )
            other.record(self._traces, stream.request_id, 0.0)
        return other

    async def _dispatch(self, run: "_RequestState") -> DispatchAttempt | None:
        """Dispatch the rest of the stream to an engine; None when its time is up before an engine has it.

        Raises NotReady when there is no engine for a new stream, EngineDead when a stream cannot continue elsewhere.
        """
        while True:
            try:
                if run.budget.may_crash_engines:
                    run.permit.release()  # the last engine was gone before it had the stream, and the next may be long
                    await run.permit.acquire(partial(self._engine_wait_left_s, run))
                attempt = await self._send(run)
            except TimeoutError:
                return None
            except NotReady as error:
                if isinstance(error, ModelFilesGone) or not run.budget.num_lost:
                    raise
                if (left_s := self._time_left_s(run)) is None or left_s > 0:
                    raise EngineDead("the engine that ran the request is gone, and no other has come") from None
                return None
            try:
                async with asyncio.timeout(self._time_left_s(run)):
                    await attempt.wait_accepted()
            except EngineDead as error:
                self.engines.remove(attempt.decision.link.name, str(error))
            except BaseException as error:
                attempt.abort()
                if isinstance(error, TimeoutError):
                    return None
                raise
            else:
                return attempt

    async def _send(self, run: "_RequestState") -> DispatchAttempt:
        """Send the next attempt to an engine: the first one waits in the queue, others ignore credits.

        Raises NotReady without an engine, TimeoutError when the client's time is up before one is selected.
        """
        stream, since = run.stream, self._clock()
        requests = stream.engine_requests(attempt=run.budget.begin())
        block_hashes = partial(hash_prompt_blocks, requests[0], self.engines.block_size, self.engines.weights_version)
        deltas = DeltaQueue(self._admission.limits.stream_interval)
        if run.budget.num_begun > 1:
            wait_s = self._engine_wait_left_s(run)
            decision = await self.engines.wait_for_engine(
                cost_of(requests[0]), block_hashes(), wait_s, continues=stream.num_output_tokens > 0
            )
            attempt = DispatchAttempt(decision, requests, deltas)
        else:
            queued = QueuedRequest(
                cost=cost_of(stream.request),
                tenant=stream.request.tenant,
                deadline=run.deadline,
                hash_prompt=block_hashes,
                requests=requests,
                deltas=deltas,
            )
            try:
                attempt = await self._queue.dispatch(queued, self._time_left_s(run))
            finally:
                run.budget.has_queued = queued.has_waited and queued.is_dispatched
        if stream.request.trace:
            attempt.record(self._traces, stream.request_id, self._clock() - since)
        return attempt

    def _time_left_s(self, run: "_RequestState") -> float | None:
        return None if run.deadline is None else run.deadline - self._clock()

    def _engine_wait_left_s(self, run: "_RequestState") -> float:
        """Return how long the stream may wait for an engine: new streams need not, as other routers may have one."""
        if not (self.engines.may_be_empty or run.budget.num_lost or run.budget.has_queued):
            return 0.0
        left_s = self._time_left_s(run)
        return self._engine_wait_s if left_s is None else min(self._engine_wait_s, left_s)

    def _record_loss(self, run: "_RequestState", timers: StreamTimers, engine: str, error: EngineDead) -> None:
        """Count a lost or drained engine; raises EngineDead when the stream may not be retried."""
        stream, budget, is_leaving = run.stream, run.budget, isinstance(error, EngineLeaving)
        if is_leaving:
            budget.migrated(stream.num_output_tokens)
        else:
            budget.lost(stream.num_output_tokens)
        if budget.is_exhausted:
            logger.error(
                "request %s is rejected: it has lost %d engines", stream.request_id, budget.num_losses_without_progress
            )
            raise EngineDead("every engine that tried to compute this request has ended") from None
        self._metrics.stream_migrated(self._model_name)
        reason = "engine leaves" if is_leaving else "engine lost"
        self._traces.migrated(
            stream.request_id,
            engine=engine,
            reason=reason,
            output_tokens=stream.num_output_tokens,
            first_token_s=timers.first_token_s,
        )

    def _start_timers(self, stream: StreamState) -> StreamTimers:
        request = stream.request
        on_end = partial(self._record_end, stream) if request.trace else None
        return StreamTimers(self._metrics, self._model_name, request, on_end=on_end)

    def _record_end(self, stream: StreamState, choice: int, reason: FinishReason) -> None:
        self._traces.finished(stream.request_id, choice, reason, stream.num_tokens_of(choice))

    def _record_engine_events(self, engine_request_id: str, events: list[TraceEvent]) -> None:
        name = EngineRequestId.parse(engine_request_id)
        self._traces.add_engine_events(name.request_id, name.choice, events)


class _RequestState(NamedTuple):
    """One admitted request while it runs."""

    stream: StreamState
    slot: AdmissionSlot
    budget: RetryBudget
    permit: QuarantinePermit
    deadline: float | None  # of the dispatcher's clock
