import asyncio

import pytest
from prometheus_client import CollectorRegistry

from fake_engine_client import FakeEngineClient
from rayinfer.errors import EngineDead
from rayinfer.metrics import ServiceMetrics
from rayinfer.routing.engine_set import EngineSet
from rayinfer_deployments.engine_address import EngineAddress
from rayinfer_deployments.engine_roster import EngineRoster

ENGINES = {name: EngineAddress(actor_name=name, namespace="serve", epoch=1) for name in ("a", "b")}


class DescribedFake(FakeEngineClient):
    """A fake engine that may refuse to say what it is."""

    describe_error: Exception | None = None
    has_stuck_step = False
    answers = True

    async def describe(self):
        if self.describe_error is not None:
            raise self.describe_error
        if not self.answers:
            await asyncio.Event().wait()
        return self.description

    async def is_stuck(self):
        return self.has_stuck_step


@pytest.fixture
def fakes():
    return {name: DescribedFake() for name in ENGINES}


@pytest.fixture
async def engines():
    engines = EngineSet("m", ServiceMetrics(CollectorRegistry()), router_id="router", on_trace=lambda *_: None)
    yield engines
    await engines.close()


@pytest.fixture
async def roster(engines, fakes):
    roster = EngineRoster(engines, lambda address: fakes[address.actor_name], reconcile_interval_s=0.01)
    keeping_up = asyncio.create_task(roster.keep_up())
    yield roster
    keeping_up.cancel()


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.001)


async def test_wanted_engines_join_and_unwanted_ones_go(roster, engines):
    roster.want(ENGINES)
    await until(lambda: sorted(engines.names) == ["a", "b"])
    roster.want({"b": ENGINES["b"]})
    await until(lambda: engines.names == ["b"])


async def test_an_engine_whose_line_broke_is_taken_back(roster, engines, fakes):
    roster.want({"a": ENGINES["a"]})
    await until(lambda: engines.available())
    fakes["a"].die(ConnectionError("the line broke"))
    await until(lambda: not engines.available())
    await until(lambda: engines.available())


@pytest.mark.parametrize("error", [EngineDead("gone"), RuntimeError("something else")])
async def test_an_engine_that_cannot_say_what_it_is_keeps_no_other_out_and_may_come_later(
    roster, engines, fakes, error
):
    fakes["a"].describe_error = error
    roster.want(ENGINES)
    await until(lambda: engines.names == ["b"])
    fakes["a"].describe_error = None
    await until(lambda: sorted(engines.names) == ["a", "b"])


async def test_an_engine_that_is_stuck_in_a_step_is_taken_back_when_that_has_ended(roster, engines, fakes):
    roster.want({"a": ENGINES["a"]})
    await until(lambda: engines.available())
    fakes["a"].has_stuck_step = True
    engines.remove("a", "it has been at one step for 6.0 s")
    await asyncio.sleep(0.05)  # five times as long as the roster takes to look again
    assert engines.names == []
    fakes["a"].has_stuck_step = False
    await until(lambda: engines.names == ["a"])


async def test_an_engine_that_does_not_answer_keeps_no_other_waiting(roster, engines, fakes):
    fakes["a"].answers = False
    roster.want({"a": ENGINES["a"]})
    await asyncio.sleep(0.02)
    roster.want(ENGINES)
    await until(lambda: engines.names == ["b"])
