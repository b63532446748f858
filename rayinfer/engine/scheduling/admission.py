"""Admission of waiting requests to the batch, and preemption."""

from dataclasses import dataclass

from rayinfer.engine.scheduling.request import Request, RequestStatus
from rayinfer.engine.scheduling.running_batch import Reservation, RunningBatch
from rayinfer.engine.scheduling.waiting_queue import WaitingQueue
from rayinfer.kv_cache.block_manager import CachedPrefix
from rayinfer.priority_queue import QueueEntry


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that has just got its row and blocks."""

    request: Request
    num_computed: int  # tokens whose keys and values were there already
    is_first_time: bool  # not after a preemption


class Admission:
    """Takes requests from the queue into the batch, and sends running ones back when rows or blocks are short.

    A request that does not fit yet lets smaller ones pass, until those have taken as many blocks as it needs itself.
    From then on whatever becomes free is kept for it: it neither blocks the others at once, nor starves.
    """

    def __init__(self, waiting: WaitingQueue, batch: RunningBatch, block_size: int) -> None:
        self._waiting = waiting
        self._batch = batch
        self._block_size = block_size
        self._too_large: set[Request] = set()  # found not to fit since a request last left
        self._num_departures = 0  # of the batch, when that was found
        self._fruitless = (0, 0)  # departures and changes of the queue when none could be admitted
        self.num_preemptions = 0

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.add(request)

    def queue_again(self, requests: list[Request]) -> None:
        """Return requests to the places they had."""
        for request in requests:
            self._waiting.put_back(request)

    @property
    def is_idle(self) -> bool:
        """Whether nothing has changed since no request could be admitted."""
        return self._fruitless == (self._batch.num_departures, self._waiting.num_changes)

    def admit_next(self, before: Request | None = None) -> Admitted | None:
        """Admit the next request that fits: give it row and blocks; None if none does.

        With `before`, only if it matters more than this running request.
        """
        while (request := self._next_in_turn(before)) is not None:
            if not self._batch.table.has_free_row and not self._batch.has_lower_priority_than(request):
                break
            prefix = self._batch.find_cached_prefix(request)
            if self._batch.park_behind_twin(request, prefix):
                self._waiting.remove(request)
                continue
            reservation = self._make_room_for(request, prefix)
            if reservation is not None:
                return self._enter(request, reservation)
            self._too_large.add(request)
        if before is None:
            self._fruitless = (self._batch.num_departures, self._waiting.num_changes)
        return None

    @property
    def lacks_blocks(self) -> bool:
        """Whether a request must be preempted before all decoding ones can continue."""
        return len(self._batch.rows_short_of_a_block()) > self._batch.num_free_blocks

    def grow_decoding_requests(self) -> None:
        """Give a block to every request whose next token needs one, the most important first."""
        batch = self._batch
        short = batch.rows_short_of_a_block()
        if len(short) <= batch.num_free_blocks:
            if len(short):
                batch.grow(short)
            return
        for request in sorted(map(batch.table.request_at, short), key=order_key):
            while request.status is RequestStatus.RUNNING and not batch.num_free_blocks:
                self.preempt(batch.victim())
            if request.row is not None:
                batch.grow(short[short == request.row])

    def preempt(self, request: Request, *, may_swap: bool = True) -> None:
        """Send a running request back to its place in the queue."""
        if request.trace is not None:
            request.trace.record("preempted", computed_tokens=int(self._batch.table.num_computed[request.row]))
        if may_swap:
            self._batch.swap_out(request)
        released = self._batch.leave(request)
        self.num_preemptions += 1
        request.move_to(RequestStatus.WAITING)
        self.queue_again([request, *released])

    def end(self, request: Request) -> None:
        """Take a request out of queue or batch for good."""
        if request.status is RequestStatus.RUNNING:
            self.queue_again(self._batch.leave(request))
        elif request.status is RequestStatus.WAITING:
            self._waiting.remove(request)
        self._batch.drop_swapped(request)
        request.move_to(RequestStatus.FINISHED)
        request.ticket = None  # it knows the request: the two would wait for the garbage collector

    def _next_in_turn(self, before: Request | None) -> Request | None:
        """Return the first request that may fit, unless it would overtake one past its limit."""
        if self._num_departures != self._batch.num_departures:
            self._num_departures = self._batch.num_departures
            self._too_large.clear()
        for request in self._waiting.heads():
            if before is not None and not _matters_more(request, before):
                return None
            if request not in self._too_large:
                return request
            if request.num_blocks_lent >= request.num_blocks_needed(self._block_size):
                return None
        return None

    def _make_room_for(self, request: Request, prefix: CachedPrefix) -> Reservation | None:
        """Reserve the request's blocks, preempting requests of lower priority where that helps."""
        while (reservation := self._batch.reserve(request, prefix)) is None:
            victim = self._batch.victim_for(request, prefix)
            if victim is None:
                return None
            self.preempt(victim)
        return reservation

    def _enter(self, request: Request, reservation: Reservation) -> Admitted:
        for passed in self._too_large:
            if passed.status is RequestStatus.WAITING and order_key(passed) < order_key(request):
                passed.num_blocks_lent += len(reservation.blocks)
        self._waiting.remove(request)
        is_first_time = request.num_cached_tokens is None
        num_computed = self._batch.enter(request, reservation)
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
    ticket: QueueEntry[Request] | None = request.ticket
    assert ticket is not None, f"{request.request_id} has no place in the order"
    return ticket.sort_key


def _matters_more(request: Request, running: Request) -> bool:
    return request.priority < running.priority and order_key(request) < order_key(running)
