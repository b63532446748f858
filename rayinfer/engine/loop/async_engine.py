"""Asynchronous engine: requests come from event loops, steps run in a thread, and routers get one message per step."""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from rayinfer.engine.loop.compiling_requests import CompilingRequests
from rayinfer.engine.loop.engine_commands import (
    Abort,
    Command,
    Compiled,
    Continue,
    RunControlAction,
    Stop,
    Submit,
    Unsubscribe,
)
from rayinfer.engine.loop.router_subscriptions import RouterSubscription, RouterSubscriptions
from rayinfer.engine.loop.self_check import needs_self_check, run_self_check
from rayinfer.engine.loop.step_watchdog import StepWatchdog
from rayinfer.engine.loop.stepped_engine import SteppedEngine
from rayinfer.errors import EngineDead, RequestError, WrongEngineState
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.kv_transfer.stored_blocks import StoredBlocks
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits
from rayinfer.outputs import EngineStats, FinishReason, StepMessage, TokenDelta
from rayinfer.predictions import PredictionOutput
from rayinfer.protocols import ControlAction, GenerationRequest, GetState, ModelDescription
from rayinfer.traces.request_trace import RequestTrace

logger = logging.getLogger(__name__)


class AsyncEngine:
    """The EngineClient of an engine in this process.

    The thread owns the engine: commands reach it through one queue, between two steps. The thread waits for no reader.
    If a step raises what no single request explains, or the self-check fails, the engine is dead: `failure` is the
    cause, and every `outputs` iterator raises EngineDead.
    """

    def __init__(self, engine: SteppedEngine, *, limits: LivenessLimits = DEFAULT_LIMITS) -> None:
        self.description: ModelDescription = engine.description
        self.failure: BaseException | None = None
        self.stored_blocks: StoredBlocks | None = None  # which transfers between machines read and write
        self._engine = engine
        self._limits = limits
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._routers = RouterSubscriptions(self.description, limits.subscribe_timeout_s)
        self._is_over = False
        self._lock = threading.Lock()  # no command with a future is queued after _is_over
        self._owners: dict[str, RouterSubscription] = {}  # by request id; used by the thread only
        self._compiling = CompilingRequests()  # used by the thread only
        self._stats = engine.stats
        self._watchdog = StepWatchdog(limits=limits)
        engine.on_plan = self._watchdog.record_plan
        engine.on_ready = lambda: self._commands.put(Continue())
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the loop."""
        self._thread.start()

    async def submit(self, requests: Sequence[GenerationRequest], router_id: str) -> None:
        """Queue requests for the next step; a refused one finishes with "error"."""
        router = self._routers.subscribe(router_id)
        if self._is_over:
            raise self._death()
        self._commands.put(Submit(list(requests), router))

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Abort requests before the next step; unknown ids are ignored."""
        self._commands.put(Abort(list(request_ids)))

    async def compile_grammar(self, spec: StructuredOutputsParams, router_id: str) -> None:
        """Compile a grammar at once, beside the steps; raises InvalidParameter for one that is refused, EngineDead."""
        if self._is_over:
            raise self._death()
        try:
            compiling = asyncio.wrap_future(self._engine.compile_grammar(spec))
            try:
                await asyncio.wait((compiling,))
            finally:
                compiling.cancel()  # where it has not begun and is not waited for any more
            if not compiling.cancelled():
                compiling.result()
                return
        except RuntimeError:  # of threads that begin nothing any more
            if not self._is_over:
                raise
        raise self._death()

    async def outputs(self, router_id: str) -> AsyncIterator[StepMessage]:
        """Yield this router's messages; closing the iterator aborts all of the router's requests."""
        router = self._routers.subscribe(router_id, is_read=True)
        try:
            while (message := await self._next_message(router)) is not None:
                yield message
            if self.failure is not None:
                raise self._death()
        finally:
            self._routers.unsubscribe(router_id, router)
            self._commands.put(Unsubscribe(router))

    async def control(self, action: ControlAction) -> list[str]:
        """Run the action between two steps; returns the engine's state after it. Cancelled before, it has no effect.

        Raises WrongEngineState where the action is refused in this state, InvalidParameter for an unknown level, and
        EngineDead for an engine that is dead, or dies of the action. `GetState` waits for no step.
        """
        change = RunControlAction(action)
        with self._lock:
            if self._is_over:
                raise self._death()
            if isinstance(action, GetState):
                return [self._stats.state]
            self._commands.put(change)
        return [await asyncio.wrap_future(change.done)]

    async def shutdown(self) -> None:
        """Stop the loop: abort all requests, end every `outputs`, and free the engine's memory."""
        self._commands.put(Stop())
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs."""
        return self._thread.is_alive()

    @property
    def stalled_s(self) -> float:
        """Seconds since the loop's last iteration; steps and idle waits both count.

        Zero while the engine falls asleep or wakes: reading a checkpoint takes as long as at the start.
        """
        return self._watchdog.stalled_s

    @property
    def stall_limit_s(self) -> float:
        """Longest time that a loop iteration may take before the engine counts as stuck."""
        return self._watchdog.limit_s

    @property
    def stats(self) -> EngineStats:
        """Counters and gauges after the latest step."""
        return self._stats

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self._owners) + self._commands.qsize()

    async def _next_message(self, router: RouterSubscription) -> StepMessage | None:
        """Wait for the thread's next message; after `message_interval_s` report for how long the loop has stalled."""
        try:
            return await router.outputs.get(self._limits.message_interval_s)
        except TimeoutError:
            return replace(self._message([]), stalled_s=self.stalled_s, stall_limit_s=self.stall_limit_s)

    def _death(self) -> EngineDead:
        if isinstance(self.failure, EngineDead):
            return EngineDead(str(self.failure))
        cause = "it was shut down" if self.failure is None else type(self.failure).__name__
        return EngineDead(f"the engine ended: {cause}")

    # The engine's thread

    def _run(self) -> None:
        try:
            while self._run_commands():
                self._engine.check_alive()
                self._end_compiling(self._compiling.overdue(), "timeout")
                if self._engine.wait_s > 0:
                    continue
                self._engine.release_unused()
                self._publish(self._step() if self._engine.has_unfinished_requests else [])
                self._drop_unread_routers()
        except BaseException as error:
            logger.exception("the engine loop ends")
            self.failure = error
        finally:
            with self._lock:
                self._is_over = True
            self._routers.close()
            self._fail_changes()
            self._engine.exit()

    def _step(self) -> list[TokenDelta]:
        with self._watchdog.step():
            deltas = self._engine.step()
            if needs_self_check(deltas):
                deltas += run_self_check(self._engine)
            return deltas

    def _run_commands(self) -> bool:
        """Run the commands queued since the last step; when idle or delaying a step, wait for one.

        At most for a heartbeat, or as long as the step is delayed.
        """
        wait_s = self._engine.wait_s if self._engine.can_advance else self._limits.loop_heartbeat_s
        try:
            command = self._commands.get(block=wait_s > 0, timeout=wait_s)
            while not isinstance(command, Stop):
                self._run_command(command)
                command = self._commands.get_nowait()
        except queue.Empty:
            self._watchdog.record_iteration()
            return True
        # Without deltas: routers see their outputs end, and may continue elsewhere.
        for request_id in self._owners:
            self._engine.abort(request_id)
        self._stats = self._engine.stats
        return False

    def _run_command(self, command: Submit | Abort | Unsubscribe | RunControlAction | Continue | Compiled) -> None:
        if isinstance(command, Submit):
            for request in command.requests:
                self._submit(request, command.router)
        elif isinstance(command, Compiled):
            self._add_compiled(command)
        elif isinstance(command, Abort):
            self._abort(command.request_ids)
        elif isinstance(command, RunControlAction):
            self._change(command)
        elif isinstance(command, Unsubscribe):
            self._abort(list(command.router.request_ids))

    def _submit(self, request: GenerationRequest, router: RouterSubscription) -> None:
        """Add a request, or if its grammar is not compiled, or its adapter not read, have that done first."""
        try:
            compiling = self._engine.start_compiling(request)
        except RequestError as error:
            self._refuse(request, router, error)
            return
        if compiling is None:
            self._add(request, router)
            return
        self._compiling.add(request, compiling)
        router.request_ids.add(request.request_id)
        self._owners[request.request_id] = router
        compiling.add_done_callback(lambda done: self._commands.put(Compiled(request, done)))

    def _add_compiled(self, compiled: Compiled) -> None:
        """Add a request that has what it waited for, or refuse it, unless it was aborted meanwhile."""
        if compiled.compiling.cancelled():
            return
        request = self._compiling.take(compiled.request)
        if request is None:
            return
        router = self._owners.pop(request.request_id)
        router.request_ids.discard(request.request_id)
        error = compiled.compiling.exception()
        if error is None:
            self._add(request, router)
        elif isinstance(error, RequestError):
            self._refuse(request, router, error)
        else:
            raise error

    def _add(self, request: GenerationRequest, router: RouterSubscription) -> None:
        try:
            self._engine.add_request(request)
        except RequestError as error:
            self._refuse(request, router, error)
            return
        router.request_ids.add(request.request_id)
        self._owners[request.request_id] = router

    def _refuse(self, request: GenerationRequest, router: RouterSubscription, error: RequestError) -> None:
        logger.warning("request %s refused: %s", request.request_id, error)
        router.outputs.put(self._message([_refusal(request, str(error))]))

    def _change(self, change: RunControlAction) -> None:
        """Run an action, or if it needs files have these read first, beside the steps."""
        if not change.is_read and (reading := self._engine.start_reading(change.action)) is not None:
            self._put_when_read(replace(change, is_read=True), reading)
            return
        if not change.done.set_running_or_notify_cancel():
            return
        with self._watchdog.suspended():
            try:
                state = self._engine.control(change.action)
            except (RequestError, WrongEngineState) as error:
                change.done.set_exception(error)
            except BaseException as error:
                change.done.set_exception(error)
                raise
            else:
                self._stats = self._engine.stats
                change.done.set_result(state)

    def _put_when_read(self, change: RunControlAction, reading: Future[Any]) -> None:
        def put(_: Future[Any]) -> None:
            with self._lock:
                if not self._is_over:
                    self._commands.put(change)
                    return
            if change.done.set_running_or_notify_cancel():
                change.done.set_exception(self._death())

        reading.add_done_callback(put)

    def _fail_changes(self) -> None:
        """Fail the changes that are still queued; none is added after `_is_over`."""
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, RunControlAction) and command.done.set_running_or_notify_cancel():
                command.done.set_exception(self._death())

    def _abort(self, request_ids: Sequence[str]) -> None:
        added = self._end_compiling(request_ids, "abort")
        aborted = (self._engine.abort(request_id) for request_id in added)
        self._publish([delta for delta in aborted if delta is not None])

    def _end_compiling(self, request_ids: Sequence[str], reason: FinishReason) -> list[str]:
        """End those requests that are not added yet; returns the other ids."""
        dropped = {each: request for each in request_ids if (request := self._compiling.drop(each)) is not None}
        if dropped:
            ends = ((each, len(request.output_token_ids)) for each, request in dropped.items())
            self._publish([TokenDelta(each, num_tokens, [], finish_reason=reason) for each, num_tokens in ends])
        return [each for each in request_ids if each not in dropped]

    def _drop_unread_routers(self) -> None:
        """Abort the requests of routers that have not read in time."""
        for router in self._routers.pop_unread():
            self._abort(list(router.request_ids))

    def _publish(self, deltas: list[TokenDelta]) -> None:
        """Send every router its own deltas and the engine's state."""
        by_router: dict[RouterSubscription, list[TokenDelta]] = {}
        for delta in deltas:
            by_router.setdefault(self._owners[delta.request_id], []).append(delta)
            if delta.finish_reason is not None:
                self._owners.pop(delta.request_id).request_ids.discard(delta.request_id)
        self._stats = self._engine.stats
        stored, removed = self._engine.take_block_events()
        for router in self._routers.current():
            router.outputs.put(self._message(by_router.get(router, []), stored, removed))

    def _message(
        self, deltas: list[TokenDelta], stored: Sequence[bytes] = (), removed: Sequence[bytes] = ()
    ) -> StepMessage:
        return StepMessage(
            deltas=deltas,
            stats=replace(self._stats, credits=self._routers.credits),
            blocks_stored=list(stored),
            blocks_removed=list(removed),
        )


def _refusal(request: GenerationRequest, message: str) -> TokenDelta:
    trace = RequestTrace()
    trace.record("finished", reason="error", output_tokens=0)
    events = trace.in_order() if request.trace else None
    prediction = None if request.prediction is None else PredictionOutput(error=message)
    return TokenDelta(
        request.request_id, 0, [], finish_reason="error", trace=events, prediction=prediction, error=message
    )
