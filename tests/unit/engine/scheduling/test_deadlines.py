from types import SimpleNamespace

from rayinfer.engine.scheduling.deadlines import Deadlines


def watching(**deadlines):
    unfinished = {}
    watch = Deadlines(unfinished)
    for request_id, deadline in deadlines.items():
        add(watch, unfinished, request_id, deadline)
    return watch, unfinished


def add(watch, unfinished, request_id, deadline):
    unfinished[request_id] = SimpleNamespace(request_id=request_id, deadline=deadline)
    watch.add(unfinished[request_id])


def test_a_date_comes_up_once_when_it_has_passed():
    watch, _ = watching(c=3.0, a=1.0, never=None, b=2.0)
    assert watch.take_overdue(0.5) == []
    assert watch.take_overdue(2.0) == ["a", "b"]
    assert watch.take_overdue(2.0) == []
    assert watch.take_overdue(9.0) == ["c"]


def test_the_date_of_a_request_that_is_over_does_not_come_up_for_the_next_one_of_its_id():
    watch, unfinished = watching(a=1.0, b=1.0)
    del unfinished["b"]
    add(watch, unfinished, "a", 5.0)
    assert watch.take_overdue(2.0) == []
    assert watch.take_overdue(5.0) == ["a"]


def test_dates_of_requests_that_ended_in_time_are_forgotten_long_before_they_come_up():
    watch, unfinished = watching(stays=7.0)
    for number in range(10_000):
        add(watch, unfinished, f"r{number}", 1e9)
        del unfinished[f"r{number}"]
    assert len(watch) <= 1024
    assert watch.take_overdue(8.0) == ["stays"]
