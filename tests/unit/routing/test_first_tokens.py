import pytest

from rayinfer.routing.admission import AdmissionControl
from rayinfer.routing.first_tokens import FirstTokenCounts, FirstTokens
from rayinfer.routing.limits import RouterLimits
from support.fakes.virtual_time import FakeClock


@pytest.fixture
def clock():
    return FakeClock(0.0)


@pytest.fixture
def first_tokens(clock):
    return FirstTokens(2.0, window_s=10.0, clock=clock)


def test_what_waits_is_counted_with_its_tokens(first_tokens):
    keys = [first_tokens.add_request(tokens) for tokens in (100, 20)]
    assert first_tokens.counts() == FirstTokenCounts(num_waiting=2, waiting_tokens=120)
    first_tokens.record_first_token(keys[0])
    assert first_tokens.counts() == FirstTokenCounts(num_waiting=1, waiting_tokens=20, num_started=1)


def test_a_request_is_late_while_it_waits_too_long_and_afterwards(first_tokens, clock):
    key, other = first_tokens.add_request(1), first_tokens.add_request(1)
    clock.now = 1.0
    first_tokens.add_request(1)
    clock.now = 2.5
    assert first_tokens.counts().num_late == 2
    first_tokens.record_first_token(key)
    first_tokens.record_first_token(other)
    assert first_tokens.counts() == FirstTokenCounts(num_waiting=1, waiting_tokens=1, num_started=2, num_late=2)


def test_what_is_long_ago_is_forgotten(first_tokens, clock):
    key = first_tokens.add_request(1)
    clock.now = 3.0
    first_tokens.record_first_token(key)
    clock.now = 13.5
    assert first_tokens.counts() == FirstTokenCounts()


def test_a_client_that_leaves_counts_only_if_it_had_waited_too_long(first_tokens, clock):
    first_tokens.remove_request(first_tokens.add_request(1))
    patient = first_tokens.add_request(1)
    clock.now = 3.0
    first_tokens.remove_request(patient)
    assert first_tokens.counts() == FirstTokenCounts(num_started=1, num_late=1)


def test_admission_reports_every_request_once(first_tokens):
    admission = AdmissionControl(RouterLimits(), first_tokens=first_tokens)
    tickets = [admission.admit(num_tokens=30, num_prompt_tokens=10) for _ in range(3)]
    assert first_tokens.counts() == FirstTokenCounts(num_waiting=3, waiting_tokens=30)
    tickets[0].start()
    tickets[0].release()
    tickets[1].release()
    assert first_tokens.counts() == FirstTokenCounts(num_waiting=1, waiting_tokens=10, num_started=1)
    del tickets
    assert first_tokens.counts().num_waiting == 0


def test_counts_of_routers_add_up():
    assert FirstTokenCounts(1, 2, 3, 4).plus(FirstTokenCounts(10, 20, 30, 40)) == FirstTokenCounts(11, 22, 33, 44)
