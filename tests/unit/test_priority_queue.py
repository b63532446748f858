import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayinfer.errors import ConfigError
from rayinfer.priority_queue import BACKGROUND_PRIORITY, PriorityQueue
from support.kernels.memory_use import held_bytes


def drain(queue):
    items = []
    while (ticket := queue.pop()) is not None:
        items.append(ticket.item)
    return items


def test_without_priorities_and_costs_it_is_first_come_first_served():
    queue = PriorityQueue()
    for item in range(20):
        queue.push(item, priority=0, arrival=100.0 + item // 4)
    assert drain(queue) == list(range(20))


def test_a_request_that_arrived_earlier_goes_first_even_if_it_is_pushed_later():
    queue = PriorityQueue()
    queue.push("late", priority=0, arrival=5.0)
    queue.push("early", priority=0, arrival=3.0)
    assert drain(queue) == ["early", "late"]


def test_lower_priorities_go_first_and_negative_ones_before_them():
    queue = PriorityQueue(ageing_s=10.0)
    for priority in (2, 0, -1, 1):
        queue.push(priority, priority=priority, arrival=50.0)
    assert drain(queue) == [-1, 0, 1, 2]


def test_equal_keys_go_by_deadline_and_then_by_order_of_pushing():
    queue = PriorityQueue()
    queue.push("never", priority=0, arrival=1.0)
    queue.push("late", priority=0, arrival=1.0, deadline=9.0)
    queue.push("soon", priority=0, arrival=1.0, deadline=4.0)
    queue.push("late too", priority=0, arrival=1.0, deadline=9.0)
    assert drain(queue) == ["soon", "late", "late too", "never"]


def test_items_need_no_order_of_their_own():
    queue = PriorityQueue()
    items = [object(), object(), {}]
    for item in items:
        queue.push(item, priority=0, arrival=1.0)
    assert drain(queue) == items


def test_the_tickets_of_queues_that_share_their_numbers_have_one_order():
    orders = itertools.count()
    queues = [PriorityQueue(orders=orders) for _ in range(3)]
    tickets = [queues[index % 3].push(index, priority=0, arrival=1.0) for index in range(9)]
    assert [ticket.item for ticket in sorted(tickets, key=lambda ticket: ticket.sort_key)] == list(range(9))


def test_a_ticket_shows_item_key_and_priority():
    ticket = PriorityQueue(ageing_s=10.0).push("a", priority=2, arrival=100.0)
    assert (ticket.item, ticket.key, ticket.priority, ticket.deadline) == ("a", 120.0, 2, math.inf)


def test_priority_p_waits_at_most_p_times_ageing_longer():
    queue = PriorityQueue(ageing_s=10.0)
    patient = queue.push("patient", priority=3, arrival=0.0)
    served_at = None
    for second in range(100):  # urgent work never ends: one comes and one is served each second
        queue.push("urgent", priority=0, arrival=float(second))
        if queue.pop() is patient:
            served_at = second
            break
    assert served_at == 30  # its key equals that of the urgent request of second 30, and it was pushed before


def test_peek_shows_what_pop_takes_and_takes_nothing():
    queue = PriorityQueue()
    assert queue.peek() is None
    assert queue.pop() is None
    queue.push("b", priority=1, arrival=0.0)
    first = queue.push("a", priority=0, arrival=0.0)
    assert queue.peek() is queue.peek() is first
    assert len(queue) == 2
    assert queue.pop() is first
    assert len(queue) == 1


def test_what_is_pushed_back_keeps_its_place():
    queue = PriorityQueue()
    for item in "abc":
        queue.push(item, priority=0, arrival=1.0)
    first, second = queue.pop(), queue.pop()
    queue.push("d", priority=0, arrival=1.0)
    queue.push_back(second)
    queue.push_back(first)
    assert len(queue) == 4
    assert drain(queue) == ["a", "b", "c", "d"]


def test_pushing_back_what_is_waiting_is_an_error():
    queue = PriorityQueue()
    ticket = queue.push("a", priority=0, arrival=0.0)
    with pytest.raises(RuntimeError, match="waiting already"):
        queue.push_back(ticket)


def test_pushing_back_costs_a_tenant_nothing_more():
    queue = PriorityQueue(rate=1.0)
    queue.push("first", priority=0, arrival=0.0, tenant="a", cost=5.0)
    for _ in range(10):
        queue.push_back(queue.pop())
    assert queue.push("second", priority=0, arrival=0.0, tenant="a").key == 5.0


def test_a_removed_request_is_never_popped_and_cannot_be_removed_twice():
    queue = PriorityQueue()
    tickets = [queue.push(item, priority=0, arrival=0.0) for item in "abcd"]
    assert queue.remove(tickets[0])
    assert queue.remove(tickets[2])
    assert not queue.remove(tickets[0])
    assert len(queue) == 2
    assert queue.peek() is tickets[1]
    assert drain(queue) == ["b", "d"]
    assert not queue.remove(tickets[1])


def test_a_removed_request_may_be_pushed_back_and_comes_once():
    queue = PriorityQueue()
    first, second = (queue.push(item, priority=0, arrival=0.0) for item in "ab")
    queue.remove(second)
    queue.push_back(second)
    assert drain(queue) == ["a", "b"]
    assert len(queue) == 0
    queue.push_back(first)
    assert drain(queue) == ["a"]


def test_a_ticket_of_another_queue_removes_nothing():
    queue, other = PriorityQueue(), PriorityQueue()
    queue.push("mine", priority=0, arrival=0.0)
    assert not queue.remove(other.push("theirs", priority=0, arrival=0.0))
    assert len(queue) == 1


def test_removed_requests_do_not_pile_up_behind_one_that_stays():
    queue = PriorityQueue()
    queue.push("stays", priority=-10, arrival=0.0)
    for item in range(5000):
        assert queue.remove(queue.push(item, priority=0, arrival=1.0))
    assert held_bytes(queue) < 20_000  # of 5,000 requests
    tickets = [queue.push(item, priority=0, arrival=1.0) for item in range(1000)]
    for number, ticket in enumerate(tickets[::-1][:900]):
        queue.remove(ticket)
        assert number % 20 or held_bytes(queue) < 5000 + 900 * len(queue)
    assert drain(queue) == ["stays", *range(100)]


def serve_first(queue, count):
    return Counter(queue.pop().item for _ in range(count))


def test_three_to_one_weights_give_three_to_one_shares():
    queue = PriorityQueue(rate=100.0)
    for _ in range(400):
        queue.push("big", priority=0, arrival=0.0, tenant="big", cost=50.0, weight=3.0)
    for _ in range(400):
        queue.push("small", priority=0, arrival=0.0, tenant="small", cost=50.0)
    served = serve_first(queue, 400)
    assert abs(served["big"] - 300) <= 1


def test_shares_count_costs_not_requests():
    queue = PriorityQueue(rate=100.0)
    for _ in range(400):
        queue.push("long", priority=0, arrival=0.0, tenant="a", cost=300.0)
        queue.push("short", priority=0, arrival=0.0, tenant="b", cost=100.0)
    served = serve_first(queue, 400)
    assert abs(served["short"] - 300) <= 1


def test_a_tenant_with_a_long_queue_does_not_delay_one_that_comes_later():
    queue = PriorityQueue(rate=10.0)
    for _ in range(1000):
        queue.push("greedy", priority=0, arrival=0.0, tenant="greedy", cost=10.0)
    for _ in range(20):  # the service keeps its rate: one request of cost 10 in each second
        queue.pop()
    queue.push("modest", priority=0, arrival=20.0, tenant="modest", cost=10.0)
    assert serve_first(queue, 2)["modest"] == 1


def test_a_tenant_that_was_idle_saves_up_nothing():
    queue = PriorityQueue(rate=10.0)
    queue.push("x", priority=0, arrival=0.0, tenant="a", cost=50.0)
    assert queue.push("y", priority=0, arrival=100.0, tenant="a", cost=50.0).key == 100.0
    assert queue.push("z", priority=0, arrival=100.0, tenant="a", cost=50.0).key == 105.0


def test_tenants_that_owe_nothing_are_forgotten():
    queue = PriorityQueue(rate=1.0)
    for _ in range(2):
        queue.push("owes", priority=0, arrival=0.0, tenant="owes", cost=5000.0)
    for second in range(5000):
        queue.push("x", priority=0, arrival=float(second), tenant=f"tenant {second}", cost=0.5)
        queue.pop()
    assert held_bytes(queue) < 2100 * 600
    assert queue.push("more", priority=0, arrival=5000.0, tenant="owes").key == 10_000.0


def test_a_tenants_urgent_request_does_not_queue_behind_its_own_patient_ones():
    queue = PriorityQueue(rate=1.0, ageing_s=10.0)
    for _ in range(50):
        queue.push("patient", priority=1, arrival=0.0, tenant="a", cost=10.0)
    queue.push("urgent", priority=0, arrival=0.0, tenant="a", cost=10.0)
    assert queue.pop().item == "urgent"


def spread_against_plain(num_levels, num_waiting, num_served):
    """Return the tenants served while one keeps requests waiting at each of several priorities, the other at one."""
    queue = PriorityQueue(rate=1.0, ageing_s=0.5)

    def push(tenant, priority):
        queue.push((tenant, priority), priority=priority, arrival=0.0, tenant=tenant, cost=1.0)

    for priority in reversed(range(num_levels)):  # the patient ones first: nothing of its own delays them
        for _ in range(num_waiting):
            push("spread", priority)
    for _ in range(num_levels * num_waiting):
        push("plain", 0)
    for _ in range(num_served):
        tenant, priority = queue.pop().item
        yield tenant
        push(tenant, priority)


@pytest.mark.parametrize("num_levels", [2, 4, 8])
def test_splitting_over_priorities_gains_at_most_the_backlog(num_levels):
    served = list(spread_against_plain(num_levels, num_waiting=10, num_served=6000))
    at_first = served[: num_levels * 10].count("plain") / (num_levels * 10)
    assert 1 / (num_levels + 1) - 0.03 <= at_first < 0.45  # of that many shares and its own, it has one
    assert served[-2000:].count("plain") >= 0.45 * 2000


def test_whoever_comes_later_starts_where_the_queue_has_come():
    queue = PriorityQueue(rate=0.01)  # a hundredth of what is served: places in the order run ahead of the clock
    for _ in range(30):
        queue.push("first", priority=0, arrival=0.0, tenant="first", cost=1.0)
    serve_first(queue, 10)
    for _ in range(30):
        queue.push("second", priority=0, arrival=1.0, tenant="second", cost=1.0)
    assert abs(serve_first(queue, 20)["first"] - 10) <= 1  # neither pays for the time when it was alone


def test_what_a_tenant_owes_is_forgotten_when_the_queue_is_empty():
    queue = PriorityQueue(rate=1.0)
    for _ in range(10):
        queue.push("greedy", priority=0, arrival=0.0, tenant="greedy", cost=100.0)
    serve_first(queue, 10)
    assert queue.push("greedy", priority=0, arrival=1.0, tenant="greedy", cost=100.0).key == 1.0


def test_a_tenant_can_be_charged_less_than_was_expected():
    queue = PriorityQueue(rate=1.0)
    for _ in range(2):
        queue.push("x", priority=0, arrival=0.0, tenant="a", cost=100.0)
    queue.charge("a", 0, -150.0)
    queue.charge("unknown", 0, 100.0)
    assert queue.push("y", priority=0, arrival=0.0, tenant="a", cost=1.0).key == 50.0
    assert queue.push("z", priority=0, arrival=0.0, tenant="unknown", cost=1.0).key == 0.0


def test_settings_change_for_later_requests():
    queue = PriorityQueue(ageing_s=10.0)
    assert queue.push("before", priority=1, arrival=0.0).key == 10.0
    queue.change(ageing_s=2.0, rate=5.0)
    assert queue.push("after", priority=1, arrival=0.0, tenant="a", cost=40.0, weight=4.0).key == 2.0
    assert queue.push("later", priority=1, arrival=0.0, tenant="a", cost=40.0, weight=4.0).key == 4.0
    with pytest.raises(ConfigError):
        queue.change(rate=0.0)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"ageing_s": -1.0}, "ageing_s .* got -1.0"),
        ({"ageing_s": math.nan}, "ageing_s .* got nan"),
        ({"rate": 0.0}, "rate .* got 0.0"),
        ({"rate": math.inf}, "rate .* got inf"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings_, message):
    with pytest.raises(ConfigError, match=message):
        PriorityQueue(**settings_)


class SortedModel:
    """The queue as a list that is sorted anew each time."""

    def __init__(self, ageing_s, rate, weights):
        self.ageing_s, self.rate, self.weights = ageing_s, rate, weights
        self.finish = {}
        self.reached = self.virtual_time = -math.inf
        self.waiting = []
        self.starts = {}
        self.costs = {}

    def push(self, order, priority, arrival, deadline, tenant, cost):
        if not self.waiting:
            self.finish, self.reached, self.virtual_time = {}, arrival, arrival
        start = max([arrival, *(at for (who, level), at in self.finish.items() if who == tenant and level <= priority)])
        if cost:
            start = max(start, self.reached if tenant in self.backlogged(priority) else self.virtual_time)
            self.finish[tenant, priority] = start
            for who, level in self.finish:
                if who == tenant and level >= priority:
                    self.finish[who, level] += cost / (self.weights.get(tenant, 1.0) * self.rate)
        entry = (priority * self.ageing_s + start, math.inf if deadline is None else deadline, order)
        self.starts[entry] = start
        self.costs[entry] = (tenant, priority, cost)
        self.waiting.append(entry)
        return entry

    def pop(self):
        first = min(self.waiting, default=None)
        if first is not None:
            self.reached = max(self.reached, self.starts[first])
            if cost := self.costs[first][2]:
                total_weight = sum(self.weights.get(tenant, 1.0) for tenant in self.backlogged())
                self.virtual_time = max(self.virtual_time, self.reached) + cost / (total_weight * self.rate)
            self.waiting.remove(first)
        return first

    def backlogged(self, priority=math.inf):
        return {tenant for tenant, level, cost in map(self.costs.get, self.waiting) if cost and level <= priority}


pushes = st.tuples(
    st.just("push"),
    st.integers(-2, 2),
    st.integers(0, 30),
    st.none() | st.integers(0, 3),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from([0.0, 0.0, 4.0, 8.0]),
)
others = st.tuples(st.sampled_from(["pop", "remove", "push_back"]), st.integers(0, 99))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.one_of(pushes, others), max_size=80))
def test_it_behaves_like_a_list_that_is_sorted_each_time(actions):
    weights = {"b": 2.0}
    queue, model = PriorityQueue(ageing_s=8.0, rate=2.0), SortedModel(8.0, 2.0, weights)
    tickets, away = {}, []
    for number, (action, *values) in enumerate(actions):
        if action == "push":
            priority, arrival, deadline, tenant, cost = values
            entry = model.push(number, priority, arrival, deadline, tenant, cost)
            options = {"deadline": deadline, "tenant": tenant, "cost": cost, "weight": weights.get(tenant, 1.0)}
            tickets[entry] = queue.push(entry, priority=priority, arrival=arrival, **options)
        elif action == "pop":
            expected, ticket = model.pop(), queue.pop()
            assert (ticket.item if ticket else None) == expected
            away += [expected] if expected else []
        elif action == "remove" and model.waiting:
            entry = model.waiting.pop(values[0] % len(model.waiting))
            assert queue.remove(tickets[entry])
            away.append(entry)
        elif action == "push_back" and away:
            entry = away.pop(values[0] % len(away))
            model.waiting.append(entry)
            queue.push_back(tickets[entry])
        assert len(queue) == len(model.waiting)
        assert (queue.peek().item if queue.peek() else None) == min(model.waiting, default=None)
    assert drain(queue) == sorted(model.waiting)


def test_the_background_priority_comes_after_others_for_a_day():
    queue = PriorityQueue(ageing_s=10.0)
    queue.push("background", priority=BACKGROUND_PRIORITY, arrival=0.0)
    queue.push("an hour later", priority=BACKGROUND_PRIORITY - 1, arrival=3600.0)
    queue.push("two days later", priority=0, arrival=2 * 86400.0)
    assert drain(queue) == ["an hour later", "background", "two days later"]
