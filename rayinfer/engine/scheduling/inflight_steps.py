"""Selection of the requests that a step may schedule while earlier steps are still in flight."""

import numpy as np
from msgspec import structs

from rayinfer.engine.plan.step_plan import BoolArray, Int64Array, SampledTokens, StepPlan
from rayinfer.engine.scheduling.batch_table import BatchTable


def step_schedule(table: BatchTable, max_concurrent_batches: int, *, supports_async_scheduling: bool) -> "StepSchedule":
    """Make the schedule: async scheduling, one step at a time, or micro-batches."""
    if supports_async_scheduling:
        return AsyncSchedule(table)
    return StepSchedule(table) if max_concurrent_batches == 1 else MicroBatchSchedule(table, max_concurrent_batches)


class StepSchedule:
    """Schedule of one step at a time, with every running request in each.

    The base of the schedules with several steps in flight, where `start`, `cancel`, `retract` and `finish` keep books.
    """

    has_unknown_tokens = False  # whether the next step would continue from tokens that are still in flight

    def __init__(self, table: BatchTable) -> None:
        self._table = table

    def schedule_one_token_each(self) -> None:
        """Schedule one token of each running request that the next step may have."""
        self._table.num_scheduled[self._table.rows] = 1

    def start(self, plan: StepPlan) -> None:
        """Record the requests of a step that is about to be in flight."""

    def cancel(self, plan: StepPlan) -> None:
        """Forget an interrupted step, so that its requests can be scheduled again."""

    def retract(self, plan: StepPlan) -> StepPlan:
        """Return what is to be computed again of a failed step, when no other is in flight."""
        return plan

    def finish(self, plan: StepPlan, sampled: SampledTokens) -> tuple[StepPlan, SampledTokens]:
        """Return a computed step and its tokens, without requests that have left since it was planned."""
        return plan, sampled


class _ConcurrentStepSchedule(StepSchedule):
    """Schedule of several steps in flight.

    A row can be reused before its in-flight step returns; such stale tokens are dropped by comparing row generations.
    """

    def __init__(self, table: BatchTable) -> None:
        super().__init__(table)
        self._in_flight: dict[int, Int64Array] = {}  # by step: the generations of its rows when it was planned

    def start(self, plan: StepPlan) -> None:
        """Record the requests of a step that is about to be in flight."""
        self._in_flight[plan.step] = self._table.generations[plan.rows]

    def cancel(self, plan: StepPlan) -> None:
        """Forget an interrupted step, so that its requests can be scheduled again."""
        if plan.step in self._in_flight:
            self._finish_rows(plan)

    def retract(self, plan: StepPlan) -> StepPlan:
        """Return what is to be computed again of a failed step, when no other is in flight; drafts are not."""
        return plan.only(self._finish_rows(plan)).without_drafts()

    def finish(self, plan: StepPlan, sampled: SampledTokens) -> tuple[StepPlan, SampledTokens]:
        """Return a computed step and its tokens, without requests that have left since it was planned."""
        if plan.step not in self._in_flight:  # a part of a step that was retracted
            return plan, sampled
        is_same = self._finish_rows(plan)
        if is_same.all():
            return plan, sampled
        return plan.only(is_same), sampled.only(is_same[plan.samples], plan.rows[is_same])

    def _finish_rows(self, plan: StepPlan) -> BoolArray:
        """Forget the step; returns the mask of rows that still have the same request, [num_requests]."""
        is_same: BoolArray = self._table.generations[plan.rows] == self._in_flight.pop(plan.step)
        return is_same


class MicroBatchSchedule(_ConcurrentStepSchedule):
    """Micro-batches of a pipeline: each running request is in at most one in-flight step.

    Running requests are spread evenly over the micro-batches, those that have waited longest first.
    """

    def __init__(self, table: BatchTable, max_concurrent_batches: int) -> None:
        super().__init__(table)
        self._num_batches = max_concurrent_batches

    def schedule_one_token_each(self) -> None:
        """Schedule one token of each running request that the next step may have."""
        table, rows = self._table, self._table.rows
        table.num_scheduled[rows] = 0
        size = -(-len(rows) // self._num_batches)
        free = rows[~table.is_in_flight[rows]]
        longest_waiting = np.argsort(table.last_steps[free], kind="stable")
        table.num_scheduled[free[longest_waiting[:size]]] = 1

    def start(self, plan: StepPlan) -> None:
        """Record the requests of a step that is about to be in flight."""
        super().start(plan)
        self._table.is_in_flight[plan.rows] = True
        self._table.last_steps[plan.rows] = plan.step

    def _finish_rows(self, plan: StepPlan) -> BoolArray:
        is_same = super()._finish_rows(plan)
        self._table.is_in_flight[plan.rows[is_same]] = False
        return is_same


class AsyncSchedule(_ConcurrentStepSchedule):
    """Async scheduling: a step is planned while the one before computes, with the same requests again.

    A request that reaches its length is not scheduled again. One that ends by a token is computed once more: its row is
    free or reused when that token is read, which is dropped. One with a draft in flight has an unknown number of new
    tokens: it is in no other step until that one was read.
    """

    @property
    def has_unknown_tokens(self) -> bool:  # type: ignore[override]
        """Whether the next step would continue from tokens that are still in flight."""
        return bool(self._in_flight)

    def schedule_one_token_each(self) -> None:
        """Schedule one token of each running request that has another, unless a draft of it is in flight."""
        table, rows = self._table, self._table.rows
        table.num_scheduled[rows] = table.has_next_token(rows) & ~table.is_in_flight[rows]

    def start(self, plan: StepPlan) -> None:
        """Record the requests of a step, and count its tokens as expected."""
        super().start(plan)
        self._table.expect(plan)
        if plan.num_drafts is not None:
            self._table.is_in_flight[plan.rows[plan.num_drafts > 0]] = True

    def finish(self, plan: StepPlan, sampled: SampledTokens) -> tuple[StepPlan, SampledTokens]:
        """Return a computed step and its tokens, without requests that have left since it was planned."""
        plan, sampled = super().finish(plan, sampled)
        self._table.expect_accepted(plan, sampled)
        return plan, sampled

    def _finish_rows(self, plan: StepPlan) -> BoolArray:
        is_same = super()._finish_rows(plan)
        if plan.num_drafts is not None:
            self._table.is_in_flight[plan.rows[is_same & (plan.num_drafts > 0)]] = False
        return is_same

    def retract(self, plan: StepPlan) -> StepPlan:
        """Return what is to be computed again of a failed step, when no other is in flight."""
        plan = super().retract(plan)
        assert plan.uses_last_sampled is not None
        token_ids = plan.token_ids.copy()
        rows, lasts = plan.rows[plan.uses_last_sampled], plan.cu_seqlens_q[1:][plan.uses_last_sampled] - 1
        token_ids[lasts] = self._table.token_ids[rows, plan.positions[lasts]]
        return structs.replace(plan, token_ids=token_ids, uses_last_sampled=None)
