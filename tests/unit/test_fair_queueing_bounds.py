"""Bound on the service of others before a waiting request, as proven in PriorityQueue's docstring."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayinfer.priority_queue import PriorityQueue, QueueEntry

NUM_NEWCOMERS = 200_000
AGEING = 10.0  # in units of cost, as the rate is 1
COST = 1.0


@pytest.mark.parametrize("priority", [0, 10])
def test_new_tenants_do_not_starve_a_waiting_request(priority):
    queue = PriorityQueue(ageing_s=AGEING)
    for _ in range(2):
        victim = queue.push("victim", priority=priority, arrival=0.0, tenant="victim", cost=COST)
    num_others = 0
    for number in range(NUM_NEWCOMERS):
        queue.push("other", priority=0, arrival=0.0, tenant=f"tenant {number}", cost=COST)
        served = queue.pop()
        if served is victim:
            break
        num_others += 1
    total_weight = 2  # the waiting tenant, and one newcomer at a time
    assert num_others <= total_weight * (victim.key + COST) + 2 * COST


def test_a_backlogged_tenant_waits_for_a_bounded_time_among_200000_newcomers():
    queue = PriorityQueue(ageing_s=AGEING)

    def push(item, tenant, priority=0):
        queue.push(item, priority=priority, arrival=0.0, tenant=tenant, cost=COST)

    for _ in range(3):
        push(0, "regular")
    waits = []
    for number in range(NUM_NEWCOMERS):
        push(number, f"tenant {number}")
        if number % 100 == 0:
            push(number, "regular")
            push(number, "regular", priority=5)
        while len(queue) > 3:
            waits.append(number - queue.pop().item)
    assert max(waits) < 5 * 5 * AGEING  # at most five tenants wait, at five levels' distance


def test_a_newcomer_is_served_soon_beside_backlogged_tenants():
    queue = PriorityQueue(ageing_s=AGEING)
    for tenant in ("a", "b", "c"):
        for _ in range(1000):
            queue.push(tenant, priority=0, arrival=0.0, tenant=tenant, cost=COST)
    for number in range(500):
        queue.push("newcomer", priority=0, arrival=0.0, tenant=f"tenant {number}", cost=COST)
        served = [queue.pop().item for _ in range(5)]
        assert "newcomer" in served


@dataclass
class Watched:
    """A waiting request, and what the bound on its waiting is made of."""

    ticket: QueueEntry
    virtual_time: float
    latest_start: float
    cost_ahead: float  # of what waited before
    served_before: float


class WatchedQueue:
    """A queue that compares each request's waiting with the bound when it is served."""

    most_urgent, num_levels, largest_cost = -1, 4, 3.0

    def __init__(self, weights):
        self.queue = PriorityQueue(ageing_s=2.0)
        self.weights = weights
        self.waiting = {}
        self.served = 0.0
        self.largest_weight, self.most_tenants = 0.0, 0

    def push(self, name, tenant, priority, cost):
        ahead = sum(watched.ticket.cost for watched in self.waiting.values())
        options = {"tenant": name, "cost": cost, "weight": self.weights[tenant], "deadline": -self.served}
        ticket = self.queue.push(name, priority=priority, arrival=0.0, **options)
        virtual_time, latest_start = self.queue.virtual_time, self.queue.latest_start
        self.waiting[ticket.order] = Watched(ticket, virtual_time, latest_start, ahead, self.served)
        tenants = {watched.ticket.tenant: watched.ticket.weight for watched in self.waiting.values()}
        self.largest_weight = max(self.largest_weight, sum(tenants.values()))
        self.most_tenants = max(self.most_tenants, len(tenants))

    def pop(self):
        ticket = self.queue.pop()
        if ticket is not None:
            watched = self.waiting.pop(ticket.order)
            assert self.served - watched.served_before <= self.bound(watched) + 1e-6
            self.served += ticket.cost

    def bound(self, watched):
        horizon = watched.ticket.key - self.most_urgent * 2.0
        span = (horizon - watched.virtual_time) + self.num_levels * (horizon - watched.latest_start)
        rest = (self.num_levels * self.most_tenants + 1) * self.largest_cost
        return watched.cost_ahead + self.largest_weight * span + rest


costs = st.integers(1, 3).map(float)
levels = st.integers(-1, 2)
arrivals = st.tuples(st.sampled_from(["known", "new"]), st.integers(0, 2), levels, costs)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.sampled_from([0.25, 1.0, 4.0]), min_size=3, max_size=3),
    st.lists(st.one_of(st.just("pop"), arrivals), max_size=30),
    st.lists(arrivals, min_size=1, max_size=5),
)
def test_no_request_waits_for_more_service_than_the_bound(weights, actions, stream):
    queue = WatchedQueue(weights)
    for number, action in enumerate(actions + stream * (1000 // len(stream))):
        if action != "pop":
            kind, tenant, priority, cost = action
            queue.push(str(tenant) if kind == "known" else f"new {number}", tenant, priority, cost)
        if action == "pop" or number >= len(actions):
            queue.pop()
    while queue.waiting:
        queue.pop()


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.sampled_from([0.25, 1.0, 2.0, 3.0]), min_size=2, max_size=5),
    st.lists(st.integers(1, 20).map(float), min_size=5, max_size=5),
    st.integers(2, 4),
    st.integers(0, 3),
)
def test_backlogged_tenants_get_shares_by_weight_while_new_tenants_arrive(weights, sizes, depth, newcomers_per_ten):
    queue, service = PriorityQueue(ageing_s=AGEING), dict.fromkeys(range(len(weights)), 0.0)

    def push(tenant):
        queue.push(tenant, priority=0, arrival=0.0, tenant=str(tenant), cost=sizes[tenant], weight=weights[tenant])

    for tenant in range(len(weights)):
        for _ in range(depth):
            push(tenant)
    for number in range(1000):
        if number % 10 < newcomers_per_ten:
            queue.push(None, priority=0, arrival=0.0, tenant=f"new {number}", cost=5.0)
        tenant = queue.pop().item
        if tenant is not None:
            service[tenant] += sizes[tenant]
            push(tenant)
    normalized = [service[tenant] / weight for tenant, weight in enumerate(weights)]
    slack = max(size / weight for size, weight in zip(sizes, weights, strict=False))
    assert max(normalized) - min(normalized) <= 2 * slack + 1e-6
