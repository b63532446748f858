import pytest

from rayinfer.error_kinds import error_kind
from rayinfer.errors import QueueFull, StartingQueueFull
from rayinfer.routing.admission import MAX_RETRY_AFTER_S, STARTING_RETRY_AFTER_S, AdmissionControl
from rayinfer.routing.limits import RouterLimits
from support.fakes.virtual_time import FakeClock


def test_no_more_than_the_bound_may_wait():
    admission = AdmissionControl(RouterLimits(max_waiting_requests=2))
    tickets = [admission.admit(), admission.admit()]
    with pytest.raises(QueueFull, match="2 requests are waiting already, the limit is 2"):
        admission.admit()
    assert admission.num_waiting == len(tickets)
    assert str(admission.overload()) == "2 requests are waiting already, the limit is 2"
    tickets[0].release()
    assert admission.overload() is None


def test_while_the_first_engine_starts_as_many_wait_as_all_that_may_come_would_let_wait():
    is_starting = True
    limits = RouterLimits(max_waiting_requests=2, max_waiting_tokens=10)
    admission = AdmissionControl(limits, max_engines=3, is_starting=lambda: is_starting)
    tickets = [admission.admit(num_tokens=5) for _ in range(6)]
    with pytest.raises(StartingQueueFull, match=r"first engine starts: 6 requests .* the limit is 6") as refusal:
        admission.admit()
    assert (error_kind(refusal.value).status, refusal.value.retry_after_s) == (503, STARTING_RETRY_AFTER_S)
    tickets.pop()
    with pytest.raises(StartingQueueFull, match="the limit is 30"):
        admission.admit(num_tokens=6)
    is_starting = False  # who waits stays, and who comes finds the usual bound
    assert type(admission.overload()) is QueueFull
    assert admission.num_waiting == 5


@pytest.mark.parametrize("end", ["start", "release"])
def test_a_first_token_and_an_end_both_free_the_slot(end):
    admission = AdmissionControl(RouterLimits(max_waiting_requests=1))
    getattr(admission.admit(), end)()
    assert admission.num_waiting == 0
    _ticket = admission.admit()
    assert admission.num_waiting == 1


def test_a_forgotten_ticket_makes_room():
    admission = AdmissionControl(RouterLimits(max_waiting_requests=1))
    ticket = admission.admit()
    del ticket
    assert admission.num_waiting == 0


def test_a_ticket_counts_off_once_whatever_follows():
    admission = AdmissionControl(RouterLimits(max_waiting_requests=3))
    ticket, _other = admission.admit(), admission.admit()
    ticket.start()
    ticket.start()
    ticket.release()
    assert admission.num_waiting == 1


def test_without_experience_a_refused_request_may_come_back_after_a_second():
    admission = AdmissionControl(RouterLimits(max_waiting_requests=1))
    _ticket = admission.admit()
    with pytest.raises(QueueFull) as refusal:
        admission.admit()
    assert refusal.value.retry_after_s == 1.0


def test_the_time_to_come_back_follows_the_pace_at_which_requests_start():
    clock = FakeClock()
    admission = AdmissionControl(RouterLimits(max_waiting_requests=10), clock)
    tickets = [admission.admit() for _ in range(10)]
    for ticket in tickets[:4]:
        clock.now += 2.0
        ticket.start()
    assert admission.retry_after_s() == 6.0  # half of the six that wait, two seconds each


def test_retry_after_is_at_most_a_minute():
    clock = FakeClock()
    admission = AdmissionControl(RouterLimits(max_waiting_requests=100), clock)
    tickets = [admission.admit() for _ in range(100)]
    for ticket in tickets[:2]:
        clock.now += 500.0
        ticket.start()
    assert admission.retry_after_s() == MAX_RETRY_AFTER_S


def test_an_idle_hour_does_not_count_as_a_slow_queue():
    clock = FakeClock()
    admission = AdmissionControl(RouterLimits(max_waiting_requests=10), clock)
    admission.admit().start()
    clock.now += 3600.0
    first, _second = admission.admit(), admission.admit()
    first.start()
    assert admission.retry_after_s() == 1.0
