"""Requests that wait while engines come and go: each ends after its own wait without an engine, or at its deadline."""

import asyncio
import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayinfer.errors import NotReady
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import Credits, EngineStats
from rayinfer.routing.delta_queue import DeltaQueue
from rayinfer.routing.dispatch_queue import DispatchQueue, QueuedRequest
from rayinfer.routing.engine_choice import RequestCost
from rayinfer.routing.engine_set import EngineSet
from rayinfer.routing.limits import RouterLimits
from support.fakes.fake_engine_client import FakeEngineClient
from support.fakes.virtual_time import run_in_virtual_time

ENGINE_WAIT_S = 3.0
FULL = RequestCost(priority=0, num_requests=10**6, num_tokens=10**6, num_prefill_tokens=0)


@dataclass
class Outcome:
    """One request's arrival and end in virtual seconds."""

    arrival: float
    deadline: float | None
    end: float = math.nan
    reason: str = ""


async def beat(client):
    while True:
        await asyncio.sleep(0.5)
        client.say(stats=EngineStats(credits=Credits(num_requests=1)))


class Queue:
    """A dispatch queue in front of engines that are always full, on the event loop's clock."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.engines = EngineSet(
            "m",
            ServiceMetrics(),
            router_id="r",
            on_trace=lambda *_: None,
            may_be_empty=True,
        )
        self.engines.capacity_listeners.append(self._fill)  # before the queue hears of it
        self.requests = DispatchQueue(self.engines, RouterLimits(), engine_wait_s=ENGINE_WAIT_S, clock=self.loop.time)
        self.num_added = 0
        self.heartbeats = []
        self.availability = []  # (since, until) of each period with an engine

    def add_engine(self):
        self.num_added += 1
        client = FakeEngineClient()
        self.engines.add(str(self.num_added), client, client.description)
        self.heartbeats.append(asyncio.ensure_future(beat(client)))
        self.availability.append([self.loop.time(), math.inf])

    def _fill(self, engine):
        for link in self.engines.links.values():
            link.load.add(FULL)

    def lose_engine(self):
        self.engines.remove(self.engines.names[0], "lost")
        self.heartbeats.pop().cancel()
        self.availability[-1][1] = self.loop.time()

    async def request(self, wait_s=None, leaves_after_s=None):
        arrival = self.loop.time()
        deadline = None if wait_s is None else arrival + wait_s
        outcome = Outcome(arrival, deadline)
        queued = QueuedRequest(
            cost=RequestCost(0, 1, 10, 5),
            tenant="",
            deadline=deadline,
            make_digests=lambda: (),
            requests=(),
            deltas=DeltaQueue(),
        )
        try:
            async with asyncio.timeout(leaves_after_s) as leaving:
                await self.requests.dispatch(queued, wait_s)
            outcome.reason = "sent"
        except NotReady:
            outcome.reason = "refused"
        except TimeoutError:
            outcome.reason = "left" if leaving.expired() else "timed out"
        outcome.end = self.loop.time()
        return outcome


@pytest.mark.parametrize("leaves_after_s", [0.5, 2.9])
def test_a_request_waits_for_an_engine_from_its_own_arrival(leaves_after_s):
    async def scenario():
        queue = Queue()
        first = asyncio.ensure_future(queue.request(leaves_after_s=leaves_after_s))
        await asyncio.sleep(2.71)
        second = asyncio.ensure_future(queue.request())
        return await first, await second

    first, second = run_in_virtual_time(scenario())
    assert first.reason == "left"
    assert second.reason == "refused"
    assert second.end - second.arrival == pytest.approx(ENGINE_WAIT_S)


def test_waiting_without_an_engine_begins_anew_when_the_last_one_is_lost():
    async def scenario():
        queue = Queue()
        queue.add_engine()
        waiting = asyncio.ensure_future(queue.request())
        await asyncio.sleep(10.0)
        queue.engines.drain("1")
        await asyncio.sleep(2.0)
        queue.add_engine()
        await asyncio.sleep(2.0)
        for name in queue.engines.names:
            queue.engines.remove(name, "lost")
        outcome = await waiting
        await queue.engines.close()
        return outcome

    outcome = run_in_virtual_time(scenario())
    assert (outcome.reason, outcome.end) == ("refused", pytest.approx(14.0 + ENGINE_WAIT_S))


tenths = st.integers(1, 40).map(lambda tenth: tenth / 10 + 0.001)  # never two events at one time
events = st.tuples(tenths, st.one_of(st.just("engine"), st.tuples(st.none() | tenths, st.none() | tenths)))


@settings(deadline=None, max_examples=150)
@given(st.lists(events, max_size=15))
def test_no_request_is_refused_early_and_none_waits_beyond_its_deadline(schedule):
    async def scenario():
        queue, waiting = Queue(), []
        for pause_s, event in schedule:
            await asyncio.sleep(pause_s)
            if event != "engine":
                waiting.append(asyncio.ensure_future(queue.request(*event)))
            elif queue.engines.available():
                queue.lose_engine()
            else:
                queue.add_engine()
        if queue.engines.available():
            await asyncio.sleep(1.0)
            queue.lose_engine()
        return [await each for each in waiting], queue.availability

    outcomes, availability = run_in_virtual_time(scenario())
    for outcome in outcomes:
        since = [outcome.arrival]
        since += [until for begin, until in availability if until > outcome.arrival and begin <= outcome.end]
        refusal = max(since) + ENGINE_WAIT_S
        assert outcome.end <= refusal + 1e-6
        assert outcome.deadline is None or outcome.end <= outcome.deadline + 1e-6
        if outcome.reason == "refused":
            assert outcome.end == pytest.approx(refusal)
        assert outcome.reason != "sent"
