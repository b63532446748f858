"""The running requests as rows of preallocated arrays, so that a step costs no Python per request."""

import math
from collections.abc import Sequence

import numpy as np

from rayinfer.engine.drafting.draft_lengths import speculation_mode
from rayinfer.engine.plan.step_plan import (
    BoolArray,
    Int32Array,
    Int64Array,
    NewRequestData,
    SampledTokens,
    StepPlan,
)
from rayinfer.engine.scheduling.request import Request


class BatchTable:
    """Counters, tokens and block tables of the running requests; a row belongs to one request at a time."""

    def __init__(
        self, num_rows: int, max_model_len: int, block_size: int, *, supports_async_scheduling: bool = False
    ) -> None:
        self.num_rows = num_rows
        self.is_async = supports_async_scheduling
        self._block_size = block_size
        max_blocks = -(-max_model_len // block_size)
        self.token_ids = np.empty((num_rows, max_blocks * block_size), np.int32)
        self.tokens_in_blocks = self.token_ids.reshape(num_rows, max_blocks, block_size)
        self.block_tables = np.zeros((num_rows, max_blocks), np.int32)
        self.num_tokens = np.zeros(num_rows, np.int64)  # known: prompt and output
        self.num_computed = np.zeros(num_rows, np.int64)  # whose keys and values are in the cache
        # The same two once the in-flight steps are done. Without async scheduling they are only read between steps, and
        # are the same arrays.
        self.expected_tokens = np.zeros(num_rows, np.int64) if supports_async_scheduling else self.num_tokens
        self.expected_computed = np.zeros(num_rows, np.int64) if supports_async_scheduling else self.num_computed
        self.num_scheduled = np.zeros(num_rows, np.int64)  # to be computed in the step that is being planned
        self.num_drafts = np.zeros(num_rows, np.int64)  # of those, behind the known tokens: guesses
        self.num_verified_drafts = np.zeros(num_rows, np.int64)  # of the row's request, in all steps so far
        self.num_accepted_drafts = np.zeros(num_rows, np.int64)
        self.num_blocks = np.zeros(num_rows, np.int64)
        self.num_stored_blocks = np.zeros(num_rows, np.int64)  # of those, hit-able in the prefix cache
        self.generations = np.zeros(num_rows, np.int64)  # of requests: grows when the row is freed
        self.is_in_flight = np.zeros(num_rows, np.bool_)  # in a step that must be read before it is in another
        self.last_steps = np.zeros(num_rows, np.int64)  # the latest step that the row was planned in
        # Of the row's request:
        self.request_ids = np.full(num_rows, "", np.object_)
        self.prompt_lens = np.zeros(num_rows, np.int64)
        self.max_total_tokens = np.zeros(num_rows, np.int64)
        self.num_cached_tokens = np.zeros(num_rows, np.int64)  # as reported to its client
        self.checks_eos = np.zeros(num_rows, np.bool_)
        self.speculation = np.zeros(num_rows, np.int64)  # a mode of `drafting/draft_lengths.py`
        self.priorities = np.zeros(num_rows, np.int64)
        self.deadlines = np.zeros(num_rows, np.float64)
        self.keys = np.zeros(num_rows, np.float64)  # of the queue entries, as `orders`
        self.orders = np.zeros(num_rows, np.int64)
        # Rows of requests with rare settings, so that no array is searched for them:
        self.rows_with_stop_ids: set[int] = set()
        self.rows_with_details: set[int] = set()  # log probabilities or a trace
        self.prompt_only_rows: set[int] = set()  # max_tokens is 0: only prompt logprobs are wanted
        self.nonfinite_rows: set[int] = set()  # of those, the prompt logprobs are NaN
        self.uncacheable_rows: set[int] = set()  # they share blocks that turned out to hold NaN
        self.unverified_rows: set[int] = set()  # they have not sampled from finite logits yet
        self.requests: list[Request | None] = [None] * num_rows
        self._free_rows = list(range(num_rows - 1, -1, -1))
        self._active: dict[int, None] = {}  # rows in the order in which they were added
        self._active_rows: Int64Array | None = None

    def __len__(self) -> int:
        return len(self._active)

    @property
    def has_free_row(self) -> bool:
        """Whether one more request can run."""
        return bool(self._free_rows)

    @property
    def rows(self) -> Int64Array:
        """The rows in use, oldest first."""
        if self._active_rows is None:
            self._active_rows = np.fromiter(self._active, np.int64, len(self._active))
        return self._active_rows

    @property
    def scheduled_rows(self) -> Int64Array:
        """The rows with tokens in the step that is being planned, oldest first."""
        rows = self.rows
        is_scheduled = self.num_scheduled[rows] > 0
        return rows if is_scheduled.all() else rows[is_scheduled]

    def request_at(self, row: int) -> Request:
        """Return the request in this row."""
        request = self.requests[row]
        assert request is not None, f"row {row} is free"
        return request

    def requests_at(self, rows: Int64Array) -> list[Request]:
        """Return the requests in these rows."""
        return list(map(self.requests.__getitem__, rows.tolist()))  # type: ignore[arg-type]

    def num_pending(self, request: Request) -> int:
        """Count a request's known or in-flight tokens that are in no step yet; 0 if it does not run."""
        row = request.row
        return 0 if row is None else int(self.expected_tokens[row] - self.expected_computed[row])

    def has_next_token(self, rows: Int64Array) -> BoolArray:
        """Return the mask of rows whose requests have a token for one more step, as far as known, [num_rows]."""
        expected = self.expected_tokens[rows]
        is_known = expected == self.num_tokens[rows]
        has_next: BoolArray = expected < self.max_total_tokens[rows]  # else it ends when its last token is read
        has_next |= is_known & (self.expected_computed[rows] < expected)
        return has_next

    def is_taken(self, row: int) -> bool:
        """Return whether the row is in use."""
        return self.requests[row] is not None

    def new_request_data(self, row: int) -> NewRequestData:
        """Return what workers need of the row's request, as it is now."""
        return self.request_at(row).new_request_data(row, self._tokens_at(row))

    def add_row(self, request: Request, *, num_computed: int, num_stored_blocks: int) -> int:
        """Give the request a free row and copy its tokens and blocks in; returns the row."""
        row = self._free_rows.pop()
        self._active[row] = None
        self._active_rows = None
        self.requests[row] = request
        self.token_ids[row, : len(request.token_ids)] = request.token_ids
        self.block_tables[row, : len(request.blocks)] = request.blocks
        self.num_tokens[row] = len(request.token_ids)
        self.num_computed[row] = num_computed
        self.expected_tokens[row], self.expected_computed[row] = self.num_tokens[row], num_computed
        self.num_blocks[row] = len(request.blocks)
        self.num_stored_blocks[row] = num_stored_blocks
        self.num_verified_drafts[row] = request.num_draft_tokens
        self.num_accepted_drafts[row] = request.num_accepted_tokens
        self.last_steps[row] = 0
        self._copy_settings(row, request)
        return row

    def _copy_settings(self, row: int, request: Request) -> None:
        assert request.queue_entry is not None, f"{request.request_id} has no queue entry"
        self.unverified_rows.add(row)
        self.request_ids[row] = request.request_id
        self.prompt_lens[row] = request.prompt_len
        self.max_total_tokens[row] = request.max_total_tokens
        self.num_cached_tokens[row] = request.num_cached_tokens or 0
        self.checks_eos[row] = not request.params.ignore_eos
        self.speculation[row] = speculation_mode(request.params.speculation)
        self.priorities[row] = request.priority
        self.deadlines[row] = math.inf if request.deadline is None else request.deadline
        self.keys[row] = request.queue_entry.key
        self.orders[row] = request.queue_entry.order
        if request.params.stop_ids:
            self.rows_with_stop_ids.add(row)
        if request.wants_logprobs_or_trace:
            self.rows_with_details.add(row)
        if request.is_prompt_logprobs_only:
            self.prompt_only_rows.add(row)

    def add_blocks(self, rows: Int64Array, blocks: list[int]) -> None:
        """Append a block to each of the rows' tables."""
        self.block_tables[rows, self.num_blocks[rows]] = blocks
        self.num_blocks[rows] += 1

    def remove_row(self, row: int) -> Request:
        """Free the row and copy its tokens and blocks back to its request."""
        request = self.request_at(row)
        request.token_ids = self._tokens_at(row)
        request.blocks = self.block_tables[row, : self.num_blocks[row]].tolist()
        request.num_draft_tokens = int(self.num_verified_drafts[row])
        request.num_accepted_tokens = int(self.num_accepted_drafts[row])
        self.requests[row] = None
        self.request_ids[row] = ""
        self.num_scheduled[row] = 0
        self.generations[row] += 1
        self.is_in_flight[row] = False
        for some_rows in (
            *(self.rows_with_stop_ids, self.rows_with_details, self.prompt_only_rows),
            *(self.nonfinite_rows, self.uncacheable_rows, self.unverified_rows),
        ):
            some_rows.discard(row)
        del self._active[row]
        self._active_rows = None
        self._free_rows.append(row)
        return request

    def blocks_of(self, rows: Int64Array) -> Int32Array:
        """Return every block of these rows once: several may read the same."""
        width = int(self.num_blocks[rows].max(initial=0))
        is_taken = np.arange(width) < self.num_blocks[rows][:, np.newaxis]
        blocks: Int32Array = np.unique(self.block_tables[rows, :width][is_taken])
        return blocks

    def _tokens_at(self, row: int) -> Int32Array:
        tokens: Int32Array = self.token_ids[row, : self.num_tokens[row]].copy()
        return tokens

    def assemble(
        self, *, step: int, new_requests: tuple[NewRequestData, ...], emptied_adapter_slots: tuple[int, ...] = ()
    ) -> StepPlan:
        """Gather the scheduled tokens of all rows into one plan."""
        rows, num_tokens = self.scheduled_rows, int(self.num_scheduled.sum())
        computed = self.expected_computed[rows]
        if num_tokens == len(rows):  # a token each, as in most steps
            token_rows, positions = rows, computed
            seq_lens = computed + 1
            cu_seqlens_q = np.arange(len(rows) + 1, dtype=np.int32)
        else:
            counts = self.num_scheduled[rows]
            cu_seqlens_q = np.zeros(len(rows) + 1, np.int32)
            counts.cumsum(out=cu_seqlens_q[1:])
            token_rows = np.repeat(rows, counts)
            positions = np.arange(num_tokens) + np.repeat(computed - cu_seqlens_q[:-1], counts)
            seq_lens = computed + counts
        block_indices = positions // self._block_size
        offsets = positions - block_indices * self._block_size  # a quarter of what divmod takes
        max_blocks = -(-int(seq_lens.max()) // self._block_size)
        num_drafts = self._take_num_drafts(rows)
        samples = seq_lens == self.expected_tokens[rows] + (0 if num_drafts is None else num_drafts)
        if self.prompt_only_rows:
            samples[indices_of(self.prompt_only_rows, rows)] = False
        token_ids = self.token_ids[token_rows, positions]
        uses_last_sampled = self._uses_last_sampled(rows, seq_lens, num_drafts) if self.is_async else None
        if uses_last_sampled is not None:
            token_ids[cu_seqlens_q[1:][uses_last_sampled] - 1] = 0
        return StepPlan(
            step=step,
            rows=rows,
            token_ids=token_ids,
            positions=positions,
            slot_mapping=self.block_tables[token_rows, block_indices] * np.int64(self._block_size) + offsets,
            cu_seqlens_q=cu_seqlens_q,
            seq_lens=seq_lens.astype(np.int32),
            block_tables=self.block_tables[rows, :max_blocks],
            samples=samples,
            new_requests=new_requests,
            emptied_adapter_slots=emptied_adapter_slots,
            uses_last_sampled=uses_last_sampled,
            num_drafts=num_drafts,
        )

    def _take_num_drafts(self, rows: Int64Array) -> Int32Array | None:
        """Return the drafts of the step that is being planned, once; None if there are none."""
        num_drafts = self.num_drafts[rows]
        if not num_drafts.any():
            return None
        self.num_drafts[rows] = 0
        return num_drafts.astype(np.int32)

    def _uses_last_sampled(self, rows: Int64Array, seq_lens: Int64Array, num_drafts: Int32Array | None) -> BoolArray:
        """Return the mask of rows whose last token is still in flight; a row with drafts has none that is."""
        num_known = self.num_tokens[rows]
        uses: BoolArray = seq_lens > (num_known if num_drafts is None else num_known + num_drafts)
        return uses

    def expect(self, plan: StepPlan) -> None:
        """Count the tokens that an in-flight step will compute and sample, whatever becomes of its drafts."""
        self.expected_computed[plan.rows] = (
            plan.seq_lens if plan.num_drafts is None else plan.seq_lens - plan.num_drafts
        )
        self.expected_tokens[plan.rows[plan.samples]] += 1

    def expect_accepted(self, plan: StepPlan, sampled: SampledTokens) -> None:
        """Count a step's accepted drafts, too, once they are known."""
        if sampled.counts is not None:
            rows, num_accepted = plan.rows[plan.samples], sampled.counts - 1
            self.expected_computed[rows] += num_accepted
            self.expected_tokens[rows] += num_accepted

    def reset_expected(self) -> None:
        """Reset the expected counts to the known ones: no step is in flight any more."""
        rows = self.rows
        self.expected_tokens[rows], self.expected_computed[rows] = self.num_tokens[rows], self.num_computed[rows]

    def check_stop(self, rows: Int64Array, token_ids: Int64Array, eos_token_ids: Sequence[int]) -> BoolArray:
        """Return the mask of rows whose new tokens are end or stop tokens, [num_rows]."""
        ends = np.zeros(len(rows), np.bool_)
        for eos_token_id in eos_token_ids:  # there are few
            ends |= token_ids == eos_token_id
        ends &= self.checks_eos[rows]
        for i in indices_of(self.rows_with_stop_ids, rows):
            ends[i] |= int(token_ids[i]) in self.request_at(rows[i]).params.stop_ids
        return ends

    def append(self, rows: Int64Array, token_ids: Int64Array, counts: Int32Array | None = None) -> None:
        """Add new tokens to each of the rows: one, or as many as `counts` says, one row's after the other's."""
        num_tokens = self.num_tokens[rows]
        if counts is None:
            self.token_ids[rows, num_tokens] = token_ids
            self.num_tokens[rows] = num_tokens + 1
            return
        firsts = counts.cumsum() - counts
        positions = np.arange(len(token_ids)) + np.repeat(num_tokens - firsts, counts)
        self.token_ids[np.repeat(rows, counts), positions] = token_ids
        self.num_tokens[rows] = num_tokens + counts


def indices_of(some_rows: set[int], rows: Int64Array) -> list[int]:
    """Find the indices at which rows of a set stand in `rows`."""
    if not some_rows:
        return []
    indices: list[int] = np.flatnonzero(np.isin(rows, list(some_rows))).tolist()
    return indices
