"""One future for several: results in order, and the first error once all are done."""

from concurrent.futures import CancelledError, Future

import pytest

from rayinfer.engine.loop.joined_futures import joined


def test_results_come_in_order_when_all_are_there():
    one, other = Future(), Future()
    whole = joined([one, other])
    other.set_result("b")
    assert not whole.done()
    one.set_result("a")
    assert whole.result(0) == ["a", "b"]


def test_an_error_waits_for_the_others():
    one, other = Future(), Future()
    whole = joined([one, other])
    one.set_exception(ValueError("broken"))
    assert not whole.done()
    other.set_result("b")
    with pytest.raises(ValueError, match="broken"):
        whole.result(0)


def test_a_cancelled_one_is_an_error():
    one, other = Future(), Future()
    whole = joined([one, other])
    one.cancel()
    other.set_result("b")
    assert isinstance(whole.exception(0), CancelledError)


def test_a_single_one_is_itself():
    only = Future()
    assert joined([only]) is only


def test_a_cancelled_whole_cancels_what_has_not_begun():
    begun, waiting = Future(), Future()
    begun.set_running_or_notify_cancel()
    whole = joined([begun, waiting])
    assert whole.cancel()
    assert waiting.cancelled()
    begun.set_result("a")  # for nobody
    assert whole.cancelled()
