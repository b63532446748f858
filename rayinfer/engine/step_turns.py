"""Who has a turn in which step, where a step is planned while another is under way."""

import numpy as np

from rayinfer.engine.batch_table import BatchTable
from rayinfer.engine.step_plan import Int64Array, SampledTokens, StepPlan


class StepTurns:
    """Shares running requests out among steps, so that each is in one of them at a time.

    Who waits longest has the next turn, and no step takes more than its share of those who run. A request may leave
    while its step is under way, and its row may have another by the time the tokens come: those mean nothing then.
    """

    def __init__(self, table: BatchTable, num_plans_at_once: int) -> None:
        self._table = table
        self._num_plans_at_once = num_plans_at_once
        self._under_way: dict[int, Int64Array] = {}  # by step: the turns of its rows when it was planned

    def schedule_one_token_each(self) -> None:
        """Begin a plan: one token for each running request whose turn it is."""
        table, rows = self._table, self._table.rows
        if self._num_plans_at_once == 1:
            table.num_scheduled[rows] = 1
            return
        table.num_scheduled[rows] = 0
        share = -(-len(rows) // self._num_plans_at_once)
        free = rows[~table.is_under_way[rows]]
        longest_waiting = np.argsort(table.last_steps[free], kind="stable")
        table.num_scheduled[free[longest_waiting[:share]]] = 1

    def begin(self, plan: StepPlan) -> None:
        """Note who is in a step."""
        if self._num_plans_at_once > 1:
            self._table.is_under_way[plan.rows] = True
            self._table.last_steps[plan.rows] = plan.step
            self._under_way[plan.step] = self._table.turns[plan.rows]

    def call_off(self, plan: StepPlan) -> None:
        """Let those of a step that was interrupted have their turn again."""
        if plan.step in self._under_way:
            is_same = self._table.turns[plan.rows] == self._under_way.pop(plan.step)
            self._table.is_under_way[plan.rows[is_same]] = False

    def end(self, plan: StepPlan, sampled: SampledTokens) -> tuple[StepPlan, SampledTokens]:
        """Take a step's tokens, without those of requests that have left since."""
        if self._num_plans_at_once == 1:
            return plan, sampled
        is_same = self._table.turns[plan.rows] == self._under_way.pop(plan.step)
        self._table.is_under_way[plan.rows[is_same]] = False
        if is_same.all():
            return plan, sampled
        return plan.only(is_same), sampled.only(is_same[plan.samples], plan.rows[is_same])
