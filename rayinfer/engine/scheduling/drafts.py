"""Drafts in the batch: written behind the known tokens of their rows, verified by the step, counted afterwards."""

from collections.abc import Sequence

import numpy as np

from rayinfer.engine.drafting.draft_lengths import ENGINE_DEFAULT, OFF, DraftLengths, speculation_mode
from rayinfer.engine.drafting.drafter import Drafter, DraftRow
from rayinfer.engine.drafting.recent_answers import RecentAnswers
from rayinfer.engine.plan.step_plan import BoolArray, Int64Array, SampledTokens, StepPlan
from rayinfer.engine.scheduling.request import Request
from rayinfer.engine.scheduling.running_batch import RunningBatch
from rayinfer.sampling_params import Speculation


class Drafts:
    """Adds drafts to the rows that decode in a step.

    They take only tokens of the step's budget that nothing else wants, and free blocks that no running request needs
    for its next token. A row keeps such a block, as its tokens grow into it. Nothing else outlives the step: the keys
    and values of a draft that was not accepted lie behind the row's computed tokens, where the next step writes.

    With async scheduling a row drafts when none of its tokens is in flight, and waits for that where it pays.
    """

    def __init__(
        self,
        batch: RunningBatch,
        drafter: Drafter,
        block_size: int,
        speculation: Speculation,
        recent_answers: RecentAnswers | None = None,
    ) -> None:
        self._table = batch.table
        self._batch = batch
        self._drafter = drafter
        self._recent_answers = recent_answers  # that the drafter looks in
        self._block_size = block_size
        self._default = speculation_mode(speculation)
        self._lengths = DraftLengths(batch.table.num_rows)
        self.num_drafts = 0  # rows of steps that had one
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0

    def defer_rows(self) -> None:
        """Take rows out of the step that is being planned that wait for their token in flight, to draft behind it."""
        table, rows = self._table, self._table.rows
        may_wait = (table.num_scheduled[rows] == 1) & (table.expected_tokens[rows] > table.num_tokens[rows])
        may_wait &= self._modes(rows) != OFF
        may_wait &= table.expected_tokens[rows] + 1 < table.max_total_tokens[rows]  # else no draft is left to make
        rows = rows[may_wait]
        table.num_scheduled[rows[self._is_worth_waiting(rows)]] = 0

    def add(self, num_tokens_left: int) -> None:
        """Add drafts to the step that is being planned, when it has everything else."""
        table, rows = self._table, self._table.rows
        modes = self._modes(rows)
        is_known = table.expected_tokens[rows] == table.num_tokens[rows]
        is_decoding = (table.num_scheduled[rows] == 1) & (table.num_tokens[rows] - table.num_computed[rows] == 1)
        may_draft = is_known & is_decoding & (modes != OFF)
        if not may_draft.any():
            return
        rows, modes = rows[may_draft], modes[may_draft]
        if table.is_async:
            is_worth = self._is_worth_waiting(rows)
            rows, modes = rows[is_worth], modes[is_worth]
        if num_tokens_left > 0 and len(rows):
            self._draft(rows, modes, num_tokens_left)
        self._lengths.record_drafts(rows, table.num_drafts[rows] > 0)

    def observe(self, plan: StepPlan, sampled: SampledTokens) -> None:
        """Count what became of a step's drafts, before its requests leave their rows."""
        if plan.num_drafts is None or sampled.counts is None:
            return
        num_drafts = plan.num_drafts[plan.samples].astype(np.int64)
        has_draft = num_drafts > 0
        rows, num_drafts = plan.rows[plan.samples][has_draft], num_drafts[has_draft]
        num_accepted = sampled.counts[has_draft].astype(np.int64) - 1
        self._lengths.observe(rows, num_drafts, num_accepted)
        self._table.num_verified_drafts[rows] += num_drafts
        self._table.num_accepted_drafts[rows] += num_accepted
        self.num_drafts += len(rows)
        self.num_draft_tokens += int(num_drafts.sum())
        self.num_accepted_tokens += int(num_accepted.sum())

    def remember(self, request: Request) -> None:
        """Keep the answer of a request that has ended well, if it drafts, for drafts of others."""
        if self._recent_answers is None or request.finish_reason == "error":
            return
        mode = speculation_mode(request.params.speculation)
        if (self._default if mode == ENGINE_DEFAULT else mode) != OFF:
            self._recent_answers.add(request.salt, request.token_ids, request.prompt_len)

    def forget(self) -> None:
        """Forget all answers: the weights may be others afterwards."""
        if self._recent_answers is not None:
            self._recent_answers.forget()

    def _is_worth_waiting(self, rows: Int64Array) -> BoolArray:
        """Return the mask of rows for which a draft pays, though they are in no other step while it is computed."""
        table = self._table
        num_lines = int(table.num_scheduled.sum())
        is_worth = self._lengths.are_worth_waiting(rows, generations=table.generations[rows], num_lines=num_lines)
        self._lengths.pass_over(rows[~is_worth])
        return is_worth

    def _modes(self, rows: Int64Array) -> Int64Array:
        modes = self._table.speculation[rows]
        return np.where(modes == ENGINE_DEFAULT, self._default, modes)

    def _draft(self, rows: Int64Array, modes: Int64Array, num_tokens_left: int) -> None:
        table = self._table
        # The token after the last accepted draft is sampled, too.
        longest = table.max_total_tokens[rows] - table.num_tokens[rows] - 1
        limits = self._lengths.choose(
            rows,
            modes,
            np.minimum(longest, self._num_slots(rows) + self._block_size),
            generations=table.generations[rows],
            num_lines=int(table.num_scheduled.sum()),
            num_more=num_tokens_left,
        )
        self._write(rows[limits > 0], limits[limits > 0])

    def _num_slots(self, rows: Int64Array) -> Int64Array:
        """Return how many more tokens the rows' blocks have slots for."""
        slots: Int64Array = self._table.num_blocks[rows] * self._block_size - self._table.num_tokens[rows]
        return slots

    def _write(self, rows: Int64Array, limits: Int64Array) -> None:
        if not len(rows):
            return
        table, num_spare = self._table, self._num_spare_blocks
        grown: list[int] = []
        drafts = self._drafter.propose(self._draft_rows(rows, limits))
        for row, limit, num_slots, draft in zip(
            rows.tolist(), limits.tolist(), self._num_slots(rows).tolist(), drafts, strict=True
        ):
            draft = self._before_end(row, draft[:limit])
            if len(draft) > num_slots:
                if len(grown) < num_spare:
                    grown.append(row)
                else:
                    draft = draft[:num_slots]
            if draft:
                start = int(table.num_tokens[row])
                table.token_ids[row, start : start + len(draft)] = draft
                table.num_drafts[row] = len(draft)
                table.num_scheduled[row] += len(draft)
        if grown:
            self._batch.grow(np.array(grown, np.int64))

    def _draft_rows(self, rows: Int64Array, limits: Int64Array) -> list[DraftRow]:
        table = self._table
        requests = table.requests_at(rows)
        lengths = table.num_tokens[rows].tolist()
        return [
            DraftRow(
                row=row,
                request=request,
                token_ids=table.token_ids[row, :length],
                prompt_len=request.prompt_len,
                limit=limit,
                grammar=request.params.structured_outputs,
                salt=request.salt,
            )
            for row, request, length, limit in zip(rows.tolist(), requests, lengths, limits.tolist(), strict=True)
        ]

    @property
    def _num_spare_blocks(self) -> int:
        """Blocks that neither a running request's next token nor an arrival's headroom may want."""
        return self._batch.num_free_blocks - len(self._table) - self._batch.num_headroom_blocks

    def _before_end(self, row: int, draft: Sequence[int]) -> Sequence[int]:
        """Cut a draft before a token that would end the request, so that only its last new token can."""
        end_token_ids = self._table.request_at(row).end_token_ids
        for index, token_id in enumerate(draft):
            if token_id in end_token_ids:
                return draft[:index]
        return draft
