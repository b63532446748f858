"""Scheduler of the engine: chooses each step's tokens under a budget, and owns all unfinished requests."""

from collections import deque

import numpy as np

from rayinfer.engine.drafting.drafter import Drafter
from rayinfer.engine.drafting.recent_answers import RecentAnswers
from rayinfer.engine.plan.executor_commands import BlockCopy
from rayinfer.engine.plan.step_plan import (
    LogprobsArrays,
    NewRequestData,
    SampledTokens,
    StepPlan,
)
from rayinfer.engine.scheduling.admission import Admission, Admitted, order_key
from rayinfer.engine.scheduling.batch_table import BatchTable, indices_of
from rayinfer.engine.scheduling.deadlines import Deadlines
from rayinfer.engine.scheduling.drafts import Drafts
from rayinfer.engine.scheduling.held_rows import HeldRows
from rayinfer.engine.scheduling.inflight_steps import step_schedule
from rayinfer.engine.scheduling.kv_offload import KVOffload
from rayinfer.engine.scheduling.output_processor import OutputProcessor, final_delta
from rayinfer.engine.scheduling.request import Request
from rayinfer.engine.scheduling.row_windows import row_windows
from rayinfer.engine.scheduling.running_batch import RunningBatch
from rayinfer.engine.scheduling.slot_allocator import SlotAllocator
from rayinfer.engine.scheduling.step_deltas import add_prompt_logprobs, trace_prefill_chunks
from rayinfer.engine.scheduling.step_outcome import are_nonfinite, num_computed
from rayinfer.engine.scheduling.stored_prefixes import StoredPrefixes
from rayinfer.engine.scheduling.waiting_queue import WaitingQueue
from rayinfer.kv_cache.block_manager import BlockManager
from rayinfer.kv_cache.stored_blocks import BlockEvents
from rayinfer.metrics.histogram import STEP_TOKENS, Histogram
from rayinfer.outputs import EngineStats, FinishReason, TokenDelta
from rayinfer.sampling_params import Speculation

TRANSFER_WAIT_S = 0.005
AGEING_S = 10.0  # one level of priority counts as having arrived this much earlier


class Scheduler:
    """Continuous batching with chunked prefill, priorities, and preemption by swapping or recomputing.

    Decoding requests come first with one token each; the rest of the budget goes to prompts, in chunks. A request is
    given the blocks for all its tokens when it is admitted, so only decoding can run out of blocks; then the request of
    lowest priority is preempted. A step with a prompt of another request has no tokens of background requests: they
    delay a first token by the running step at most.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        block_manager: BlockManager,
        eos_token_ids: tuple[int, ...] = (),
        forced_end_token_id: int | None = None,
        enable_prefix_caching: bool = True,
        offload: KVOffload | None = None,
        stored_prefixes: StoredPrefixes | None = None,
        max_concurrent_batches: int = 1,
        supports_async_scheduling: bool = False,
        drafter: Drafter | None = None,
        speculation: Speculation = "off",
        recent_answers: RecentAnswers | None = None,
        adapters: SlotAllocator | None = None,
    ) -> None:
        block_size = block_manager.block_size
        # No more rows than tokens in a step: every decoding request has its token in every step.
        num_rows = min(max_num_seqs, max_num_batched_tokens)
        self._table = BatchTable(
            num_rows, max_model_len, block_size, supports_async_scheduling=supports_async_scheduling
        )
        self.batch = RunningBatch(
            self._table,
            block_manager,
            enable_prefix_caching=enable_prefix_caching,
            offload=offload,
            stored_prefixes=stored_prefixes,
            adapters=adapters,
            windows=row_windows(self._table, block_manager, max_num_batched_tokens * max_concurrent_batches),
        )
        waiting = WaitingQueue(ageing_s=AGEING_S, block_size=block_size)
        self._admission = Admission(waiting, self.batch, block_size)
        self.requests: dict[str, Request] = {}
        self._deadlines = Deadlines(self.requests)
        self.blocks = block_manager
        self._offload = offload
        self._stored_prefixes = stored_prefixes
        self._budget = max_num_batched_tokens
        self._outputs = OutputProcessor(
            self._table, eos_token_ids=eos_token_ids, forced_end_token_id=forced_end_token_id, finish=self._finish
        )
        self._schedule = step_schedule(
            self._table, max_concurrent_batches, supports_async_scheduling=supports_async_scheduling
        )
        self._drafts = None if drafter is None else Drafts(self.batch, drafter, block_size, speculation, recent_answers)
        self._new_requests: list[NewRequestData] = []
        self._rows_to_resend: list[int] = []
        self._prefilling: dict[Request, None] = {}  # an ordered set; some may have left since the last plan
        self._num_background = 0  # of all requests
        self._step_tokens = Histogram(STEP_TOKENS)
        self._totals = EngineStats(kv_blocks_total=block_manager.num_blocks)

    # Requests

    def add(self, request: Request) -> None:
        """Queue a request."""
        assert request.request_id not in self.requests, f"{request.request_id} is known already"
        self.requests[request.request_id] = request
        self._num_background += request.is_background
        self.batch.adapters.record_arrival(request.adapter)
        self._admission.add(request)
        self._deadlines.add(request)
        if request.trace is not None:
            request.trace.record("queued", prompt_tokens=request.num_prompt_tokens, priority=request.priority)

    def finish(self, request_id: str, reason: FinishReason) -> TokenDelta | None:
        """Finish a request and free all that it holds; None if it is unknown or finished."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        self._finish(request, reason)
        return final_delta(request, reason)

    def knows(self, request_id: str) -> bool:
        """Return whether the request is unfinished."""
        return request_id in self.requests

    def take_overdue(self, now: float) -> list[str]:
        """Return, once, the unfinished requests whose deadline has passed."""
        return self._deadlines.take_overdue(now)

    def request_id_at(self, row: int) -> str:
        """Return the request id in this batch row."""
        return self._table.request_at(row).request_id

    def take_block_events(self) -> BlockEvents:
        """Return the hashes added to and removed from the prefix cache since the last call."""
        self._finish_transfers()  # also when no step is planned
        return self.blocks.take_events()

    def close(self, *, will_return: bool = False) -> None:
        """End the copies to and from the machine's block store, for good or for a while."""
        if self._stored_prefixes is not None:
            self._finish_transfers(drain=True)
            self._stored_prefixes.close(will_return=will_return)

    # Memory, between steps

    @property
    def block_copies(self) -> deque[BlockCopy]:
        """Copies between the two pools, to be made in this order before the next plan is computed."""
        return deque() if self._offload is None else self._offload.copies

    @property
    def blocks_in_use(self) -> list[int]:
        """Blocks of running requests; after `forget_cached_prefixes` the content of all others is unused."""
        blocks: list[int] = self._table.blocks_of(self._table.rows).tolist()
        return blocks

    @property
    def window_pages_in_use(self) -> list[int]:
        """Pages of the window pool that running requests read; empty without such a pool."""
        return [] if self.batch.windows is None else self.batch.windows.pages_in_use

    def forget_cached_prefixes(self) -> None:
        """Remove blocks that no running request reads from the prefix cache."""
        self._finish_transfers(drain=True)
        self.blocks.reset_prefix_cache()

    def drop_computed(self) -> None:
        """Preempt every running request and forget all blocks, those of the second pool too."""
        self.close(will_return=True)  # by the weights of then
        for row in self._table.rows.tolist():
            self._admission.preempt(self._table.request_at(row), may_swap=False)
        if self._offload is not None:
            self._offload.drop_all()
        if self._drafts is not None:
            self._drafts.forget()
        self.blocks.reset_prefix_cache()
        self.batch.adapters.forget_slots()

    # State

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self.requests)

    @property
    def stats(self) -> EngineStats:
        """Counters and gauges as they are now."""
        totals, windows = self._totals, self.batch.windows
        return EngineStats(
            num_running=len(self._table),
            num_waiting=len(self.requests) - len(self._table),
            kv_blocks_used=self.blocks.num_used,
            kv_blocks_cached=self.blocks.num_cached,
            kv_blocks_total=self.blocks.num_blocks,
            kv_window_pages_used=0 if windows is None else windows.num_used,
            kv_window_pages_total=0 if windows is None else windows.num_pages,
            kv_offload_blocks_used=0 if self._offload is None else self._offload.num_used,
            kv_offload_blocks_total=0 if self._offload is None else self._offload.num_blocks,
            prompt_tokens_total=totals.prompt_tokens_total,
            generation_tokens_total=totals.generation_tokens_total,
            cached_prompt_tokens_total=totals.cached_prompt_tokens_total,
            num_preemptions_total=self._admission.num_preemptions,
            num_steps_total=totals.num_steps_total,
            step_tokens=self._step_tokens.counts.copy(),
            step_tokens_total=int(self._step_tokens.total),
            requests_finished_total=dict(totals.requests_finished_total),
            kv_store=None if self._stored_prefixes is None else self._stored_prefixes.stats,
            num_drafts_total=0 if self._drafts is None else self._drafts.num_drafts,
            draft_tokens_total=0 if self._drafts is None else self._drafts.num_draft_tokens,
            accepted_draft_tokens_total=0 if self._drafts is None else self._drafts.num_accepted_tokens,
        )

    # Planning a step

    def plan(self) -> StepPlan | None:
        """Choose the next step's tokens; None if nothing can be computed, or in-flight tokens are needed first."""
        if self._schedule.has_unknown_tokens and (self._rows_to_resend or self._admission.must_preempt):
            return None  # never preempt a request whose last token is still in flight
        self._table.num_drafts[:] = 0  # of a plan that was not finished
        self._resend_interrupted()
        self._finish_transfers()
        self._admission.allocate_decode_blocks()
        self._schedule_tokens()
        if not self._table.num_scheduled.any():
            self._wait_for_transfers()
            return None
        if self._drafts is not None:
            self._drafts.add(self._num_tokens_left)
        self._totals.num_steps_total += 1
        # Some may have been preempted again while the step was planned.
        entering = tuple(each for each in self._new_requests if self._table.is_taken(each.row))
        plan = self.batch.assemble(step=self._totals.num_steps_total, new_requests=entering)
        self._new_requests.clear()
        self._step_tokens.observe(plan.num_tokens)
        self._schedule.start(plan)
        return plan

    def reschedule(self, plan: StepPlan) -> None:
        """Send the requests of an interrupted plan to the workers again, with the next plan."""
        self._schedule.cancel(plan)
        self._rows_to_resend += plan.rows.tolist()
        if plan.emptied_adapter_slots:
            self.batch.adapters.resend_emptied_slots()

    def retract(self, plan: StepPlan) -> StepPlan:
        """Return what is to be computed again of a failed step, now that no other is in flight."""
        return self._schedule.retract(plan)

    def _resend_interrupted(self) -> None:
        if self._rows_to_resend:
            self._table.reset_expected()
            rows = [row for row in self._rows_to_resend if self._table.is_taken(row)]
            self._new_requests += map(self._table.new_request_data, rows)
            self.batch.free_interrupted(rows)
            self._rows_to_resend.clear()

    def _finish_transfers(self, *, drain: bool = False) -> None:
        self._admission.requeue(self.batch.finish_transfers(drain=drain))

    def _wait_for_transfers(self) -> None:
        """Wait a moment for blocks of the machine's store if there is nothing else to do."""
        stored = self._stored_prefixes
        if stored is not None and stored.has_transfers() and not self._schedule.has_unknown_tokens:
            stored.wait(TRANSFER_WAIT_S)

    def _schedule_tokens(self) -> None:
        """Schedule one token of each running request, then prompts and arrivals in queue order."""
        table = self._table
        self._schedule.schedule_one_token_each()
        if self._drafts is not None and self._schedule.has_unknown_tokens:
            self._drafts.defer_rows()
        self._prefilling = {request: None for request in self._prefilling if table.num_pending(request) > 1}
        in_order = sorted(self._prefilling, key=order_key)
        if self._num_background:
            held = HeldRows(table)
            self._schedule_prompts([each for each in in_order if not each.is_background], foreground_only=True)
            if self._has_foreground_prompt:
                return
            held.release()
            in_order = [each for each in in_order if each.is_background]
        self._schedule_prompts(in_order)

    def _schedule_prompts(self, in_order: list[Request], *, foreground_only: bool = False) -> None:
        table = self._table
        for request in in_order:
            self._admit(before=request)
            # An arrival may have preempted it, and in a micro-batch it need not be scheduled.
            if request.row is not None and table.num_scheduled[request.row]:
                num_more = min(table.num_pending(request) - 1, self._num_tokens_left)
                table.num_scheduled[request.row] += num_more
        self._admit(foreground_only=foreground_only)

    @property
    def _has_foreground_prompt(self) -> bool:
        """Whether the step that is being planned computes a prompt of a request that is no background request."""
        num_scheduled = self._table.num_scheduled
        rows = (each.row for each in self._prefilling if not each.is_background)
        return any(row is not None and num_scheduled[row] for row in rows)

    @property
    def _num_tokens_left(self) -> int:
        return self._budget - int(self._table.num_scheduled.sum())

    def _admit(self, before: Request | None = None, *, foreground_only: bool = False) -> None:
        """Admit waiting requests while tokens are left; with `before`, only those of higher priority than it."""
        if self._admission.is_idle:
            return
        # Without a free row an arrival can only be admitted with the tokens of the request that it preempts.
        while self._num_tokens_left or not self._table.has_free_row:
            admitted = self._admission.admit_next(before, foreground_only=foreground_only)
            if admitted is None:
                return
            self._start(admitted)

    def _start(self, admitted: Admitted) -> None:
        request = admitted.request
        row = request.row
        assert row is not None
        num_pending = len(request.token_ids) - admitted.num_computed
        self._table.num_scheduled[row] = min(num_pending, self._num_tokens_left)
        self._prefilling[request] = None
        self._new_requests.append(request.new_request_data(row, request.token_ids))
        if admitted.is_first_time:
            self._totals.prompt_tokens_total += request.num_prompt_tokens
            self._totals.cached_prompt_tokens_total += request.num_cached_tokens or 0

    # Applying a step's tokens

    def apply(self, plan: StepPlan, sampled: SampledTokens) -> list[TokenDelta]:
        """Append a step's tokens and finish requests that end with them; returns a delta for each request.

        Tokens of requests that have left since the step was planned are dropped.
        """
        table = self._table
        plan, sampled = self._schedule.finish(plan, sampled)
        table.num_computed[plan.rows] = plan.seq_lens if plan.num_drafts is None else num_computed(plan, sampled)
        rows, has_sampled = plan.rows, plan.samples
        if has_nonfinite := bool((is_nonfinite := are_nonfinite(plan, sampled)).any()):
            may_store = np.ones(plan.num_requests, np.bool_)
            may_store[plan.samples] = ~is_nonfinite
            rows, has_sampled = rows[may_store], has_sampled[may_store]
        self._admission.requeue(self.batch.store_written_blocks(rows, has_sampled))
        if has_nonfinite:
            self.batch.forget_written_blocks(plan.rows[plan.samples][is_nonfinite])
        self.batch.offer_written_blocks(rows[has_sampled])
        self.batch.free_windows(plan)
        trace_prefill_chunks(table, plan)
        if sampled.prompt_logprobs is not None:
            add_prompt_logprobs(table, sampled.prompt_logprobs)
            if np.isnan(sampled.prompt_logprobs.logprobs).any():
                self._forget_nonfinite(sampled.prompt_logprobs)
        if self._drafts is not None:
            self._drafts.observe(plan, sampled)
        deltas = self._outputs.process(plan.rows[plan.samples], sampled) if len(sampled.token_ids) else []
        self._totals.generation_tokens_total += len(sampled.token_ids) - int(np.count_nonzero(sampled.is_invalid))
        if table.prompt_only_rows:
            deltas += self._outputs.finish_prompt_only(plan.rows)
        return deltas

    def _forget_nonfinite(self, scored: LogprobsArrays) -> None:
        """Forget the blocks of prompt-only requests whose logprobs are not finite."""
        rows = np.unique(scored.rows[np.isnan(scored.logprobs[:, 0])])
        rows = rows[indices_of(self._table.prompt_only_rows, rows)]
        self._table.nonfinite_rows.update(rows.tolist())
        self.batch.forget_written_blocks(rows)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        del self.requests[request.request_id]
        self._num_background -= request.is_background
        self._admission.free(request)
        self.batch.adapters.record_end(request.adapter)
        request.finish_reason = reason
        if self._drafts is not None:
            self._drafts.remember(request)
        finished = self._totals.requests_finished_total
        finished[reason] = finished.get(reason, 0) + 1
        if request.trace is not None:
            if drafts := request.num_draft_tokens:
                accepted = request.num_accepted_tokens
                request.trace.record("speculated", draft_tokens=drafts, accepted_tokens=accepted)
            request.trace.record("finished", reason=reason, output_tokens=len(request.token_ids) - request.prompt_len)
