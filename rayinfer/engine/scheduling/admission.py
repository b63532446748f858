"""Admission of waiting requests to the batch, and preemption."""

from dataclasses import dataclass

from rayinfer.engine.scheduling.request import Request, RequestStatus
from rayinfer.engine.scheduling.running_batch import Reservation, RunningBatch
from rayinfer.engine.scheduling.waiting_queue import WaitingQueue
from rayinfer.kv_cache.block_manager import CachedPrefix
from rayinfer.priority_queue import QueueEntry


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that has just been given its row and blocks."""

    request: Request
    num_computed: int  # tokens whose keys and values were cached already
    is_first_time: bool  # False after a preemption


class Admission:
    """Admits requests from the queue to the batch, and preempts running ones when rows or blocks are short.

    A request that does not fit yet may be overtaken by smaller ones, until those have taken as many blocks as it needs.
    From then on freed blocks are kept for it: it does not block the queue at once, and never starves.
    """

    def __init__(self, waiting: WaitingQueue, batch: RunningBatch, block_size: int) -> None:
        self._waiting = waiting
        self._batch = batch
        self._block_size = block_size
        self._too_large: set[Request] = set()  # did not fit since a request last left the batch
        self._num_rows_freed = 0  # of the batch, when `_too_large` was filled
        self._idle_since = (0, 0)  # departures and queue changes when no request could be admitted
        self.num_preemptions = 0

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.add(request)

    def requeue(self, requests: list[Request]) -> None:
        """Return requests to their positions in the queue."""
        for request in requests:
            self._waiting.put_back(request)

    @property
    def is_idle(self) -> bool:
        """Whether nothing has changed since admission last failed."""
        return self._idle_since == (self._batch.num_rows_freed, self._waiting.num_changes)

    def admit_next(self, before: Request | None = None, *, foreground_only: bool = False) -> Admitted | None:
        """Give the next request that fits its row and blocks; None if none fits.

        With `before`, only one of higher priority than this running request.
        """
        while (request := self._next_candidate(before)) is not None:
            if foreground_only and request.is_background:
                return None  # the order has no other behind it
            if not self._batch.table.has_free_row and not self._batch.has_lower_priority_than(request):
                break
            if not self._batch.adapters.has_room_for(request.adapter):  # until one that runs is done with
                self._too_large.add(request)
                continue
            prefix = self._batch.find_cached_prefix(request)
            if self._batch.wait_for_prefix(request, prefix):
                self._waiting.remove(request)
                continue
            reservation = self._reserve(request, prefix)
            if reservation is not None:
                return self._start(request, reservation)
            self._too_large.add(request)
        if before is None:
            self._idle_since = (self._batch.num_rows_freed, self._waiting.num_changes)
        return None

    @property
    def must_preempt(self) -> bool:
        """Whether a request must be preempted before all decoding ones can continue."""
        return not self._batch.can_grow(self._batch.rows_short_of_a_block())

    def allocate_decode_blocks(self) -> None:
        """Give a block to every request whose next token needs one, in the order of the queue."""
        batch = self._batch
        short = batch.rows_short_of_a_block()
        if batch.can_grow(short):
            if len(short):
                batch.grow(short)
            return
        for request in sorted(map(batch.table.request_at, short), key=order_key):
            while request.status is RequestStatus.RUNNING and not batch.can_grow(short[short == request.row]):
                self.preempt(batch.victim())
            if request.row is not None:
                batch.grow(short[short == request.row])

    def preempt(self, request: Request, *, may_swap: bool = True) -> None:
        """Return a running request to its position in the queue."""
        if request.trace is not None:
            request.trace.record("preempted", computed_tokens=int(self._batch.table.num_computed[request.row]))
        if may_swap:
            self._batch.swap_out(request)
        waiters = self._batch.free(request)
        self.num_preemptions += 1
        request.move_to(RequestStatus.WAITING)
        self.requeue([request, *waiters])

    def free(self, request: Request) -> None:
        """Remove a finished request from queue or batch and free all that it holds."""
        if request.status is RequestStatus.RUNNING:
            self.requeue(self._batch.free(request))
        elif request.status is RequestStatus.WAITING:
            self._waiting.remove(request)
        self._batch.drop_swapped(request)
        request.move_to(RequestStatus.FINISHED)
        request.queue_entry = None  # a reference cycle would wait for the garbage collector

    def _next_candidate(self, before: Request | None) -> Request | None:
        """Return the first request that may fit, unless it would overtake one that may not be overtaken any more."""
        if self._num_rows_freed != self._batch.num_rows_freed:
            self._num_rows_freed = self._batch.num_rows_freed
            self._too_large.clear()
        for request in self._waiting.heads():
            if before is not None and not _has_higher_priority(request, before):
                return None
            if request not in self._too_large:
                return request
            if request.num_blocks_overtaken >= request.num_blocks_needed(self._block_size):
                return None
        return None

    def _reserve(self, request: Request, prefix: CachedPrefix) -> Reservation | None:
        """Reserve the request's blocks, preempting requests of lower priority if that frees enough."""
        while (reservation := self._batch.reserve(request, prefix)) is None:
            victim = self._batch.victim_for(request, prefix)
            if victim is None:
                return None
            self.preempt(victim)
        return reservation

    def _start(self, request: Request, reservation: Reservation) -> Admitted:
        for overtaken in self._too_large:
            if overtaken.status is RequestStatus.WAITING and order_key(overtaken) < order_key(request):
                overtaken.num_blocks_overtaken += len(reservation.blocks)
        self._waiting.remove(request)
        is_first_time = request.num_cached_tokens is None
        num_computed = self._batch.add(request, reservation)
        if request.trace is not None:
            request.trace.record(
                "admitted" if is_first_time else "resumed",
                row=request.row or 0,
                blocks=len(reservation.blocks),
                cached_tokens=num_computed,
            )
        return Admitted(request, num_computed, is_first_time)


def order_key(request: Request) -> tuple[float, float, int]:
    """Return the sort key of requests: the smallest goes first."""
    entry: QueueEntry[Request] | None = request.queue_entry
    assert entry is not None, f"{request.request_id} has no queue entry"
    return entry.sort_key


def _has_higher_priority(request: Request, running: Request) -> bool:
    return request.priority < running.priority and order_key(request) < order_key(running)
