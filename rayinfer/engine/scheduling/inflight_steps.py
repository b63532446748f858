"""Selection of the requests that a step may schedule while earlier steps are still in flight."""

import numpy as np
from msgspec import structs

from rayinfer.engine.plan.step_plan import BoolArray, Int64Array, SampledTokens, StepPlan
from rayinfer.engine.scheduling.batch_table import BatchTable


def turns_of(table: BatchTable, max_concurrent_batches: int, *, supports_async_scheduling: bool) -> "StepTurns":
    """Choose the policy: overlap scheduling, one step at a time, or micro-batches."""
    if supports_async_scheduling:
        return TurnsAhead(table)
    return StepTurns(table) if max_concurrent_batches == 1 else SharedTurns(table, max_concurrent_batches)


class StepTurns:
    """One step at a time: each schedules every running request."""

    awaits_tokens = False  # whether something that is planned now goes on from tokens that are not known

    def __init__(self, table: BatchTable) -> None:
        self._table = table

    def schedule_one_token_each(self) -> None:
        """Begin a plan: one token for each running request that it may take."""
        self._table.num_scheduled[self._table.rows] = 1

    def begin(self, plan: StepPlan) -> None:
        """Note the requests in a step."""

    def call_off(self, plan: StepPlan) -> None:
        """Make the requests of an interrupted step schedulable again."""

    def take_back(self, plan: StepPlan) -> StepPlan:
        """Give up a failed step, when none is in flight; returns what is to be computed of it."""
        return plan

    def end(self, plan: StepPlan, sampled: SampledTokens) -> tuple[StepPlan, SampledTokens]:
        """Take a step's tokens, without those of requests that have left since."""
        return plan, sampled


class _StepsUnderWay(StepTurns):
    """Several steps in flight: a row may be reused before its step returns.

    Such stale tokens are dropped.
    """

    def __init__(self, table: BatchTable) -> None:
        super().__init__(table)
        self._under_way: dict[int, Int64Array] = {}  # by step: the turns of its rows when it was planned

    def begin(self, plan: StepPlan) -> None:
        """Note the requests in a step."""
        self._under_way[plan.step] = self._table.turns[plan.rows]

    def call_off(self, plan: StepPlan) -> None:
        """Make the requests of an interrupted step schedulable again."""
        if plan.step in self._under_way:
            self._end_turns(plan)

    def take_back(self, plan: StepPlan) -> StepPlan:
        """Give up a failed step, when none is in flight; returns what is to be computed of it."""
        return plan.only(self._end_turns(plan))

    def end(self, plan: StepPlan, sampled: SampledTokens) -> tuple[StepPlan, SampledTokens]:
        """Take a step's tokens, without those of requests that have left since."""
        if plan.step not in self._under_way:  # a part of one that was taken back
            return plan, sampled
        is_same = self._end_turns(plan)
        if is_same.all():
            return plan, sampled
        return plan.only(is_same), sampled.only(is_same[plan.samples], plan.rows[is_same])

    def _end_turns(self, plan: StepPlan) -> BoolArray:
        """Forget the step; returns the mask of rows that still have the same request, [num_requests]."""
        is_same: BoolArray = self._table.turns[plan.rows] == self._under_way.pop(plan.step)
        return is_same


class SharedTurns(_StepsUnderWay):
    """Micro-batches of a pipeline: each running request is in one in-flight step at a time.

    The requests that wait longest go first, and no step takes more than its share of them.
    """

    def __init__(self, table: BatchTable, max_concurrent_batches: int) -> None:
        super().__init__(table)
        self._num_plans_at_once = max_concurrent_batches

    def schedule_one_token_each(self) -> None:
        """Begin a plan: one token for each running request that it may take."""
        table, rows = self._table, self._table.rows
        table.num_scheduled[rows] = 0
        share = -(-len(rows) // self._num_plans_at_once)
        free = rows[~table.is_under_way[rows]]
        longest_waiting = np.argsort(table.last_steps[free], kind="stable")
        table.num_scheduled[free[longest_waiting[:share]]] = 1

    def begin(self, plan: StepPlan) -> None:
        """Note the requests in a step."""
        super().begin(plan)
        self._table.is_under_way[plan.rows] = True
        self._table.last_steps[plan.rows] = plan.step

    def _end_turns(self, plan: StepPlan) -> BoolArray:
        is_same = super()._end_turns(plan)
        self._table.is_under_way[plan.rows[is_same]] = False
        return is_same


class TurnsAhead(_StepsUnderWay):
    """Overlap scheduling: every step takes all requests, from tokens of the step before that are still in flight.

    A request with its last token is scheduled no more. One that ends otherwise is in one step too many: its row is
    free or another's when that step's tokens come.
    """

    @property
    def awaits_tokens(self) -> bool:  # type: ignore[override]
        """Whether something that is planned now goes on from tokens that are not known."""
        return bool(self._under_way)

    def schedule_one_token_each(self) -> None:
        """Begin a plan: one token for each running request that has another."""
        rows = self._table.rows
        self._table.num_scheduled[rows] = self._table.go_on(rows)

    def begin(self, plan: StepPlan) -> None:
        """Note the requests in a step, and expect their tokens."""
        super().begin(plan)
        self._table.expect(plan)

    def take_back(self, plan: StepPlan) -> StepPlan:
        """Give up a failed step, when none is in flight; returns what is to be computed of it."""
        plan = super().take_back(plan)
        assert plan.uses_last_sampled is not None
        token_ids = plan.token_ids.copy()
        rows, lasts = plan.rows[plan.uses_last_sampled], plan.cu_seqlens_q[1:][plan.uses_last_sampled] - 1
        token_ids[lasts] = self._table.token_ids[rows, plan.positions[lasts]]
        return structs.replace(plan, token_ids=token_ids, uses_last_sampled=None)
