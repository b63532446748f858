import asyncio
import threading
from contextlib import aclosing

import pytest

from rayinfer.engine.loop.step_watchdog import LIMIT_FACTOR, MIN_LIMIT_S, Pulse
from support.fakes.fake_executor import numbers
from support.services.async_engines import TIMEOUT_S, collect, request, running


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pulse(clock):
    return Pulse(clock)


def step(pulse, clock, seconds, num_tokens=1):
    with pulse.step():
        pulse.planned(num_tokens)
        clock.now_s += seconds


def test_silence_lasts_from_one_beat_to_the_next(pulse, clock):
    clock.now_s += 3
    assert pulse.silent_s == 3
    pulse.beat()
    assert pulse.silent_s == 0


def test_what_may_take_long_is_no_silence(pulse, clock):
    clock.now_s += 3
    with pulse.excused():
        clock.now_s += 1000
        assert pulse.silent_s == 0
    assert pulse.silent_s == 0
    clock.now_s += 1
    assert pulse.silent_s == 1


def test_a_step_may_take_much_longer_than_those_of_late(pulse, clock):
    assert pulse.limit_s == MIN_LIMIT_S
    step(pulse, clock, 0.01)
    assert pulse.limit_s == MIN_LIMIT_S
    step(pulse, clock, 2)
    assert pulse.limit_s == 2 * LIMIT_FACTOR
    for _ in range(500):
        step(pulse, clock, 0.01)
    assert pulse.limit_s == MIN_LIMIT_S


def test_a_first_long_prompt_may_take_as_much_longer_as_it_has_more_tokens(pulse, clock):
    step(pulse, clock, 0.1)
    with pulse.step():
        pulse.planned(500)
        assert pulse.limit_s == pytest.approx(500 * 0.1 * LIMIT_FACTOR)
        clock.now_s += 10
    with pulse.step():
        pulse.planned(1000)
        assert pulse.limit_s == pytest.approx(2 * 10 * LIMIT_FACTOR)
        clock.now_s += 0.1
    for _ in range(1000):
        step(pulse, clock, 0.01)
    with pulse.step():
        pulse.planned(1000)  # by now it is known what so many take
        assert pulse.limit_s == MIN_LIMIT_S


async def test_while_a_step_takes_long_routers_hear_for_how_long_and_what_is_too_long(monkeypatch):
    monkeypatch.setattr("rayinfer.engine.loop.async_engine.SIGN_OF_LIFE_S", 0.01)
    reached, opened = threading.Event(), threading.Event()

    def hold_up(*_):
        reached.set()
        opened.wait(TIMEOUT_S)

    async with running(failure=hold_up) as engine, asyncio.timeout(TIMEOUT_S):
        await engine.submit([request("a", numbers(9), 20)], "r")
        await asyncio.to_thread(reached.wait, TIMEOUT_S)
        async with aclosing(engine.outputs("listener")) as messages:
            signs = [await anext(messages) for _ in range(5)]
        opened.set()
        assert all(not sign.deltas for sign in signs)
        assert signs[-1].silent_s > signs[-2].silent_s > 0
        assert signs[-1].silent_limit_s == MIN_LIMIT_S
        assert (await collect(engine, "r", 1))[1] == {"a": "length"}
