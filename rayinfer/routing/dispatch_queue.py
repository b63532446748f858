"""The router's dispatch queue: priority, then weighted fair sharing among tenants."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rayinfer.errors import ModelFilesGone
from rayinfer.priority_queue import PriorityQueue, QueueEntry
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.bounded_wait import wait_within
from rayinfer.routing.delta_queue import DeltaQueue
from rayinfer.routing.dispatch_attempt import DispatchAttempt
from rayinfer.routing.engine_choice import RequestCost
from rayinfer.routing.engine_set import EngineSet
from rayinfer.routing.limits import RouterLimits
from rayinfer.routing.prefix_groups import PrefixGroups

MAX_PREFIX_BATCH = 16  # requests that share a prefix with the batch leader and are dispatched right after it
FIRST_RATE = 100.0  # tokens per second, assumed until the service rate is known
RATE_WINDOW_S = 1.0
SMOOTHING = 0.5  # weight of the latest window


@dataclass(kw_only=True, slots=True, eq=False)
class QueuedRequest:
    """A queued client request."""

    cost: RequestCost
    tenant: str
    deadline: float | None  # seconds on any one clock
    hash_prompt: Callable[[], Sequence[bytes]]  # of the prompt's full blocks
    requests: Sequence[GenerationRequest]  # the engine requests of its choices
    deltas: DeltaQueue  # of their tokens
    entry: "QueueEntry[QueuedRequest] | None" = None  # while it waits
    has_waited: bool = False
    attempt: asyncio.Future[DispatchAttempt] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _hashes: Sequence[bytes] | None = None

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """Hashes of the prompt's blocks, hashed on first use: a single engine with free credits needs none."""
        if self._hashes is None:
            self._hashes = self.hash_prompt()
        return self._hashes

    @property
    def is_dispatched(self) -> bool:
        """Whether an engine was selected, even if the client has left since."""
        return self.attempt.done() and not self.attempt.cancelled() and self.attempt.exception() is None


class DispatchQueue:
    """Dispatches requests while engines have free credits, and keeps the others in order.

    No request waits while an engine has free credits. Otherwise the first request is dispatched as soon as any engine
    has, followed by a prefix batch: requests of the same priority that share the longest prefix with it, which the
    engine computes once. Positions in the order are fixed at arrival, and a member of a prefix batch uses up its own:
    the tenants' shares are unchanged.

    The queue's clock counts tokens served, not time, so shares depend on no estimate. Only `ageing_s`, the value of one
    level of priority, is converted from seconds by the recent service rate.
    """

    def __init__(
        self,
        engines: EngineSet,
        limits: RouterLimits,
        *,
        engine_wait_s: float,
        on_change: Callable[[int], None] = lambda _: None,
        queued_by: dict[tuple[str, int], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engines = engines
        self._engine_wait_s = engine_wait_s
        self._on_change = on_change
        self._queued_by = {} if queued_by is None else queued_by  # how many, by tenant and priority
        self._queue: PriorityQueue[QueuedRequest] = PriorityQueue()
        self._groups: PrefixGroups[QueuedRequest] = PrefixGroups()
        self._service_rate = _ServiceRate(clock)
        self._batch_leader: QueuedRequest | None = None  # the latest request that was dispatched in order
        self._num_batched = 0
        self._arrivals: dict[QueuedRequest, float] = {}  # of waiting requests, in this order; seconds of the loop
        self._engine_timer: asyncio.TimerHandle | None = None  # set for the oldest of them or earlier
        engines.capacity_listeners.append(self.advance)
        self.change_limits(limits)

    def __len__(self) -> int:
        return len(self._queue)

    def change_limits(self, limits: RouterLimits) -> None:
        """Order the requests that arrive from now on by other limits."""
        self._limits = limits
        self._queue.change(ageing_s=limits.ageing_s * self._service_rate.rate)

    async def dispatch(self, request: QueuedRequest, timeout_s: float | None) -> DispatchAttempt:
        """Wait until an engine is selected; the requests have been sent to it when this returns.

        Raises TimeoutError when that takes too long, NotReady when there is no engine for too long.
        """
        if not self._queue and self._send(request):
            return request.attempt.result()
        if not self._engines.available() and isinstance(error := self._engines.not_ready(), ModelFilesGone):
            raise error
        self._enqueue(request)
        try:
            return await wait_within(request.attempt, timeout_s)
        except BaseException:
            if request.is_dispatched:  # and its client left before it could be resumed
                request.attempt.result().abort()
            elif request.entry is not None:
                self._withdraw(request)
                self.advance()  # the next request may need less
            raise

    def advance(self, engine: str | None = None) -> None:
        """Dispatch requests in order as far as credits allow; cheap when none waits.

        `engine` is the only one whose credits have changed since the last time, None stands for any.
        """
        while (first := self._first()) is not None:
            member = self._prefix_member(first)
            served = next((request for request in (member, first) if request and self._send(request, engine)), None)
            if served is None:
                break
            self._record_service(served)

    def close(self) -> None:
        """Reject all requests that still wait."""
        if self._engine_timer is not None:
            self._engine_timer.cancel()
            self._engine_timer = None
        for request in list(self._arrivals):
            self._reject(request)

    def charge(self, tenant: str, priority: int, num_tokens: int) -> None:
        """Charge a tenant for so many tokens more, or fewer, than its request was expected to have."""
        self._queue.charge(tenant, priority, num_tokens, self._limits.of_tenant(tenant).weight)

    def _enqueue(self, request: QueuedRequest) -> None:
        request.entry = self._queue.push(
            request,
            priority=request.cost.priority,
            arrival=0.0,  # where an empty queue's clock starts; later its virtual time counts
            deadline=request.deadline,
            tenant=request.tenant,
            cost=request.cost.num_tokens,
            weight=self._limits.of_tenant(request.tenant).weight,
        )
        request.has_waited = True
        self._arrivals[request] = asyncio.get_running_loop().time()
        kind = (request.tenant, request.cost.priority)
        self._queued_by[kind] = self._queued_by.get(kind, 0) + 1
        self._set_engine_timer(self._arrivals[request] + self._engine_wait_s)
        if self._limits.group_by_prefix:
            self._groups.add(request, request.block_hashes)
        self._on_change(len(self._queue))
        if self._first() is request:
            self.advance()  # credits may suffice for a more urgent request than those before

    def _send(self, request: QueuedRequest, engine: str | None = None) -> bool:
        """Send the request to an engine with free credits, if there is one."""
        if request.attempt.done():  # its client has just left
            self._withdraw(request)
            return True
        block_hashes = request.block_hashes if self._limits.route_by_prefix and len(self._engines.links) > 1 else ()
        decision = self._engines.select_engine(request.cost, block_hashes, among=engine)
        if decision is None:
            return False
        if request.entry is not None:
            self._record_order(request)
            self._queue.serve(request.entry)
            self._remove(request)
        request.attempt.set_result(DispatchAttempt(decision, request.requests, request.deltas))
        return True

    def _first(self) -> QueuedRequest | None:
        entry = self._queue.peek()
        return None if entry is None else entry.item

    def _prefix_member(self, first: QueuedRequest) -> QueuedRequest | None:
        """Find a request that may follow the latest leader out of order; higher priorities are never overtaken."""
        leader = self._batch_leader
        if leader is None or not self._groups or self._num_batched >= MAX_PREFIX_BATCH:
            return None
        priority = leader.cost.priority
        if first.cost.priority < priority:
            return None
        sharing = self._groups.sharing_most(leader.block_hashes)
        return next((request for request in sharing if request.cost.priority == priority), None)

    def _record_order(self, request: QueuedRequest) -> None:
        if request is self._first():
            self._batch_leader, self._num_batched = request, 0
        else:
            self._num_batched += 1

    def _withdraw(self, request: QueuedRequest) -> None:
        """Remove a request without service."""
        self._remove(request)
        self.charge(request.tenant, request.cost.priority, -request.cost.num_tokens)

    def _remove(self, request: QueuedRequest) -> None:
        """Remove a request from the queue if it is there."""
        if request.entry is None:
            return
        self._queue.remove(request.entry)  # unless it has been served
        request.entry = None
        del self._arrivals[request]
        kind = (request.tenant, request.cost.priority)
        if (left := self._queued_by[kind] - 1) > 0:
            self._queued_by[kind] = left
        else:
            del self._queued_by[kind]
        self._groups.remove(request)
        self._on_change(len(self._queue))

    def _record_service(self, request: QueuedRequest) -> None:
        """Update the service rate, which converts seconds to tokens."""
        if self._service_rate.served(request.cost.num_tokens, is_busy=bool(self._queue)):
            self._queue.change(ageing_s=self._limits.ageing_s * self._service_rate.rate)

    def _set_engine_timer(self, at: float) -> None:
        if self._engine_timer is None:
            self._engine_timer = asyncio.get_running_loop().call_at(at, self._check_for_engines)

    def _check_for_engines(self) -> None:
        """Reject the requests for which there has been no engine for `engine_wait_s` since they arrived.

        Runs when the oldest request could be due, and again when the next one could.
        """
        self._engine_timer = None
        now = asyncio.get_running_loop().time()
        for request, arrival in list(self._arrivals.items()):
            lost = self._engines.without_engines_since
            due = (now if lost is None else max(arrival, lost)) + self._engine_wait_s
            if due > now:
                self._set_engine_timer(due)
                return
            self._reject(request)

    def _reject(self, request: QueuedRequest) -> None:
        self._remove(request)
        if not request.attempt.done():  # its client may have just left
            request.attempt.set_exception(self._engines.not_ready())


class _ServiceRate:
    """Tokens served per second while requests wait."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._num_tokens = 0
        self._is_known = False
        self.rate = FIRST_RATE

    def served(self, num_tokens: int, *, is_busy: bool) -> bool:
        """Count tokens; returns whether the rate was updated."""
        now = self._clock()
        if self._since is None or not is_busy:
            self._since, self._num_tokens = now if is_busy else None, 0
            return False
        self._num_tokens += num_tokens
        if now - self._since < RATE_WINDOW_S:
            return False
        rate = self._num_tokens / (now - self._since)
        self._since, self._num_tokens = now, 0
        self.rate = SMOOTHING * rate + (1 - SMOOTHING) * self.rate if self._is_known else rate
        self._is_known = True
        return True
