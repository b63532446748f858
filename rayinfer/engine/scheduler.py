"""Decides what each step computes: who runs, who waits, who gives way, all under one budget of tokens."""

import numpy as np

from rayinfer.engine.batch_table import BatchTable
from rayinfer.engine.request import Request, RequestStatus
from rayinfer.engine.running_batch import Reservation, RunningBatch
from rayinfer.engine.step_plan import EnteredRow, SampledTokens, StepPlan
from rayinfer.kv_cache.block_manager import BlockManager
from rayinfer.kv_cache.stored_blocks import BlockEvents
from rayinfer.outputs import EngineStats, FinishReason, TokenDelta
from rayinfer.priority_queue import PriorityQueue, Ticket

AGEING_S = 10.0  # one level of priority counts as having arrived this much earlier


class Scheduler:
    """Continuous batching with chunked prefill, priorities, and preemption by recomputing.

    Decoding requests come first with one token each; what is left of the budget goes to prompts, in chunks. A request
    gets the blocks for all tokens it has when it is admitted, so only decoding can run out of blocks; then the request
    that matters least gives its blocks back and waits for its turn again.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        block_manager: BlockManager,
        eos_token_ids: tuple[int, ...] = (),
        enable_prefix_caching: bool = True,
    ) -> None:
        # No more rows than tokens in a step: every decoding request has its token in every step.
        self._table = BatchTable(min(max_num_seqs, max_num_batched_tokens), max_model_len, block_manager.block_size)
        self._batch = RunningBatch(self._table, block_manager, enable_prefix_caching=enable_prefix_caching)
        self._waiting: PriorityQueue[Request] = PriorityQueue(ageing_s=AGEING_S)
        self._requests: dict[str, Request] = {}
        self._blocks = block_manager
        self._budget = max_num_batched_tokens
        self._eos_token_ids = np.array(eos_token_ids, np.int64)
        self._counts = np.zeros(self._table.num_rows, np.int64)  # tokens that each row computes in the next step
        self._entered: list[EnteredRow] = []
        self._totals = EngineStats(kv_blocks_total=block_manager.num_blocks)

    # What comes from outside

    def add(self, request: Request) -> None:
        """Queue a request."""
        assert request.request_id not in self._requests, f"{request.request_id} is known already"
        self._requests[request.request_id] = request
        request.ticket = self._waiting.push(
            request, priority=request.priority, arrival=request.arrival, deadline=request.deadline
        )

    def finish(self, request_id: str, reason: FinishReason) -> TokenDelta | None:
        """End a request wherever it stands and free what it holds; None if it is unknown or over."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        self._end(request, reason)
        return TokenDelta(request_id, len(request.token_ids) - request.prompt_len, [], None, reason)

    def knows(self, request_id: str) -> bool:
        """Whether the request is here and not over."""
        return request_id in self._requests

    def is_overdue(self, request_id: str, now: float) -> bool:
        """Whether the request is not over although its time is."""
        request = self._requests.get(request_id)
        return request is not None and request.deadline is not None and request.deadline <= now

    def request_id_at(self, row: int) -> str:
        """Whose row of the batch it is."""
        return self._table.request_at(row).request_id

    def take_block_events(self) -> BlockEvents:
        """Digests that entered and left the prefix cache since the last call."""
        return self._blocks.take_events()

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self._requests)

    @property
    def stats(self) -> EngineStats:
        """Counters and gauges as they are now."""
        totals = self._totals
        return EngineStats(
            num_running=len(self._table),
            num_waiting=len(self._requests) - len(self._table),
            kv_blocks_used=self._blocks.num_used,
            kv_blocks_total=self._blocks.num_blocks,
            prompt_tokens_total=totals.prompt_tokens_total,
            generation_tokens_total=totals.generation_tokens_total,
            cached_prompt_tokens_total=totals.cached_prompt_tokens_total,
            num_preemptions_total=totals.num_preemptions_total,
            num_steps_total=totals.num_steps_total,
            requests_finished_total=dict(totals.requests_finished_total),
        )

    # A step is planned

    def plan(self) -> StepPlan | None:
        """Choose the next step's tokens; None when there is nothing to compute."""
        self._grow_decoding_requests()
        self._spread_budget()
        rows = self._table.rows
        rows = rows[self._counts[rows] > 0]
        if not len(rows):
            return None
        present = set(rows.tolist())
        entered = tuple(entered for entered in self._entered if entered.row in present)
        self._entered.clear()
        self._totals.num_steps_total += 1
        return self._table.assemble(rows, self._counts[rows], step=self._totals.num_steps_total, entered=entered)

    def enter_again(self, plan: StepPlan) -> None:
        """Let the executor hear once more, with the next plan, who is in the rows of a plan that was interrupted."""
        self._entered += [self._table.entered_row(row) for row in plan.rows.tolist() if self._table.is_taken(row)]

    def _grow_decoding_requests(self) -> None:
        """Give a block to every request whose next token needs one, the most important first."""
        short = [self._table.request_at(row) for row in self._batch.rows_short_of_a_block()]
        if len(short) > self._batch.num_free_blocks:
            short.sort(key=_key)
        for request in short:
            while request.status is RequestStatus.RUNNING and not self._batch.num_free_blocks:
                victim = self._batch.victim()
                assert victim is not None
                self._preempt(victim)
            if request.status is RequestStatus.RUNNING:
                self._batch.grow(request)

    def _spread_budget(self) -> None:
        """Set what each request computes: first one token for all that run, then prompts and arrivals by importance."""
        rows = self._table.rows
        pending = self._table.num_tokens[rows] - self._table.num_computed[rows]
        self._counts.fill(0)
        self._counts[rows] = 1
        prefilling = [self._table.request_at(row) for row in rows[pending > 1]]
        for request in sorted(prefilling, key=_key):
            self._admit(before=request)
            if request.row is not None:  # an arrival may have taken its place
                num_pending = int(self._table.num_tokens[request.row] - self._table.num_computed[request.row])
                self._counts[request.row] += min(num_pending - 1, self._num_tokens_left)
        self._admit()

    @property
    def _num_tokens_left(self) -> int:
        return self._budget - int(self._counts.sum())

    def _preempt(self, request: Request) -> None:
        assert request.ticket is not None
        self._counts[request.row] = 0
        released = self._batch.leave(request)
        request.move_to(RequestStatus.WAITING)
        self._totals.num_preemptions_total += 1
        self._waiting.push_back(request.ticket)
        self._queue_again(released)

    def _queue_again(self, requests: list[Request]) -> None:
        for request in requests:
            assert request.ticket is not None
            self._waiting.push_back(request.ticket)

    # Admission

    def _admit(self, before: Request | None = None) -> None:
        """Take requests from the queue, in its order, while there are tokens, rows and blocks for them.

        With `before`, only those that matter more than this running request do.
        """
        # Without a free row an arrival comes in, if at all, with the tokens of the request that it replaces.
        while (self._num_tokens_left or not self._table.has_free_row) and (ticket := self._waiting.peek()) is not None:
            request = ticket.item
            if before is not None and not _matters_more(request, before):
                break
            if self._batch.park_behind_twin(request):
                self._waiting.pop()
                continue
            reservation = self._make_room_for(request)
            if reservation is None:
                break
            self._waiting.remove(ticket)
            self._enter(request, reservation)

    def _make_room_for(self, request: Request) -> Reservation | None:
        """Reserve the request's blocks, preempting requests of lower priority where that helps."""
        while (reservation := self._batch.reserve(request)) is None:
            victim = self._batch.victim() if self._batch.has_lower_priority_than(request) else None
            if victim is None or not _matters_more(request, victim) or not self._has_enough_below(request):
                return None
            self._preempt(victim)
        return reservation

    def _has_enough_below(self, request: Request) -> bool:
        """Whether the request would fit, at best, if all that matter less were gone."""
        running = [self._table.request_at(row) for row in self._table.rows]
        below = sum(len(other.blocks) for other in running if _matters_more(request, other))
        return len(request.token_ids) <= (self._batch.num_free_blocks + below) * self._blocks.block_size

    def _enter(self, request: Request, reservation: Reservation) -> None:
        num_cached_tokens = self._batch.enter(request, reservation)
        assert request.row is not None
        self._entered.append(request.entered_row(request.row))
        if request.num_cached_tokens is None:
            request.num_cached_tokens = min(num_cached_tokens, request.prompt_len)
            self._totals.prompt_tokens_total += request.prompt_len
            self._totals.cached_prompt_tokens_total += request.num_cached_tokens
        self._counts[request.row] = min(len(request.token_ids) - num_cached_tokens, self._num_tokens_left)

    # A step's tokens are in

    def apply(self, plan: StepPlan, sampled: SampledTokens) -> list[TokenDelta]:
        """Move the plan's requests forward and end those that are done; returns what each of them gained."""
        table = self._table
        table.num_computed[plan.rows] = plan.context_lengths
        is_sound = np.ones(plan.num_requests, np.bool_)  # what came out as nonsense must not be hit by others
        is_sound[plan.samples] = ~sampled.is_invalid
        self._queue_again(self._batch.store_written_blocks(plan.rows[is_sound]))
        rows = plan.rows[plan.samples]
        if not len(rows):
            return []
        ends = table.ends_of(rows, sampled.token_ids, self._eos_token_ids)
        table.append(rows, sampled.token_ids)
        is_full = table.num_tokens[rows] >= table.max_total_tokens[rows]
        is_over = ends | is_full | sampled.is_invalid
        self._totals.generation_tokens_total += int((~sampled.is_invalid).sum())
        deltas = []
        for i, (row, token_id) in enumerate(zip(rows.tolist(), sampled.token_ids.tolist(), strict=True)):
            request = table.request_at(row)
            start = int(table.num_tokens[row]) - request.prompt_len - 1
            if not is_over[i]:
                deltas.append(_delta(request, start, [token_id]))
            elif sampled.is_invalid[i]:
                self._end(request, "error")
                deltas.append(_delta(request, start, [], "error"))
            else:
                reason: FinishReason = "stop" if ends[i] else "length"
                self._end(request, reason)
                is_stop_id = bool(ends[i]) and token_id in request.params.stop_ids
                deltas.append(_delta(request, start, [token_id], reason, token_id if is_stop_id else None))
        return deltas

    def _end(self, request: Request, reason: FinishReason) -> None:
        del self._requests[request.request_id]
        if request.status is RequestStatus.RUNNING:
            self._queue_again(self._batch.leave(request))
        elif request.status is RequestStatus.WAITING:
            assert request.ticket is not None
            self._waiting.remove(request.ticket)
        request.move_to(RequestStatus.FINISHED)
        request.finish_reason = reason
        finished = self._totals.requests_finished_total
        finished[reason] = finished.get(reason, 0) + 1


def _key(request: Request) -> float:
    ticket: Ticket[Request] | None = request.ticket
    assert ticket is not None
    return ticket.key


def _matters_more(request: Request, running: Request) -> bool:
    # Equal priorities never take each other's place, and who has waited longer keeps what it has.
    return request.priority < running.priority and _key(request) < _key(running)


def _delta(
    request: Request,
    start: int,
    token_ids: list[int],
    finish_reason: FinishReason | None = None,
    stop_reason: int | None = None,
) -> TokenDelta:
    return TokenDelta(
        request.request_id, start, token_ids, None, finish_reason, stop_reason, request.num_cached_tokens or 0
    )
