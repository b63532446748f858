import asyncio

import pytest

from rayinfer.errors import EngineDead
from rayinfer.liveness import LivenessLimits
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.routing.engine_set import EngineSet
from rayinfer_deployments.discovery.engine_address import EngineAddress
from rayinfer_deployments.router.engine_reconciler import EngineReconciler
from support.fakes.fake_engine_client import FakeEngineClient
from support.services.polling import until

ENGINES = {name: EngineAddress(actor_name=name, namespace="serve") for name in ("a", "b")}


class DescribedFake(FakeEngineClient):
    """A fake engine whose description may fail."""

    describe_error: Exception | None = None
    has_stuck_step = False
    answers = True

    async def describe(self):
        if self.describe_error is not None:
            raise self.describe_error
        await until(lambda: self.answers)
        return self.description

    async def kv_address(self):
        return None

    async def is_stuck(self):
        return self.has_stuck_step


@pytest.fixture
def fakes():
    return {name: DescribedFake() for name in (*ENGINES, "c")}


@pytest.fixture
async def engines():
    engines = EngineSet("m", ServiceMetrics(), router_id="router", on_trace=lambda *_: None)
    yield engines
    await engines.close()


@pytest.fixture
async def reconciler(engines, fakes):
    reconciler = EngineReconciler(
        engines, lambda address: fakes[address.actor_name], limits=LivenessLimits(reconcile_interval_s=0.01)
    )
    running = asyncio.create_task(reconciler.run())
    yield reconciler
    running.cancel()


async def test_desired_engines_are_added_and_others_drained(reconciler, engines):
    reconciler.set_desired(ENGINES)
    await until(lambda: sorted(engines.names) == ["a", "b"])
    reconciler.set_desired({"b": ENGINES["b"]})
    await until(lambda: engines.names == ["b"])


async def test_an_engine_whose_connection_broke_is_added_again(reconciler, engines, fakes):
    reconciler.set_desired({"a": ENGINES["a"]})
    await until(lambda: engines.available())
    fakes["a"].answers = False  # for a moment, so that its absence can be seen
    fakes["a"].die(ConnectionError("the connection broke"))
    await until(lambda: not engines.available())
    fakes["a"].answers = True
    await until(lambda: engines.available())


@pytest.mark.parametrize("error", [EngineDead("gone"), RuntimeError("something else")])
async def test_an_engine_that_cannot_be_described_delays_no_other_and_is_retried(reconciler, engines, fakes, error):
    fakes["a"].describe_error = error
    reconciler.set_desired(ENGINES)
    await until(lambda: engines.names == ["b"])
    fakes["a"].describe_error = None
    await until(lambda: sorted(engines.names) == ["a", "b"])


async def test_an_engine_stuck_in_a_step_is_added_again_after_the_step(reconciler, engines, fakes):
    reconciler.set_desired({"a": ENGINES["a"]})
    await until(lambda: engines.available())
    fakes["a"].has_stuck_step = True
    engines.remove("a", "it has been in one step for 6.0 s")
    await asyncio.sleep(0.05)  # five reconcile intervals
    assert engines.names == []
    fakes["a"].has_stuck_step = False
    await until(lambda: engines.names == ["a"])


async def test_an_engine_that_does_not_answer_delays_no_other(reconciler, engines, fakes):
    fakes["a"].answers = False
    reconciler.set_desired({"a": ENGINES["a"]})
    await asyncio.sleep(0.02)
    reconciler.set_desired(ENGINES)
    await until(lambda: engines.names == ["b"])


async def test_a_leaving_engine_is_drained_once_its_replacement_is_added(reconciler, engines, fakes):
    reconciler.set_desired({"a": ENGINES["a"]})
    await until(lambda: engines.names == ["a"])
    fakes["b"].describe_error = EngineDead("not yet")
    reconciler.set_desired({"b": ENGINES["b"]})
    await asyncio.sleep(0.05)
    assert [link.name for link in engines.available()] == ["a"]
    fakes["b"].describe_error = None
    await until(lambda: engines.names == ["b"])


async def test_a_leaving_engine_is_drained_after_the_timeout_or_without_replacement(engines, fakes):
    fakes["b"].describe_error = EngineDead("never")
    limits = LivenessLimits(reconcile_interval_s=0.01, replace_timeout_s=0.05)
    reconciler = EngineReconciler(engines, lambda address: fakes[address.actor_name], limits)
    running = asyncio.create_task(reconciler.run())
    for instead in ({"b": ENGINES["b"]}, {}):
        reconciler.set_desired({"a": ENGINES["a"]})
        await until(lambda: engines.names == ["a"])
        reconciler.set_desired(instead)
        await until(lambda: engines.names == [])
    running.cancel()


async def test_a_removed_engine_stays_removed_while_serve_reports_it(reconciler, engines):
    reconciler.set_desired(ENGINES)
    await until(lambda: sorted(engines.names) == ["a", "b"])
    assert reconciler.remove("a")
    assert not reconciler.remove("unknown")
    await until(lambda: engines.names == ["b"])
    reconciler.set_desired(ENGINES)
    assert reconciler.remove("b")
    await until(lambda: engines.names == [])
    reconciler.set_desired(ENGINES | {"c": EngineAddress(actor_name="c", namespace="serve")})
    await asyncio.sleep(0.05)
    assert not {"a", "b"} & set(engines.names)


async def test_a_reconciler_is_complete_once_every_desired_engine_is_added(reconciler, engines, fakes):
    fakes["b"].describe_error = EngineDead("not yet")
    waiting = asyncio.create_task(reconciler.wait_complete(10.0))
    await asyncio.sleep(0.02)
    reconciler.set_desired(ENGINES)
    await until(lambda: engines.names == ["a"])
    assert not waiting.done()
    fakes["b"].describe_error = None
    async with asyncio.timeout(5):
        await waiting
    assert sorted(engines.names) == ["a", "b"]


async def test_a_reconciler_without_a_report_waits_no_longer_than_the_timeout(reconciler):
    async with asyncio.timeout(5):
        await reconciler.wait_complete(0.05)
