"""Dynamic batcher: order, budget and waiting, on a clock that tests set."""

import pytest

from rayinfer.errors import ConfigError, EngineDead, InvalidParameter, QueueFull
from rayinfer.predictors.batching import BatchingSettings, DynamicBatcher
from rayinfer.predictors.cost_model import CostModel
from support.fakes.virtual_time import FakeClock


def batcher_of(*, base_s=0.02, per_unit_s=0.001, budget=32, clock=None, **settings):
    costs = CostModel(target_step_s=base_s + budget * per_unit_s + 1e-9, max_cost=budget)
    costs.record_probe(1, base_s + per_unit_s)
    costs.record_probe(1000, base_s + 1000 * per_unit_s)
    return DynamicBatcher(costs, BatchingSettings(**settings), clock or FakeClock())


def add(batcher, *names, cost=1, **fields):
    for name in names:
        batcher.add(name, name, cost=cost, **fields)


def test_a_free_model_takes_a_lone_item_at_once():
    batcher = batcher_of()
    assert batcher.wait_s() is None
    add(batcher, "a")
    assert batcher.wait_s() == 0
    assert batcher.take_batch() == ["a"]
    assert batcher.wait_s() is None


def test_a_batch_takes_items_in_order_until_the_next_one_exceeds_the_budget():
    batcher = batcher_of(budget=10)
    for name, cost in {"a": 4, "b": 4, "c": 4, "d": 1}.items():
        add(batcher, name, cost=cost)
    assert batcher.take_batch() == ["a", "b"]
    assert batcher.take_batch() == ["c", "d"]


def test_an_item_above_the_budget_runs_alone():
    batcher = batcher_of(budget=10)
    for name, cost in {"a": 4, "large": 50, "b": 4}.items():
        add(batcher, name, cost=cost)
    assert [batcher.take_batch() for _ in range(3)] == [["a"], ["large"], ["b"]]


def test_a_batch_has_no_more_items_than_its_bound():
    batcher = batcher_of(max_items=2)
    add(batcher, *"abcde")
    assert [batcher.take_batch() for _ in range(3)] == [["a", "b"], ["c", "d"], ["e"]]


def test_urgent_items_go_first_and_equals_in_their_order():
    batcher = batcher_of(max_items=3)
    add(batcher, "a", "b", priority=1)
    add(batcher, "urgent", "urgent too", priority=-1)
    assert batcher.take_batch() == ["urgent", "urgent too", "a"]


def test_a_low_priority_is_not_starved():
    clock = FakeClock()
    batcher = batcher_of(clock=clock, max_items=1, ageing_s=10)
    add(batcher, "low", priority=1)
    for number in range(100):
        clock.now += 0.5
        add(batcher, f"high {number}")
        if batcher.take_batch() == ["low"]:
            break
    assert clock.now == pytest.approx(1010, abs=1)


def arrive_in_bursts(batcher, clock, names, gap_s=0.0002):
    for name in names:
        clock.now += gap_s
        add(batcher, name)


def test_a_burst_is_waited_for_while_that_costs_less_than_it_saves():
    clock = FakeClock()
    batcher = batcher_of(clock=clock)
    arrive_in_bursts(batcher, clock, "abcd")
    assert batcher.wait_s() == pytest.approx(4 * 0.0002)
    clock.now += 0.0004
    assert batcher.wait_s() == pytest.approx(2 * 0.0002)
    add(batcher, "e")
    assert batcher.wait_s() == pytest.approx(4 * 0.0002)  # it begins anew
    clock.now += 4 * 0.0002 + 1e-9
    assert batcher.wait_s() == 0
    assert len(batcher.take_batch()) == 5


def test_a_batch_that_has_ended_is_followed_by_a_wait_for_its_clients():
    clock = FakeClock()
    batcher = batcher_of(clock=clock)
    arrive_in_bursts(batcher, clock, "abc")
    assert len(batcher.take_batch()) == 3
    arrive_in_bursts(batcher, clock, "defg")
    clock.now += 0.1
    batcher.record_free()
    assert batcher.wait_s() == pytest.approx(4 * 0.0002)
    arrive_in_bursts(batcher, clock, "ab")
    assert batcher.wait_s() > 0
    arrive_in_bursts(batcher, clock, "c")
    assert batcher.wait_s() == 0  # all seven clients are there


@pytest.mark.parametrize("gap_s", [0.02, 0.1, 3600])
def test_rare_arrivals_are_not_waited_for(gap_s):
    clock = FakeClock()
    batcher = batcher_of(clock=clock)
    for number in range(40):
        clock.now += gap_s
        add(batcher, str(number))
        assert batcher.wait_s() == 0
        assert batcher.take_batch() == [str(number)]


def test_waiting_never_exceeds_its_maximum():
    clock = FakeClock()
    batcher = batcher_of(clock=clock, base_s=10.0, budget=10_000, max_wait_s=0.005)
    arrive_in_bursts(batcher, clock, map(str, range(10)), gap_s=0.0001)
    first_free = clock.now
    for number in range(1000):
        if not (wait_s := batcher.wait_s()):
            break
        clock.now += min(wait_s, 0.0003)
        add(batcher, f"further {number}")
    assert clock.now - first_free <= 0.005 + 0.0003


def test_a_full_batch_is_not_held_back():
    clock = FakeClock()
    batcher = batcher_of(clock=clock, budget=4)
    arrive_in_bursts(batcher, clock, "abc")
    assert batcher.wait_s() > 0
    arrive_in_bursts(batcher, clock, "d")
    assert batcher.wait_s() == 0


def test_a_deadline_ends_the_wait_for_others():
    clock = FakeClock()
    batcher = batcher_of(clock=clock)
    arrive_in_bursts(batcher, clock, "abc")
    assert batcher.wait_s() > 0
    add(batcher, "hurried", deadline=clock.now + 0.04)
    assert batcher.wait_s() == 0


def test_overdue_items_leave_and_others_stay():
    clock = FakeClock()
    batcher = batcher_of(clock=clock)
    add(batcher, "a")
    add(batcher, "b", deadline=clock.now + 1)
    clock.now += 1
    assert batcher.take_overdue() == ["b"]
    assert batcher.take_overdue() == []
    assert batcher.take_batch() == ["a"]


def test_an_item_that_would_come_too_late_is_known_at_once():
    clock = FakeClock()
    batcher = batcher_of(clock=clock)
    add(batcher, "a", cost=100)
    add(batcher, "unimportant", cost=100_000, priority=5)
    assert not batcher.is_too_late(1, 0, clock.now + 0.125)
    assert batcher.is_too_late(1, 0, clock.now + 0.115)


def test_a_cancelled_item_leaves_alone():
    batcher = batcher_of()
    add(batcher, *"abc")
    assert batcher.cancel("b") == "b"
    assert batcher.cancel("b") is None
    assert (len(batcher), batcher.waiting_cost) == (2, 2)
    assert batcher.take_batch() == ["a", "c"]


def test_items_above_the_bound_on_waiting_are_refused_unless_none_waits():
    batcher = batcher_of(max_waiting_cost=10)
    add(batcher, "large", cost=50)
    with pytest.raises(QueueFull, match=r"items of 50 tokens wait already, and this one has 1$"):
        add(batcher, "b")
    batcher.take_batch()
    assert batcher.has_room_for(10)
    add(batcher, "c", cost=6)
    assert not batcher.has_room_for(5)


def test_closing_returns_what_waits_and_refuses_more():
    batcher = batcher_of()
    add(batcher, *"abc")
    assert batcher.close() == ["a", "b", "c"]
    assert batcher.wait_s() is None
    with pytest.raises(EngineDead):
        add(batcher, "d")


def test_a_name_in_use_is_refused():
    batcher = batcher_of()
    add(batcher, "a")
    with pytest.raises(InvalidParameter, match="'a' is in use"):
        add(batcher, "a")


def test_padded_batches_take_similar_lengths_with_the_oldest_always_among_them():
    batcher = batcher_of(budget=40, is_padded=True)
    for name, cost in {"a": 10, "long": 40, "b": 9, "c": 10, "d": 11, "e": 30}.items():
        add(batcher, name, cost=cost)
    assert batcher.take_batch() == ["a", "b", "c"]  # of d's length, four would be too large
    assert batcher.take_batch() == ["long"]
    assert batcher.take_batch() == ["d"]
    assert batcher.take_batch() == ["e"]


def test_padded_batches_mix_no_priorities():
    batcher = batcher_of(budget=40, is_padded=True)
    add(batcher, "a", cost=10)
    add(batcher, "low", cost=10, priority=1)
    assert [batcher.take_batch() for _ in range(2)] == [["a"], ["low"]]


@pytest.mark.parametrize("settings", [{"max_wait_s": -1}, {"max_wait_s": float("inf")}, {"max_items": -1}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError):
        BatchingSettings(**settings)


def test_background_items_leave_without_others():
    batcher = batcher_of()
    add(batcher, "row", "row too", priority=10)
    add(batcher, "interactive")
    assert [batcher.take_batch() for _ in range(2)] == [["interactive"], ["row", "row too"]]
