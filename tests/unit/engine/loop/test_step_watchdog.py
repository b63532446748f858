import asyncio
import threading
from contextlib import aclosing

import pytest

from rayinfer.engine.loop.step_watchdog import StepWatchdog
from rayinfer.liveness import LivenessLimits
from support.fakes.fake_executor import numbers
from support.fakes.virtual_time import FakeClock
from support.services.async_engines import TIMEOUT_S, collect, request, running

LIMITS = LivenessLimits()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def watchdog(clock):
    return StepWatchdog(clock)


def step(watchdog, clock, seconds, num_tokens=1):
    with watchdog.step():
        watchdog.record_plan(num_tokens)
        clock.now += seconds


def test_stalled_time_is_since_the_last_iteration(watchdog, clock):
    clock.now += 3
    assert watchdog.stalled_s == 3
    watchdog.record_iteration()
    assert watchdog.stalled_s == 0


def test_a_suspended_watchdog_reports_no_stall(watchdog, clock):
    clock.now += 3
    with watchdog.suspended():
        clock.now += 1000
        assert watchdog.stalled_s == 0
    assert watchdog.stalled_s == 0
    clock.now += 1
    assert watchdog.stalled_s == 1


def test_a_step_may_take_much_longer_than_recent_ones(watchdog, clock):
    assert watchdog.limit_s == LIMITS.min_step_limit_s
    step(watchdog, clock, 0.01)
    assert watchdog.limit_s == LIMITS.min_step_limit_s
    step(watchdog, clock, 2)
    assert watchdog.limit_s == 2 * LIMITS.step_limit_factor
    for _ in range(500):
        step(watchdog, clock, 0.01)
    assert watchdog.limit_s == LIMITS.min_step_limit_s


def test_the_limit_grows_with_the_tokens_of_a_first_long_prompt(watchdog, clock):
    step(watchdog, clock, 0.1)
    with watchdog.step():
        watchdog.record_plan(500)
        assert watchdog.limit_s == pytest.approx(500 * 0.1 * LIMITS.step_limit_factor)
        clock.now += 10
    with watchdog.step():
        watchdog.record_plan(1000)
        assert watchdog.limit_s == pytest.approx(2 * 10 * LIMITS.step_limit_factor)
        clock.now += 0.1
    for _ in range(1000):
        step(watchdog, clock, 0.01)
    with watchdog.step():
        watchdog.record_plan(1000)  # of which one was measured
        assert watchdog.limit_s == LIMITS.min_step_limit_s


async def test_routers_get_reports_of_a_long_step_and_its_limit():
    reached, opened = threading.Event(), threading.Event()

    def hold_up(*_):
        reached.set()
        opened.wait(TIMEOUT_S)

    async with running(LivenessLimits(message_interval_s=0.01), failure=hold_up) as engine, asyncio.timeout(TIMEOUT_S):
        await engine.submit([request("a", numbers(9), 20)], "r")
        await asyncio.to_thread(reached.wait, TIMEOUT_S)
        async with aclosing(engine.outputs("listener")) as messages:
            reports = [await anext(messages) for _ in range(5)]
        opened.set()
        assert all(not report.deltas for report in reports)
        assert reports[-1].stalled_s > reports[-2].stalled_s > 0
        assert reports[-1].stall_limit_s == LIMITS.min_step_limit_s
        assert (await collect(engine, "r", 1))[1] == {"a": "length"}
