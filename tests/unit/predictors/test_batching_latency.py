"""Latency that the batcher's decisions cause, on virtual time: a model of 20 ms and one for each item, 32 at once."""

import heapq
import itertools
import random

import pytest

from rayinfer.predictors.batching import BatchingSettings, DynamicBatcher
from rayinfer.predictors.cost_model import CostModel
from support.fakes.virtual_time import FakeClock

BASE_S, EACH_S, MAX_ITEMS = 0.02, 0.001, 32
FULL_STEP_S = BASE_S + MAX_ITEMS * EACH_S


def latencies(arrivals, returns_after=None, num_items=4000):
    """Compute items that come at these times, and again when answered; returns the latencies in their order."""
    clock, names, waits = FakeClock(0.0), itertools.count(), []
    costs = CostModel(target_step_s=1.0, max_cost=MAX_ITEMS)
    costs.record_probe(1, BASE_S + EACH_S)
    costs.record_probe(MAX_ITEMS, FULL_STEP_S)
    batcher = DynamicBatcher(costs, BatchingSettings(max_items=MAX_ITEMS), clock)
    coming = [(at, next(names)) for at in arrivals]
    heapq.heapify(coming)
    came_at = {}
    free_at = 0.0
    while (coming or batcher) and len(waits) < num_items:
        wait_s = batcher.wait_s()
        start = float("inf") if wait_s is None else max(clock.now + wait_s, free_at)
        if coming and coming[0][0] <= start:
            clock.now, name = heapq.heappop(coming)
            came_at[name] = clock.now
            batcher.add(str(name), name, cost=1)
            continue
        clock.now = start
        batch = batcher.take_batch()
        free_at = start + BASE_S + EACH_S * len(batch)
        while coming and coming[0][0] < free_at:
            clock.now, name = heapq.heappop(coming)
            came_at[name] = clock.now
            batcher.add(str(name), name, cost=1)
        clock.now = free_at
        batcher.record_batch(len(batch), free_at - start)
        batcher.record_free()
        for name in batch:
            waits.append(free_at - came_at[name])
            if returns_after is not None:
                heapq.heappush(coming, (free_at + returns_after(), next(names)))
    return waits


def percentile(values, share):
    return sorted(values)[int(share * len(values))]


@pytest.mark.parametrize(("num_clients", "ideal_s"), [(1, 0.021), (4, 0.024), (16, 0.036), (64, 0.104)])
def test_clients_in_a_closed_loop_wait_at_most_a_tenth_longer_than_ideally(num_clients, ideal_s):
    draw = random.Random(0)
    started = [draw.uniform(0, 0.1) for _ in range(num_clients)]  # out of step at first
    waits = latencies(started, lambda: draw.uniform(0.0002, 0.001))
    settled = waits[len(waits) // 4 :]
    assert percentile(settled, 0.5) <= 1.1 * ideal_s
    assert percentile(settled, 0.99) <= 1.25 * ideal_s


def test_random_arrivals_at_four_fifths_of_capacity_wait_three_steps_at_most():
    draw, at, arrivals = random.Random(0), 0.0, []
    for _ in range(4000):
        at += draw.expovariate(0.8 * MAX_ITEMS / FULL_STEP_S)
        arrivals.append(at)
    assert percentile(latencies(arrivals), 0.99) <= 3 * FULL_STEP_S


@pytest.mark.parametrize("rate", [20, 100])
def test_rare_random_arrivals_wait_no_longer_than_without_waiting_for_others(rate):
    draw, at, arrivals = random.Random(0), 0.0, []
    for _ in range(2000):
        at += draw.expovariate(rate)
        arrivals.append(at)
    with_wait = latencies(arrivals)
    free_at, without = 0.0, []
    left = arrivals[:]
    while left:
        start = max(free_at, left[0])
        batch = [each for each in left[:MAX_ITEMS] if each <= start]
        free_at = start + BASE_S + EACH_S * len(batch)
        without += [free_at - each for each in batch]
        left = left[len(batch) :]
    assert sum(with_wait) / len(with_wait) <= 1.03 * sum(without) / len(without)
