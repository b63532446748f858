"""A router's link to one engine: connection, requests in flight, and routes of their tokens."""

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rayinfer.credits import credits_of_each
from rayinfer.errors import EngineDead, EngineLeaving
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits, TickWatch
from rayinfer.outputs import EngineStats, StepMessage, TraceEvent
from rayinfer.protocols import ControlAction, EngineClient, GenerationRequest, KVAddress, ModelDescription
from rayinfer.routing.delta_queue import DeltaQueue
from rayinfer.routing.engine_choice import EngineLoad, RequestCost, cost_of_choice
from rayinfer.routing.roles.advice import EngineTimes, PromptTimes, RoleAdvisor

Result = TypeVar("Result")


@dataclass(slots=True)
class _Route:
    """The queue for one engine request's tokens, and its cost."""

    queue: DeltaQueue
    cost: RequestCost
    submission: asyncio.Task[None]
    times: PromptTimes
    has_tokens: bool = False


class EngineLink:
    """Sends requests to one engine and fans its messages out to the queues of the streams.

    An engine that sends no messages, or is in one step for too long, is lost as well: a process can hang.

    `on_message` gets every message once its tokens are delivered, `on_lost` the cause, once, when the engine's
    outputs end, and `on_trace` the events of a traced request, possibly after its stream has ended.
    """

    def __init__(
        self,
        name: str,
        client: EngineClient,
        description: ModelDescription,
        *,
        router_id: str,
        on_message: Callable[[str, StepMessage], None],
        on_lost: Callable[[str, str], None],
        on_trace: Callable[[str, list[TraceEvent]], None],
        is_replaceable: Callable[[], bool] = lambda: True,
        kv_address: KVAddress | None = None,
        advisor: RoleAdvisor | None = None,
        limits: LivenessLimits = DEFAULT_LIMITS,
    ) -> None:
        self.name = name
        self.description = description
        self.kv_address = kv_address  # of the engine's process, where it serves KV blocks to other engines
        self.load = EngineLoad()
        # Until its first report, it is assumed to have no other router; without credits it would get the whole queue.
        self.stats = EngineStats(
            kv_blocks_total=description.kv_blocks_total, credits=credits_of_each(description, num_routers=1)
        )
        self.is_draining = False
        self._client = client
        self._router_id = router_id
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_trace = on_trace
        self._routes: dict[str, _Route] = {}
        self._tasks: set[asyncio.Task[Any]] = set()  # keeps them referenced until they are done
        # Ray cancels a client's request together with every call made in its context: an abort must not be one of them.
        self._context = contextvars.copy_context()
        self._is_replaceable = is_replaceable
        self._times = EngineTimes(RoleAdvisor() if advisor is None else advisor)
        self._limits = limits
        self._watch = TickWatch(limits.link_tick_s)
        self._is_over = False
        self._listener = self._start(self._listen())
        self._watcher = self._start(self._watch_engine())

    @property
    def num_in_flight(self) -> int:
        """Engine requests that have not ended."""
        return len(self._routes)

    def send(self, requests: Sequence[GenerationRequest], queue: DeltaQueue, num_cached_tokens: int = 0) -> None:
        """Send one stream's requests, which share a prompt; returns at once. `acked` has the outcome.

        They count in the load from now on, and their tokens go to the queue.
        """
        submission = self._start(self._client.submit(requests, self._router_id))
        for number, request in enumerate(requests):
            cost = cost_of_choice(request, num_cached_tokens=None if number else num_cached_tokens)
            times = self._times.begin(cost.num_prefill_tokens)
            self._routes[request.request_id] = _Route(queue, cost, submission, times)
            self.load.add(cost)

    async def wait_accepted(self, request_ids: Sequence[str]) -> None:
        """Wait until the engine has the requests; raises EngineDead when it cannot be reached.

        If the wait is cancelled, the requests are aborted.
        """
        route = self._routes.get(request_ids[0])
        if route is None:
            return  # its outputs have ended, and the queue has the end
        try:
            # A lost engine may hang: its submission does not return until its process ends.
            if not route.submission.done():
                await asyncio.wait((route.submission, self._listener), return_when=asyncio.FIRST_COMPLETED)
            if not route.submission.done():
                raise EngineDead("the engine was lost before it had the request")
            route.submission.result()
        except BaseException:
            self.abort(request_ids)
            raise

    async def compile_grammar(self, spec: StructuredOutputsParams) -> None:
        """Have the engine compile a grammar; raises InvalidParameter for one that it refuses, EngineDead."""
        compiling = self._start(self._client.compile_grammar(spec, self._router_id))
        try:
            await asyncio.wait((compiling, self._listener), return_when=asyncio.FIRST_COMPLETED)
            if not compiling.done():  # a lost engine may hang
                raise EngineDead("the engine was lost while it compiled a grammar")
            compiling.result()
        finally:
            compiling.cancel()

    async def control(self, action: ControlAction) -> list[str]:
        """Run an action on the engine, to its end even if the caller is cancelled; returns the engine's state."""
        return await asyncio.shield(self._start(self._client.control(action)))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Remove these requests and abort those that still run; returns at once in any engine state."""
        removed = {request_id: route for request_id in request_ids if (route := self._remove(request_id))}
        if removed and not self._listener.done():
            pending = {route.submission for route in removed.values() if not route.submission.done()}
            self._start(self._abort(list(removed), pending))

    def fail(self, error: EngineDead) -> None:
        """End every stream with this error and stop listening."""
        self._is_over = True
        self._fail_queues(error)
        for request_id in list(self._routes):
            self._remove(request_id)
        self._listener.cancel()
        self._watcher.cancel()

    def migrate(self, error: EngineLeaving) -> None:
        """End every stream with this error, abort its requests, and stay connected."""
        self._fail_queues(error)
        self.abort(list(self._routes))

    def _fail_queues(self, error: EngineDead) -> None:
        for queue in {id(route.queue): route.queue for route in self._routes.values()}.values():
            queue.fail(error)

    async def wait_closed(self) -> None:
        """Wait until the connection is closed after `fail`, so that the engine has aborted its requests."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._limits.link_close_s)

    def _start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.get_running_loop().create_task(work, context=self._context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _listen(self) -> None:
        reason = "its outputs ended"
        try:
            async with contextlib.aclosing(self._client.outputs(self._router_id)) as messages:  # type: ignore[type-var]
                async for message in messages:
                    self._deliver(message)
        except EngineDead as error:
            reason = str(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        self._on_lost(self.name, reason)

    async def _watch_engine(self) -> None:
        """Report the engine lost when it sends no messages; later, where no other could continue its streams."""
        limits = self._limits
        while True:
            await asyncio.sleep(limits.link_tick_s)
            self._watch.tick()
            limit_s = limits.link_timeout_s if self._is_replaceable() else limits.last_link_timeout_s
            if self._watch.has_missed(limit_s):
                self._on_lost(self.name, f"it has sent no message for {self._watch.silent_s:.1f} s")

    def _deliver(self, message: StepMessage) -> None:
        if self._is_over:
            return  # the listener is cancelled, but has read further messages already
        self._watch.reset()
        if message.stalled_s > message.stall_limit_s:
            self._on_lost(self.name, f"it has been in one step for {message.stalled_s:.1f} s")
            return
        num_continued, was_disturbed = 0, self._times.has_long_prompt
        for delta in message.deltas:
            if delta.trace is not None:
                self._on_trace(delta.request_id, delta.trace)
            route = self._routes.get(delta.request_id)
            if route is None:
                continue  # it was aborted while this message was on its way
            route.queue.put(delta)
            if route.has_tokens:
                num_continued += 1
            elif delta.token_ids:
                self._times.note_first_token(route.times)
            if delta.finish_reason is not None:
                self._remove(delta.request_id)
            elif not route.has_tokens:
                route.has_tokens = True
                self.load.prefilled(route.cost)
        if message.deltas:
            self._times.note_tokens(num_continued, was_disturbed=was_disturbed)
        self.stats = message.stats
        self._on_message(self.name, message)

    def _remove(self, request_id: str) -> _Route | None:
        route = self._routes.pop(request_id, None)
        if route is not None:
            self._times.end(route.times)
            self.load.remove(route.cost, is_prefilled=route.has_tokens)
        return route

    async def _abort(self, request_ids: Sequence[str], pending: Collection[asyncio.Task[None]]) -> None:
        # Calls may overtake each other: an abort that arrives before its request has no effect.
        await asyncio.gather(*pending, return_exceptions=True)
        # An unreachable engine has nothing to abort; the listener reports its loss.
        with contextlib.suppress(Exception):
            await self._client.abort(request_ids)
