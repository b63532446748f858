"""Random scripts of arrivals, cancellations, failures, slow steps and closing: what holds for every one of them."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayinfer.errors import EngineDead, QueueFull
from rayinfer.predictors.batching import BatchingSettings, DynamicBatcher
from rayinfer.predictors.cost_model import CostModel
from support.fakes.virtual_time import FakeClock

NUM_SCRIPTS = 10_000
SCRIPTS_PER_EXAMPLE = 100
AGEING_S = 0.5
EPSILON_S = 1e-9


class Script:
    """One random course of events around a batcher and a model that computes one batch at a time."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.clock = FakeClock(0.0)
        self.is_padded = self.draw.random() < 0.3
        self.budget, self.max_items = self.draw.choice([1, 8, 64]), self.draw.choice([0, 1, 4])
        self.max_wait_s = self.draw.choice([0.0, 0.002, 0.05])
        costs = CostModel(target_step_s=1e9, max_cost=self.budget)
        costs.record_probe(1, 0.02)
        costs.record_probe(self.budget + 1, 0.02 + 0.001 * self.budget)
        bound = self.draw.choice([0, 0, 30])
        self.batcher = DynamicBatcher(
            costs,
            BatchingSettings(
                max_wait_s=self.max_wait_s,
                max_items=self.max_items,
                max_waiting_cost=bound,
                is_padded=self.is_padded,
                ageing_s=AGEING_S,
            ),
            self.clock,
        )
        self.order = {}  # of waiting items, by name: key, deadline and number, as the queue has them
        self.costs = {}
        self.ends = Counter()
        self.accepted = []
        self.busy_until = None
        self.batch = []
        self.free_since = 0.0
        self.is_closed = False

    def run(self):
        for _ in range(self.draw.randint(5, 40)):
            self.pass_time(self.draw.choice([0.0, 0.0, 0.0003, 0.004, 0.03]))
            self.draw.choices([self.submit, self.cancel, self.expire, self.close], [12, 2, 1, 0.2])[0]()
            self.work()
        while self.batcher.wait_s() is not None or self.busy_until is not None:
            self.pass_time(0.001)
            self.work()
        assert self.ends == Counter(self.accepted)  # each exactly once
        assert not self.order
        assert len(self.batcher) == self.batcher.waiting_cost == 0

    def pass_time(self, seconds):
        self.clock.now += seconds
        self.work()

    def submit(self):
        name, priority, cost = f"item {len(self.costs)}", self.draw.choice([0, 0, 0, -1, 2]), self.draw.randint(1, 20)
        deadline = self.clock.now + self.draw.uniform(0, 0.2) if self.draw.random() < 0.2 else None
        self.costs[name] = cost
        if self.is_closed or not self.batcher.has_room_for(cost):
            with pytest.raises(EngineDead if self.is_closed else QueueFull):
                self.batcher.add(name, name, cost=cost)
            return
        self.batcher.add(name, name, cost=cost, priority=priority, deadline=deadline)
        self.accepted.append(name)
        key = priority * AGEING_S + self.clock.now
        self.order[name] = (key, float("inf") if deadline is None else deadline, len(self.costs), priority)

    def cancel(self):
        name = self.draw.choice([*self.costs, "unknown"])
        assert self.batcher.cancel(name) == (name if name in self.order else None)
        if name in self.order:
            self.end(name)

    def expire(self):
        overdue = {name for name, (_, deadline, *_) in self.order.items() if deadline <= self.clock.now}
        taken = self.batcher.take_overdue()
        assert set(taken) == overdue
        for name in taken:
            self.end(name)

    def close(self):
        self.is_closed = True
        for name in self.batcher.close():
            self.end(name)

    def end(self, name):
        self.ends[name] += 1
        del self.order[name]

    def work(self):
        """End the batch that is due, and take the next one where the batcher says so."""
        if self.busy_until is not None:
            if self.clock.now < self.busy_until:
                return
            for name in self.batch:  # computed, or failed one by one: they end either way
                self.ends[name] += 1
            self.free_since, self.busy_until, self.batch = self.clock.now, None, []
            self.batcher.record_free()
        wait_s = self.batcher.wait_s()
        if wait_s is None:
            assert not self.order
        elif wait_s > 0:
            self.check_wait(wait_s)
        else:
            self.take()

    def check_wait(self, wait_s):
        first_arrival = min(key - priority * AGEING_S for key, _, _, priority in self.order.values())
        free_for_s = self.clock.now - max(self.free_since, first_arrival)
        assert free_for_s + wait_s <= self.max_wait_s + EPSILON_S
        assert all(self.clock.now + wait_s <= deadline for _, deadline, *_ in self.order.values())

    def take(self):
        waiting = sorted(self.order, key=self.order.__getitem__)
        self.batch = self.batcher.take_batch()
        assert self.batch
        assert waiting[0] in self.batch  # so an item waits for no more batches than items go before it
        self.check_size()
        if self.is_padded:
            assert len({self.order[name][3] for name in self.batch}) == 1
        else:
            assert self.batch == waiting[: len(self.batch)]
        for name in self.batch:
            del self.order[name]
        is_slow = self.draw.random() < 0.05
        self.busy_until = self.clock.now + self.draw.uniform(0.001, 0.03) * (100 if is_slow else 1)

    def check_size(self):
        costs = [self.costs[name] for name in self.batch]
        cost = max(costs) * len(costs) if self.is_padded else sum(costs)
        assert len(costs) == 1 or cost <= self.budget
        assert not self.max_items or len(costs) <= self.max_items


@settings(max_examples=NUM_SCRIPTS // SCRIPTS_PER_EXAMPLE)
@given(st.integers(0, 2**32))
def test_items_end_once_in_order_and_wait_within_their_bound(seed):
    for number in range(SCRIPTS_PER_EXAMPLE):
        Script(f"{seed} {number}").run()


@pytest.mark.parametrize("seed", range(20))
def test_arrivals_that_are_rare_find_a_batcher_that_adds_nothing(seed):
    draw, script = random.Random(seed), Script(seed)
    script.batcher.record_free()
    for number in range(50):
        script.clock.now += draw.uniform(0.0055, 1.0)  # from a quarter of half of the base on
        script.batcher.add(str(number), str(number), cost=draw.randint(1, 20))
        assert script.batcher.wait_s() == 0
        assert script.batcher.take_batch() == [str(number)]
        script.batcher.record_free()
