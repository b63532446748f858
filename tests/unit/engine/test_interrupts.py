"""Ctrl-C while the engine plans a step or reads its tokens: nothing is left half done."""

import contextlib
import signal
import threading

import pytest

from rayinfer.engine.loop.interrupts import deferral_installed, interrupts_deferred
from support.fakes.fake_executor import drive, expected_tokens, numbers


@pytest.fixture(autouse=True)
def default_handler():
    """Python's own handler of SIGINT, which tests before may have replaced."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


class Interrupts:
    """A drafter that is interrupted once, by a signal or by an error behind the first row's draft."""

    def __init__(self, *, by_signal):
        self.by_signal, self.is_due = by_signal, False

    def propose(self, rows):
        drafts = [expected_tokens(each.token_ids.tolist(), 3) for each in rows]
        if not self.is_due:
            return [[] for _ in rows]
        self.is_due = False
        if self.by_signal:
            signal.raise_signal(signal.SIGINT)
            return drafts
        return [drafts[0], Unreadable()]


class Unreadable(list):
    def __getitem__(self, index):
        raise MemoryError


@pytest.mark.parametrize(("by_signal", "error"), [(True, KeyboardInterrupt), (False, MemoryError)])
@pytest.mark.parametrize("steps", [{}, {"max_concurrent_batches": 2}, {"supports_async_scheduling": True}])
def test_answers_after_an_interrupted_plan_are_right(steps, by_signal, error):
    drafter = Interrupts(by_signal=by_signal)
    driven = drive(drafter=drafter, speculation=3, **steps)
    for name, length in (("a", 6), ("b", 5), ("c", 7)):
        driven.add(name, numbers(length), max_tokens=12)
    for _ in range(5):
        driven.step()
    drafter.is_due = True
    with pytest.raises(error):
        driven.run()
    driven.add("later", numbers(1, 3), max_tokens=6, speculation="off")
    driven.run()
    for name, length in (("a", 6), ("b", 5), ("c", 7)):
        assert driven.tokens[name] == expected_tokens(numbers(length), 12)
    assert driven.tokens["later"] == expected_tokens(numbers(1, 3), 6)


@pytest.mark.parametrize("installed", [contextlib.nullcontext, deferral_installed])
def test_an_interrupt_comes_behind_the_block(installed):
    ended = []

    def change():
        with installed(), interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        change()
    assert ended
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_between_blocks_an_interrupt_comes_at_once():
    passed = []

    def interrupt_twice():
        with deferral_installed():
            for _ in range(2):
                with contextlib.suppress(KeyboardInterrupt), interrupts_deferred():
                    signal.raise_signal(signal.SIGINT)
                passed.append("block")
            signal.raise_signal(signal.SIGINT)
            passed.append("more")

    with pytest.raises(KeyboardInterrupt):
        interrupt_twice()
    assert passed == ["block"] * 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_handlers_and_threads_are_left_alone():
    found = []
    before = signal.signal(signal.SIGINT, lambda number, frame: found.append(number))
    try:
        with interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
            assert found == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)

    def work():
        with interrupts_deferred():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[1] is before
