"""The router's dispatch queue: priority, then weighted fair sharing among tenants."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rayinfer.errors import NotReady
from rayinfer.priority_queue import PriorityQueue, QueueEntry
from rayinfer.routing.bounded_wait import wait_within
from rayinfer.routing.engine_set import EngineSet, RoutingDecision
from rayinfer.routing.limits import RouterLimits
from rayinfer.routing.prefix_groups import PrefixGroups
from rayinfer.routing.replica_choice import RequestCost

MAX_PREFIX_BATCH = 16  # those that share a prefix and go right after the one whose request it was
FIRST_RATE = 100.0  # tokens per second that engines are taken to serve before that is known
RATE_WINDOW_S = 1.0
SMOOTHING = 0.5  # weight of the latest window


@dataclass(kw_only=True, slots=True, eq=False)
class QueuedRequest:
    """A queued client request."""

    work: RequestCost
    tenant: str
    deadline: float | None  # seconds on any one clock
    make_digests: Callable[[], Sequence[bytes]]  # of the prompt's full blocks
    take: Callable[[RoutingDecision], None]  # called with the decision, at once
    ticket: "QueueEntry[QueuedRequest] | None" = None  # while it waits
    has_waited: bool = False
    has_come: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _digests: Sequence[bytes] | None = None

    @property
    def digests(self) -> Sequence[bytes]:
        """Digests of the prompt's blocks, hashed on first use: a single engine with room needs none."""
        if self._digests is None:
            self._digests = self.make_digests()
        return self._digests

    @property
    def is_sent(self) -> bool:
        """Whether an engine has got the request, even if its client has left since."""
        return self.has_come.done() and not self.has_come.cancelled() and self.has_come.exception() is None


class DispatchQueue:
    """Sends requests on as long as an engine has room, and keeps the others in order.

    No request waits while there is room. Once one does, the first in the order goes as soon as any engine has room,
    and some of those follow it that share the longest prefix with it and matter as much: the engine computes that
    prefix once, while it still has it. Places in the order are fixed at arrival, so a request that goes early
    does not go again later: shares of tenants stay what they are.

    The queue's clock is work, not time: it counts tokens served, so that shares do not depend on any estimate. Only
    what a level of priority is worth, which is given in seconds, is turned into tokens by the pace of late.
    """

    def __init__(
        self,
        engines: EngineSet,
        limits: RouterLimits,
        *,
        engine_wait_s: float,
        on_change: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engines = engines
        self._engine_wait_s = engine_wait_s
        self._on_change = on_change
        self._queue: PriorityQueue[QueuedRequest] = PriorityQueue()
        self._groups: PrefixGroups[QueuedRequest] = PrefixGroups()
        self._service_rate = _ServiceRate(clock)
        self._batch_leader: QueuedRequest | None = None  # the latest whose request it was, not being a member
        self._num_batched = 0
        self._arrivals: dict[QueuedRequest, float] = {}  # of waiting requests, in this order; seconds of the loop
        self._engine_timer: asyncio.TimerHandle | None = None  # set for the oldest of them or earlier
        self._is_advancing = False
        self.change_limits(limits)

    def __len__(self) -> int:
        return len(self._queue)

    def change_limits(self, limits: RouterLimits) -> None:
        """Order the requests that come from now on by other limits."""
        self._limits = limits
        self._queue.change(ageing_s=limits.ageing_s * self._service_rate.rate)

    async def wait(self, request: QueuedRequest, timeout_s: float | None) -> None:
        """Wait for an engine, which has been given the request when this returns.

        Raises TimeoutError when the request does not come in time, NotReady when there is no engine for too long.
        """
        if not self._queue and self._send(request):
            return
        self._push(request)
        try:
            await wait_within(request.has_come, timeout_s)
        finally:
            if request.ticket is not None:
                self._withdraw(request)
                self.advance()  # the one that is first now may want less

    def advance(self, engine: str | None = None) -> None:
        """Send requests in order as far as there is room; cheap when none waits.

        `engine` is the only one whose room has changed since the last time, None stands for any.
        """
        if self._is_advancing or not self._queue:
            return
        self._is_advancing = True  # what is sent may make room elsewhere at once
        try:
            while (first := self._first()) is not None:
                member = self._prefix_member(first)
                sent = next((request for request in (member, first) if request and self._send(request, engine)), None)
                if sent is None:
                    break
                self._note_service(sent)
        finally:
            self._is_advancing = False

    def close(self) -> None:
        """Refuse all that still wait."""
        if self._engine_timer is not None:
            self._engine_timer.cancel()
            self._engine_timer = None
        for request in list(self._arrivals):
            self._refuse(request)

    def charge(self, tenant: str, priority: int, num_tokens: int) -> None:
        """Charge a tenant for so many tokens more, or less, than its request was expected to have."""
        self._queue.charge(tenant, priority, num_tokens, self._limits.of_tenant(tenant).weight)

    def _push(self, request: QueuedRequest) -> None:
        request.ticket = self._queue.push(
            request,
            priority=request.work.priority,
            arrival=0.0,  # which is when an empty queue's clock starts; later it is where the queue has come
            deadline=request.deadline,
            tenant=request.tenant,
            cost=request.work.num_tokens,
            weight=self._limits.of_tenant(request.tenant).weight,
        )
        request.has_waited = True
        self._arrivals[request] = asyncio.get_running_loop().time()
        self._set_engine_timer(self._arrivals[request] + self._engine_wait_s)
        if self._limits.group_by_prefix:
            self._groups.add(request, request.digests)
        self._on_change(len(self._queue))
        if self._first() is request:
            self.advance()  # a more urgent one may have room where those before had none

    def _send(self, request: QueuedRequest, engine: str | None = None) -> bool:
        """Give the request to an engine that has room, if there is one."""
        if request.has_come.done():  # its client has just left
            self._withdraw(request)
            return True
        digests = request.digests if self._limits.route_by_prefix and len(self._engines.links) > 1 else ()
        decision = self._engines.select_replica(request.work, digests, among=engine)
        if decision is None:
            return False
        if request.ticket is not None:
            self._note_order(request)
            self._queue.serve(request.ticket)
            self._leave(request)
        request.take(decision)
        request.has_come.set_result(None)
        return True

    def _first(self) -> QueuedRequest | None:
        ticket = self._queue.peek()
        return None if ticket is None else ticket.item

    def _prefix_member(self, first: QueuedRequest) -> QueuedRequest | None:
        """Find a request that may follow the latest leader out of order; higher priorities are never overtaken."""
        leader = self._batch_leader
        if leader is None or not self._groups or self._num_batched >= MAX_PREFIX_BATCH:
            return None
        priority = leader.work.priority
        if first.work.priority < priority:
            return None
        sharing = self._groups.sharing_most(leader.digests)
        return next((request for request in sharing if request.work.priority == priority), None)

    def _note_order(self, request: QueuedRequest) -> None:
        if request is self._first():
            self._batch_leader, self._num_batched = request, 0
        else:
            self._num_batched += 1

    def _withdraw(self, request: QueuedRequest) -> None:
        """Take a request without service out of the queue."""
        self._leave(request)
        self.charge(request.tenant, request.work.priority, -request.work.num_tokens)

    def _leave(self, request: QueuedRequest) -> None:
        """Take a request out of the queue if it is there."""
        if request.ticket is None:
            return
        self._queue.remove(request.ticket)  # unless it has been served
        request.ticket = None
        del self._arrivals[request]
        self._groups.remove(request)
        self._on_change(len(self._queue))

    def _note_service(self, request: QueuedRequest) -> None:
        """Learn how fast the queue moves, which is what a second means in tokens."""
        if self._service_rate.served(request.work.num_tokens, is_busy=bool(self._queue)):
            self._queue.change(ageing_s=self._limits.ageing_s * self._service_rate.rate)

    def _set_engine_timer(self, at: float) -> None:
        if self._engine_timer is None:
            self._engine_timer = asyncio.get_running_loop().call_at(at, self._check_for_engines)

    def _check_for_engines(self) -> None:
        """Refuse the requests for which there has been no engine for `engine_wait_s` since they arrived.

        Runs when the oldest request could be due, and again when the next one could.
        """
        self._engine_timer = None
        now = asyncio.get_running_loop().time()
        for request, arrival in list(self._arrivals.items()):
            lost = self._engines.lost_last_at
            due = (now if lost is None else max(arrival, lost)) + self._engine_wait_s
            if due > now:
                self._set_engine_timer(due)
                return
            self._refuse(request)

    def _refuse(self, request: QueuedRequest) -> None:
        self._leave(request)
        if not request.has_come.done():  # its client may have just left
            request.has_come.set_exception(NotReady(self._engines.not_ready_message()))


class _ServiceRate:
    """Tokens served per second while requests wait."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._num_tokens = 0
        self._is_known = False
        self.rate = FIRST_RATE

    def served(self, num_tokens: int, *, is_busy: bool) -> bool:
        """Count tokens; returns whether the rate is known anew."""
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
